"""A class name is declared once in `router`, `policies` and `backends` together, so that one name means one thing."""

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("router", "policies", "backends")


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
    assert repeated() == {}
