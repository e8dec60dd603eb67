"""What reads bytes of clients and workers takes time and memory in proportion to them, whatever they are."""

from __future__ import annotations

import importlib
import re

import pytest

from tests.conformance.growth import WORST_RATIO, expressions, growth, hostile_inputs, peak_bytes
from tests.conformance.growth_cases import CLIENT, INLINE, PATTERNS, SCANNERS, TEXT_BYTES, TRUSTED, WORKER

FOREIGN = [name for name, row in PATTERNS.items() if row.written_by in (CLIENT, WORKER)]
"""An operator's settings are read once."""
SCREEN_BYTES = 4_096
"""At this size a square takes some 40 ms."""
CAREFUL = 1.25
"""Step by which inputs grow where the time may double with each byte."""
MEMORY_BYTES = 8_192
BYTES_PER_BYTE = 24
"""Memory that an expression may take for a byte of its text: a match and a copy. Places to go back to take 150."""
SHORT_LIVED_BYTES = 4 << 20
"""What it may take in any case, for the longest text that it is given."""


def pattern(name):
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def applied(found, method, text):
    """All of the text is looked at: searches go on behind what they found."""
    if method == "search":
        return lambda: sum(1 for _ in found.finditer(text))
    return lambda: getattr(found, method)(text)


def slowest(found, method, inputs=(), longest=TEXT_BYTES):
    """How the time for the worst of the hostile inputs grows."""

    def grows(make, largest, step):
        return growth(lambda size: applied(found, method, make(size)), largest, step)

    made = [grows(make, SCREEN_BYTES, CAREFUL) for make in hostile_inputs(found)]
    return max(made + [grows(make, longest, 2.0) for make in inputs])


def test_every_regular_expression_has_a_row():
    missing = sorted(expressions("router", "backends") - PATTERNS.keys() - INLINE.keys())
    assert not missing, f"add rows to tests/conformance/growth_cases.py, which says how: {missing}"


def test_every_row_is_of_a_regular_expression():
    gone = sorted((PATTERNS.keys() | INLINE.keys()) - expressions("router", "backends"))
    assert not gone, f"take these rows out of tests/conformance/growth_cases.py: {gone}"


def test_rows_of_expressions_within_functions_name_scanners_or_a_reason():
    for name, runs in INLINE.items():
        if isinstance(runs, str):
            assert runs.startswith(TRUSTED) and len(runs) > len(TRUSTED), name
        else:
            assert runs and set(runs) <= SCANNERS.keys(), name


@pytest.mark.parametrize("name", FOREIGN)
def test_time_of_an_expression_grows_with_its_text(name):
    row = PATTERNS[name]
    assert slowest(pattern(name), row.method, row.inputs, min(TEXT_BYTES, row.longest_bytes)) < WORST_RATIO


@pytest.mark.parametrize("name", FOREIGN)
def test_memory_of_an_expression_is_its_text(name):
    found, row = pattern(name), PATTERNS[name]
    inputs = [*hostile_inputs(found), *row.inputs]
    worst = max(peak_bytes(applied(found, row.method, make(MEMORY_BYTES))) for make in inputs)
    each = worst / MEMORY_BYTES
    assert each < BYTES_PER_BYTE or each * row.longest_bytes < SHORT_LIVED_BYTES


@pytest.mark.parametrize("name", SCANNERS)
def test_time_of_a_scanner_grows_with_its_input(name):
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
def test_expressions_that_grow_with_the_square_or_worse_are_found(text, method):
    assert slowest(re.compile(text), method) >= WORST_RATIO


def test_a_scanner_that_grows_with_the_square_is_found():
    def build(size):
        def run():
            kept = ""
            for _ in range(size):
                kept = "x" + kept
            return kept

        return run

    assert growth(build, 1 << 17) >= WORST_RATIO
