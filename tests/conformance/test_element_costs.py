"""The time that a parser of bodies takes per byte, for each element that costs a parser most.

Times are CPU times of one run, compared with the time of short floats in msgspec, so a busy machine changes nothing.
"""

import time
from functools import cache

import pytest

from backends.foreign_json import read_json
from router.errors import RequestError
from router.tokenization.body.decoding import FloatBudget, all_fields, inline_fields, python_fields
from router.tokenization.body.intake import parse_steps
from router.tokenization.body.json_spans import find_spans
from router.tokenization.body.parsed_body import CHAT_PATH
from router.tokenization.threads import TextUnavailable

BYTES = 64_000
WORST = 5.0
"""Times the cost per byte of short floats. Without a hook, ``1e308`` costs 30 times as much as they do with one."""

ELEMENTS = {
    "1e308": b"1e308",
    "the largest float": b"1.7976931348623157e308",
    "the smallest float": b"5e-324",
    "denormals": b"2.2250738585072011e-308",
    "beyond a float": b"1e999",
    "long floats": b"0." + b"7" * 770,
    "very long floats": b"0." + b"7" * 20_000,
    "zeros": b"0." + b"0" * 400 + b"1e400",
    "halves between floats": b"9007199254740993.5",
    "integers of 20 digits": b"7" * 20,
    "integers of 500 digits": b"7" * 500,
    "the longest integers": b"7" * 4_300,
    "deep lists": b"[" * 900 + b"]" * 900,
    "deep objects": b'{"":' * 900 + b"1" + b"}" * 900,
    "empty lists": b"[]",
    "empty objects": b"{}",
    "objects of one member": b'{"a":1}',
    "other names": b'{"%d":1}',
    "empty strings": b'""',
    "escapes": b'"' + b"\\n" * 500 + b'"',
    "escaped letters": b'"' + b"\\u0061" * 200 + b'"',
    "surrogate pairs": b'"' + b"\\ud83d\\ude00" * 100 + b'"',
    "letters of three bytes": b'"' + "日".encode() * 300 + b'"',
    "null": b"null",
    "nan": b"NaN",
    "infinity": b"-Infinity",
    "lone surrogates": b'"' + b"\\ud800" * 200 + b'"',
}


def of_elements(element: bytes, size: int) -> bytes:
    times = max(1, size // (len(element) + 1))
    elements = (element % number if b"%d" in element else element for number in range(times))
    return b'{"messages":[],"tools":[' + b",".join(elements) + b"]}"


def in_steps(body: bytes) -> None:
    for _ in parse_steps(CHAT_PATH, body):
        pass


PARSERS = {
    "any document": read_json,
    "on the event loop": inline_fields,
    "in a thread": all_fields,
    "by python": lambda body: python_fields(body, FloatBudget(BYTES)),
    "its places": find_spans,
    "in steps": in_steps,
}


def cpu_s(parse: object, body: bytes) -> float:
    """Return the least CPU time of a few calls. A refusal counts like a result."""
    times = []
    for _ in range(3):
        began_s = time.thread_time()
        try:
            parse(body)
        except (ValueError, RecursionError, RequestError, TextUnavailable):
            pass
        times.append(time.thread_time() - began_s)
    return min(times)


@cache
def short_float_s() -> float:
    body = of_elements(b"1.5", BYTES)
    return cpu_s(read_json, body) / len(body)


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize("element", ELEMENTS)
def test_no_element_costs_much_more_than_short_floats_or_more_in_large_numbers(element: str, parser: str) -> None:
    some, more = (of_elements(ELEMENTS[element], size) for size in (BYTES // 4, BYTES))
    more_s = cpu_s(PARSERS[parser], more)
    assert more_s / len(more) <= WORST * short_float_s()
    assert more_s <= 2 * (4 * cpu_s(PARSERS[parser], some) + BYTES * short_float_s())
