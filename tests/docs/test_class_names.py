"""A class name is declared once in `router`, `policies` and `backends` together, so that one name means one thing."""

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("router", "policies", "backends")

NOT_YET_RESOLVED: frozenset[str] = frozenset()
"""Names declared more than once today. The list only shrinks."""


@cache
def repeated() -> dict[str, list[str]]:
    """Return the files that declare each repeated class name."""
    files = defaultdict(list)
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.parse(path.read_bytes()).body:
                if isinstance(node, ast.ClassDef):
                    files[node.name].append(str(path.relative_to(ROOT)))
    return {name: found for name, found in files.items() if len(found) > 1}


def test_a_class_name_is_declared_once():
    assert {name: files for name, files in repeated().items() if name not in NOT_YET_RESOLVED} == {}


def test_a_resolved_name_leaves_the_list():
    assert sorted(NOT_YET_RESOLVED - repeated().keys()) == [], "delete these from NOT_YET_RESOLVED"
