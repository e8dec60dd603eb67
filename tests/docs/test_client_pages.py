"""The table of request headers names those that the code reads, and nothing else."""

import ast
from pathlib import Path

from docs.build.read_headers import READ_HEADERS
from router.security.callers import CLAIMS

ROUTER = Path(__file__).parents[2] / "router"
RESPONSES = {"response_head.py"}
"""Modules whose `fields` are those of a worker's response."""
LISTED = {name.lower().encode() for headers in READ_HEADERS.values() for name in headers}


def sources():
    for package in ("requests", "gateway", "security", "limits", "control", "tokenization"):
        for path in (ROUTER / package).rglob("*.py"):
            if path.name not in RESPONSES:
                yield path, ast.parse(path.read_text(encoding="utf-8"))


def is_request_fields(node):
    text = ast.unparse(node)
    return text.endswith("fields") and "response" not in text


def header_of(node):
    """The name of the request header that an expression reads: `fields.get(b"x")`, `fields[b"x"]`, `b"x" in fields`."""
    match node:
        case ast.Call(func=ast.Attribute(value=base, attr="get"), args=[ast.Constant(value=bytes(name)), *_]):
            pass
        case ast.Subscript(value=base, slice=ast.Constant(value=bytes(name))):
            pass
        case ast.Compare(left=ast.Constant(value=bytes(name)), comparators=[base]):
            pass
        case _:
            return None
    return name if is_request_fields(base) else None


def test_every_header_that_the_code_reads_is_listed():
    read = {(path.name, header) for path, tree in sources() for node in ast.walk(tree) if (header := header_of(node))}
    read |= {("callers.py", claim) for claim in CLAIMS}
    assert len(read) > 15
    assert {(file, header) for file, header in read if header not in LISTED} == set()


def test_every_listed_header_is_read_somewhere():
    literals = {
        node.value
        for _, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, bytes)
    }
    assert LISTED - literals == set()
