"""``python -m docs.build.size``: the size of the product beside its bars."""

from __future__ import annotations

import argparse
import ast
import re
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
MOST_MODULES, MOST_METHODS, MOST_LARGE_CLASSES, MOST_LINES, MOST_LONG_MODULES = 20, 30, 12, 400, 5
DECLARED_TABLES = frozenset({"router/config/model.py", "router/diagnosis/conditions.py"})
WIDE_FOLDERS = frozenset({"policies/rules"})
"""Folders with one file per option."""
NEWER_FOLDERS = (
    "router/picker/", "router/placement/admission/", "router/requests/layers/classes/",
    "router/gateway/layers/migration/", "loadtest/load/", "loadtest/plan/", "loadtest/calibrate/",
    "loadtest/admission/", "loadtest/sim/queues/", "router/admin/planner/",
)  # fmt: skip
"""What came after the bars were set: the picker, classes, migration, and the commands that measure and plan."""
NEWER_NAMES = re.compile(
    r"(Picker|Class|Config\.(picker|classes|admission)|Route\.request_class|Tenant\.(classes|weight)|Worker\.migrate_after_s)"
    r"|warmroute_(picks|picker|class_|migration)"
    r"|warmroute (picker|load|plan|calibrate)|get_planner|make_plan"
)
NEWER_PAGES = frozenset({
    "put-warmroute-behind-your-gateway.md", "protect-interactive-traffic.md", "calibrate-a-gpu.md", "size-a-fleet.md",
    "restart-workers-without-breaking-streams.md", "measure-an-endpoint.md",
    "picker.md", "admission.md", "migration.md", "planning.md",
})  # fmt: skip


def rows() -> Iterator[tuple[str, int, int, int]]:
    """Return what is counted, its size, that without `NEWER_FOLDERS` and their like, and the most that it may be."""
    product = files(*PRODUCT)
    fullest, modules = max(narrow_folders(product).items(), key=lambda folder: folder[1])
    yield _of_lines(", ".join(PRODUCT), product, 88_000)
    for folder, most in (("loadtest", 14_500), ("router", 58_000), ("tests", 76_000)):
        yield _of_lines(folder, files(folder), most)
    yield _of_names("settings", settings(), 200)
    yield _of_names("metrics", [spec.name for spec in CATALOGUE], 90)
    yield _of_names("commands", list(commands(build_parser())), 45)
    yield _of_names("admin operations", [one.name for one in OPERATIONS], 55)
    yield _same(f"modules in the fullest folder ({fullest})", modules, MOST_MODULES)
    yield _same("decision records", _pages("docs/decisions"), 32)
    pages = [Path(path).name for path in files("docs/how-to", kind="md") if not path.endswith("README.md")]
    yield "how-tos", len(pages), len([page for page in pages if page not in NEWER_PAGES]), 27
    results = files("docs/results", kind="md")
    older = [path for path in results if Path(path).name not in NEWER_PAGES]
    yield "words of docs/results", _words(results), _words(older), 30_000
    large = len(list(large_classes(product)))
    yield _same(f"classes with more than {MOST_METHODS} methods, properties apart", large, MOST_LARGE_CLASSES)
    long = [path for path in product if path not in DECLARED_TABLES and _lines([path]) > MOST_LINES]
    yield _same(f"modules over {MOST_LINES} lines, declared tables apart", len(long), MOST_LONG_MODULES)


def _of_lines(what: str, paths: list[str], most: int) -> tuple[str, int, int, int]:
    older = [path for path in paths if not path.removeprefix("tests/").startswith(NEWER_FOLDERS)]
    return f"lines of {what}", _lines(paths), _lines(older), most


def _of_names(what: str, names: list[str], most: int) -> tuple[str, int, int, int]:
    return what, len(names), len([name for name in names if not NEWER_NAMES.match(name)]), most


def _same(what: str, now: int, most: int) -> tuple[str, int, int, int]:
    return what, now, now, most


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


def _words(paths: Iterable[str]) -> int:
    return sum(len(_text(path).split()) for path in paths)


def _cells(what: str, now: int, older: int, most: int) -> tuple[str, str, str, str, str]:
    return (what, f"{now:,}", f"{older:,}", f"{most:,}", "yes" if older <= most else "no")


if __name__ == "__main__":
    lines = table(("what", "now", "without newer features", "bar", "met"), (_cells(*row) for row in rows()))
    sys.stdout.write("\n".join([*lines, ""]))
