"""Every code of the admin API's errors is on the reference page, with its status."""

import ast
from http import HTTPStatus
from pathlib import Path

import router
from router.admin.http.codes import CODES
from router.errors import ErrorKind

BETWEEN_PROCESSES = "private_api.py"
"""Its errors go from a child process to its supervisor."""


def raised():
    """Yield the status and code of each error that the source makes with both in place."""
    paths = [path for path in Path(router.__file__).parent.rglob("*.py") if path.name != BETWEEN_PROCESSES]
    for source in (path.read_text() for path in paths):
        for node in ast.walk(ast.parse(source)) if "AdminError" in source else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "AdminError":
                status, code, *_ = node.args
                if isinstance(code, ast.Constant):
                    assert isinstance(status, ast.Attribute), ast.unparse(node)
                    yield HTTPStatus[status.attr].value, code.value


def test_each_code_in_the_source_is_described_with_its_status():
    used = set(raised())
    assert {(status, code) for code, meaning in CODES.items() for status in meaning.statuses} == used


def test_no_code_is_one_of_the_public_port_with_another_meaning():
    shared = set(CODES) & {kind.spec.code for kind in ErrorKind}
    assert shared == {"invalid_json", "body_too_large"}, "a body that is not JSON, or too large, on either port"
