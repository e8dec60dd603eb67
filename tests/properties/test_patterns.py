"""No regular expression of the gateway costs more than linear time in its input.

The test finds all expressions compiled in modules. It tries each one, with the methods that its module uses, on long
repetitions of matching pieces after the beginning of a match.
"""

import ast
import importlib
import inspect
import pkgutil
import re
from itertools import product
from re import _constants as sre
from re import _parser as sre_parser

import pytest

import backends.vllm
import router
from tests.properties.limits import cpu_limit, cpu_s
from tests.support.gateway_rig import COMPILED

if COMPILED:
    pytest.skip("reads the source of the modules", allow_module_level=True)

LENGTH = 20_000
"""A quadratic cost takes seconds at this length, even in sre's inner loop."""
LIMIT_S = 0.1
METHODS = frozenset({"match", "fullmatch", "search", "finditer", "findall", "sub", "split"})
COMMON = 'a0 \t"\\;=,:{}[]/\r\n.'
TOOLS_OF_OPERATORS = ("router.cli.", "router.admin.")


def modules():
    for package in (router, backends.vllm):
        for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if not found.name.startswith(TOOLS_OF_OPERATORS) and not found.name.endswith("__main__"):
                yield importlib.import_module(found.name)


def uses(module):
    """Return the methods by which each name is used in `module`'s own source."""
    found = {}
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Attribute) and node.attr in METHODS and isinstance(node.value, ast.Name):
            found.setdefault(node.value.id, set()).add(node.attr)
    return found


def patterns():
    found = {}
    for module in modules():
        used = uses(module)
        for name, value in vars(module).items():
            if isinstance(value, re.Pattern) and name in used:
                found[f"{module.__name__}.{name}"] = value, sorted(used[name])
    return found


def shortest(items, pieces):
    """Return a text that `items` match, at least approximately. Append the repeated parts to `pieces`."""
    return "".join(one(operation, argument, pieces) for operation, argument in items)


def one(operation, argument, pieces):
    if operation is sre.LITERAL:
        pieces.add(chr(argument))
        return chr(argument)
    if operation is sre.IN:
        return member(argument, pieces)
    if operation in (sre.ANY, sre.NOT_LITERAL):
        return "a"
    if operation in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
        text = shortest(argument[2], pieces)
        pieces.add(text)
        return text * max(1, min(argument[0], 3))
    if operation is sre.SUBPATTERN:
        return shortest(argument[-1], pieces)
    if operation is sre.ATOMIC_GROUP:
        return shortest(argument, pieces)
    if operation is sre.BRANCH:
        return shortest(argument[1][0], pieces)
    return ""


def member(items, pieces):
    for operation, argument in items:
        if operation is sre.LITERAL:
            pieces.add(chr(argument))
            return "a" if items[0][0] is sre.NEGATE else chr(argument)
        if operation is sre.RANGE:
            pieces.add(chr(argument[0]))
            return "_" if items[0][0] is sre.NEGATE else chr(argument[0])
    return " "


def inputs(pattern):
    pieces = set(COMMON)
    text = pattern.pattern
    shown = text.decode("latin-1") if isinstance(text, bytes) else text
    example = shortest(sre_parser.parse(shown, pattern.flags & ~re.UNICODE | re.ASCII), pieces)
    step = max(1, len(example) // 6)
    beginnings = {example[:end] for end in range(0, len(example) + 1, step)} | {example}
    units = {piece for piece in (*pieces, example) if piece}
    units |= {first + second for first, second in product(sorted(units, key=len)[:10], repeat=2)}
    for before, unit in product(sorted(beginnings), sorted(units)):
        for behind in ("", "\x00"):
            grown = before + unit * (LENGTH // len(unit)) + behind
            yield grown.encode("latin-1", "replace") if isinstance(text, bytes) else grown


def run(pattern, method, text):
    if method == "finditer":
        for _ in pattern.finditer(text):
            pass
    elif method == "sub":
        pattern.sub(b"" if isinstance(text, bytes) else "", text)
    else:
        getattr(pattern, method)(text)


PATTERNS = patterns()


def check(pattern, method):
    for text in inputs(pattern):
        with cpu_limit(10 * LIMIT_S):
            took_s = cpu_s(lambda text=text: run(pattern, method, text))
        assert took_s < LIMIT_S, f"{took_s:.2f} CPU seconds: {method}({text[:60]!r}...)"


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_costs_linear_time(name):
    pattern, methods = PATTERNS[name]
    for method in methods:
        check(pattern, method)


def test_quadratic_cost_is_found():
    pattern = re.compile(r'([a-z_]+)[ \t]*=[ \t]*"((?:[^"\\\n]|\\.)*)"')
    with pytest.raises(AssertionError, match="CPU"):
        check(pattern, "findall")


def test_every_compiled_pattern_is_found():
    assert len(PATTERNS) > 20
    assert "backends.vllm.metrics._LABEL" in PATTERNS
