"""``python -m docs.build.size``: the size of the product beside its bars."""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from docs.build.tables import table
from router.admin.table import OPERATIONS
from router.cli.main import build_parser
from router.config import model
from router.metrics.catalogue import CATALOGUE

ROOT = Path(__file__).parents[2]
PRODUCT = ("policies", "backends", "router", "loadtest")
MOST_MODULES, MOST_METHODS, MOST_LARGE_CLASSES, MOST_LINES = 20, 30, 12, 400
WIDE_FOLDERS = frozenset({"policies/rules"})
"""Folders with one file per option."""


def rows() -> Iterator[tuple[str, int, int | None]]:
    """Return what is counted, its size, and the most that it may be; None without a bar."""
    product = files(*PRODUCT)
    fullest, modules = max(narrow_folders(product).items(), key=lambda folder: folder[1])
    yield "lines of policies, backends, router and loadtest", _lines(product), 88_000
    yield "lines of loadtest", _lines(files("loadtest")), 14_500
    yield "lines of router", _lines(files("router")), 58_000
    yield "lines of tests", _lines(files("tests")), 76_000
    yield "settings", len(settings()), 200
    yield "metrics", len(CATALOGUE), 90
    yield "commands", len(list(commands(build_parser()))), 45
    yield "admin operations", len(OPERATIONS), 55
    yield f"modules in the fullest folder ({fullest})", modules, MOST_MODULES
    yield "decision records", _pages("docs/decisions"), 32
    yield "how-tos", _pages("docs/how-to"), 27
    yield "words of docs/results", sum(len(_text(path).split()) for path in files("docs/results", kind="md")), 30_000
    large = len(list(large_classes(product)))
    yield f"classes with more than {MOST_METHODS} methods, properties apart", large, MOST_LARGE_CLASSES
    yield f"modules over {MOST_LINES} lines", sum(_lines([path]) > MOST_LINES for path in product), None


def files(*folders: str, kind: str = "py") -> list[str]:
    """Return the tracked files of `folders`, those below included."""
    listed = subprocess.run(["git", "ls-files", "-z", *folders], cwd=ROOT, check=True, capture_output=True, text=True)
    return [path for path in listed.stdout.split("\0") if path.endswith(f".{kind}") and (ROOT / path).is_file()]


def narrow_folders(paths: Iterable[str]) -> Counter[str]:
    """Return the modules of each folder, without `__init__.py` and without `WIDE_FOLDERS`."""
    modules = (Path(path) for path in paths if not path.endswith("__init__.py"))
    return Counter(str(path.parent) for path in modules if str(path.parent) not in WIDE_FOLDERS)


def large_classes(paths: Iterable[str]) -> Iterator[str]:
    """Return ``path: class`` for each class with more than `MOST_METHODS` methods."""
    for path in paths:
        for node in ast.walk(ast.parse(_text(path))):
            if isinstance(node, ast.ClassDef) and sum(map(_is_method, node.body)) > MOST_METHODS:
                yield f"{path}: {node.name}"


def _is_method(node: ast.stmt) -> bool:
    """Return whether `node` is a function of a class and no property."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    return not any(
        ast.unparse(one) == "property" or ast.unparse(one).endswith(".setter") for one in node.decorator_list
    )


def commands(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Return the commands that have no subcommands."""
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for group in groups:
        for command in group.choices.values():
            yield from commands(command)
    if not groups:
        yield parser.prog


def settings() -> list[str]:
    """Return each setting as SECTION.NAME."""
    sections = [one for one in vars(model).values() if isinstance(one, type) and issubclass(one, model.Section)]
    return [
        f"{section.__name__.removesuffix('Config') or 'Config'}.{field.name}"
        for section in sections
        for field in msgspec.structs.fields(section)
    ]


def _lines(paths: Iterable[str]) -> int:
    return sum(_text(path).count("\n") for path in paths)


def _pages(folder: str) -> int:
    return sum(not path.endswith("README.md") for path in files(folder, kind="md"))


def _text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def _cells(what: str, now: int, bar: int | None) -> tuple[str, str, str, str]:
    return (what, f"{now:,}", "", "") if bar is None else (what, f"{now:,}", f"{bar:,}", "yes" if now <= bar else "no")


if __name__ == "__main__":
    lines = table(("what", "now", "bar", "met"), (_cells(*row) for row in rows()))
    sys.stdout.write("\n".join([*lines, ""]))
