"""Scanners of client and worker bytes take time and memory in proportion to their input, whatever it is."""

import importlib
import re

import pytest

from tests.conformance.growth import WORST_RATIO, expressions, growth, hostile_inputs, peak_bytes
from tests.conformance.growth_cases import PATTERNS, SCANNERS, TEXT_BYTES, TRUSTED, Row

SCREEN_BYTES = 4_096
"""At this size, quadratic time is about 40 ms."""
CAREFUL = 1.25
"""Growth step for inputs whose time may double with each byte."""
MEMORY_BYTES = 8_192
BYTES_PER_BYTE = 24
"""Memory that an expression may take per byte of its text: a match and a copy. Backtracking points take 150."""
SHORT_LIVED_BYTES = 4 << 20
"""Memory that an expression may take in any case, at its longest text."""


def pattern(name):
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError):  # made in a method
        return None


FOREIGN = sorted(
    name
    for name in expressions("router", "backends")
    if not name.startswith(TRUSTED) and isinstance(pattern(name), re.Pattern)
)


def applied(found, method, text):
    """Apply `method` to the whole text: a search goes on after each match."""
    if method == "search":
        return lambda: sum(1 for _ in found.finditer(text))
    return lambda: getattr(found, method)(text)


def slowest(found, method, inputs=(), longest=TEXT_BYTES):
    """Return the growth of time for the worst hostile input, or for the first that is too slow."""
    worst = 0.0
    rows = [(make, SCREEN_BYTES, CAREFUL) for make in hostile_inputs(found)] + [(make, longest, 2.0) for make in inputs]
    for make, largest, step in rows:
        worst = max(worst, growth(lambda size, make=make: applied(found, method, make(size)), largest, step))
        if worst >= WORST_RATIO:
            break
    return worst


def test_every_row_names_a_regular_expression():
    assert PATTERNS.keys() <= set(FOREIGN)


@pytest.mark.parametrize("name", FOREIGN)
def test_time_of_an_expression_grows_linearly(name):
    row = PATTERNS.get(name, Row())
    assert slowest(pattern(name), row.method, row.inputs, min(TEXT_BYTES, row.longest_bytes)) < WORST_RATIO


@pytest.mark.parametrize("name", FOREIGN)
def test_memory_of_an_expression_is_bounded_by_its_text(name):
    found, row = pattern(name), PATTERNS.get(name, Row())
    inputs = [*hostile_inputs(found), *row.inputs]
    worst = max(peak_bytes(applied(found, row.method, make(MEMORY_BYTES))) for make in inputs)
    each = worst / MEMORY_BYTES
    assert each < BYTES_PER_BYTE or each * row.longest_bytes < SHORT_LIVED_BYTES


@pytest.mark.parametrize("name", SCANNERS)
def test_time_of_a_scanner_grows_linearly(name):
    scan = SCANNERS[name]
    assert growth(scan.build, scan.largest_bytes) < WORST_RATIO


@pytest.mark.parametrize(
    ("text", "method"),
    [
        (rb'content-disposition:[^\r\n]*\bname="?model"?(?:;|\r|\n|$)', "search"),
        (rb"(?:a+)+b", "match"),
        (rb"[a-z]*[a-z]*!", "match"),
        (rb"\s+$", "search"),
        (rb'"(?:[^"\\]|\\.)*"!', "search"),
    ],
)
def test_quadratic_expressions_are_detected(text, method):
    assert slowest(re.compile(text), method) >= WORST_RATIO


def test_a_quadratic_scanner_is_detected():
    def build(size):
        def run():
            kept = ""
            for _ in range(size):
                kept = "x" + kept
            return kept

        return run

    assert growth(build, 1 << 16) >= WORST_RATIO
