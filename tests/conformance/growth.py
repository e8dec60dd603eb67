"""Finds the regular expressions of a package, makes hostile texts for them, and measures how their cost grows."""

import ast
import gc
import re
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

ROOT = Path(__file__).parents[2]
_CALLS = {"compile", "search", "match", "fullmatch", "sub", "subn", "split", "findall", "finditer"}
_ENDINGS = ("", "\x00", '"', "\n")
"""Texts after a repetition: nothing, and characters that few expressions continue with."""

ENOUGH_S = 0.002
"""CPU time that can be compared. Input that takes less at its largest is cheap, however it grows."""
FURTHER = 16
"""Once an input takes ENOUGH_S, one more size is measured: this multiple of it, or the largest."""
SMALLEST = 16
FACTOR = 4
WORST_RATIO = 8.0
"""With FACTOR times the input: linear growth takes 4 times as long, the square 16 times."""


@cache
def expressions(*packages: str) -> frozenset[str]:
    """Return where regular expressions are made: ``module.NAME`` for globals, ``module.function`` for others."""
    found: set[str] = set()
    for package in packages:
        for file in sorted((ROOT / package).rglob("*.py")):
            module = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            text = file.read_text(encoding="utf-8")
            if "\nimport re\n" in text:
                found |= {f"{module}.{name}" for name in _made_in(ast.parse(text), ())}
    return frozenset(found)


def _made_in(node: ast.AST, scope: tuple[str, ...]) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        inner = scope
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            inner = (*scope, child.name)
        elif isinstance(child, ast.Assign) and not scope and isinstance(child.targets[0], ast.Name):
            inner = (child.targets[0].id,)
        elif _makes(child):
            yield ".".join(scope) or "(module)"
        yield from _made_in(child, inner)


def _makes(node: ast.AST) -> bool:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    return isinstance(node.func.value, ast.Name) and node.func.value.id == "re" and node.func.attr in _CALLS


# inputs


def hostile_inputs(pattern: re.Pattern[Any]) -> list[Callable[[int], Any]]:
    """Return texts by size that repeat the pattern's repetition, or the text before it, and then fail to match."""
    text = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    tree = list(_parser.parse(text, pattern.flags & ~re.UNICODE))
    found: dict[tuple[str, str, str], Callable[[int], Any]] = {}
    first = _witness(tree, "x")[:1] or "x"
    units = [each for wild in ("x", first) for each in (("", _witness(tree, wild)), *_repeated(tree, "", wild))]
    for before, unit in units:
        for start, repeated in ((before, unit), ("", before), ("", before + unit), ("", before + unit * 2)):
            for ending in _ENDINGS if repeated else ():
                found[start, repeated, ending] = partial(
                    _text, isinstance(pattern.pattern, str), start, repeated, ending
                )
    return list(found.values())


def _text(as_str: bool, start: str, repeated: str, ending: str, size: int) -> str | bytes:
    made = start + repeated * max(1, size // len(repeated)) + ending
    return made if as_str else made.encode("latin-1")


def _witness(tree: Iterable[Any], wild: str) -> str:
    """Return a short text that the pattern matches, without look-arounds and anchors. `wild` is any character."""
    return "".join(_piece(code, value, wild) for code, value in tree)


def _piece(code: Any, value: Any, wild: str) -> str:
    if code is op.LITERAL:
        return chr(value)
    if code is op.IN:
        return _member(value)
    if code in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
        least, most, inner = value
        return _witness(inner, wild) * min(max(least, 1), most)
    if code is op.BRANCH:
        return _witness(value[1][0], wild)
    if code is op.SUBPATTERN:
        return _witness(value[-1], wild)
    if code is op.ATOMIC_GROUP:
        return _witness(value, wild)
    return wild if code in (op.ANY, op.NOT_LITERAL) else ""


def _member(members: list[Any]) -> str:
    if members[0][0] is op.NEGATE:
        excluded = re.compile("[" + "".join(_as_class(one) for one in members[1:]) + "]")
        return next(char for char in "x0 -_~\x00" if not excluded.match(char))
    code, value = members[0]
    if code is op.CATEGORY:
        return {op.CATEGORY_DIGIT: "0", op.CATEGORY_SPACE: " ", op.CATEGORY_WORD: "a"}.get(value, "x")
    return chr(value[0] if code is op.RANGE else value)


def _as_class(member: Any) -> str:
    code, value = member
    if code is op.RANGE:
        return f"{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}"
    if code is op.CATEGORY:
        return {op.CATEGORY_DIGIT: r"\d", op.CATEGORY_SPACE: r"\s", op.CATEGORY_WORD: r"\w"}[value]
    return re.escape(chr(value))


def _repeated(tree: Iterable[Any], before: str, wild: str) -> Iterator[tuple[str, str]]:
    """Yield each repetition's body, as one text or by alternative, with the text before it."""
    for code, value in tree:
        if code in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
            yield before, _witness(value[2], wild)
            yield from _repeated(value[2], before, wild)
        elif code is op.BRANCH:
            for one in value[1]:
                yield before, _witness(one, wild)
                yield from _repeated(one, before, wild)
        elif code is op.SUBPATTERN:
            yield from _repeated(value[-1], before, wild)
        before += _piece(code, value, wild)


# costs


def cpu_s(run: Callable[[], object], times: int = 1) -> float:
    """Return the least CPU time of several runs, without garbage collection, which depends on other objects too."""
    best_s = float("inf")
    gc.disable()
    try:
        for _ in range(times):
            began_s = time.process_time()
            run()
            best_s = min(best_s, time.process_time() - began_s)
    finally:
        gc.enable()
    return best_s


def growth(build: Callable[[int], Callable[[], object]], largest: int, step: float = 2.0) -> float:
    """Return how much longer FACTOR times the input takes, or 0 if even `largest` is cheap.

    `build` makes an input of a size and returns the call to measure, which may run many times. Sizes grow by `step`,
    which must be small if time may grow exponentially.
    """
    size = SMALLEST
    while cpu_s(build(size), 2) < ENOUGH_S:
        if size >= largest:
            return 0.0
        size = min(int(step * size), largest)
    ratio = _ratio(build, size)
    further = min(largest, size * FURTHER)
    if ratio < WORST_RATIO and further >= 2 * size:
        return max(ratio, _ratio(build, further))  # where the square has come to outweigh the rest
    return ratio


def _ratio(build: Callable[[int], Callable[[], object]], size: int) -> float:
    """Return the least of a few runs, because other processes disturb the measurement."""
    small, large = build(max(1, size // FACTOR)), build(size)
    ratio = float("inf")
    for _ in range(4):
        ratio = min(ratio, cpu_s(large, 3) / max(1e-6, cpu_s(small, 5)))
        if ratio < FACTOR * 1.5:
            break
    return ratio


def peak_bytes(run: Callable[[], object]) -> int:
    """Return the peak memory of Python's allocator."""
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
