"""Bodies whose elements take long are not decoded on the event loop, and the costliest are not decoded at all."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.tokenization.body.bounds import decoded_bytes, fits_inline
from router.tokenization.body.decoding import (
    INLINE_CONTAINERS,
    INLINE_FLOATS,
    LONG_DIGITS_BYTES,
    MOST_FLOATS,
    CostlyBody,
    Sampler,
    all_fields,
    inline_fields,
    long_digit_bytes,
)
from router.tokenization.body.intake import MIN_BODY_BYTES, WHOLE_BYTES, parse, parse_at_once
from router.tokenization.body.known_bodies import KnownBodies
from router.tokenization.body.parsed_body import CHAT_PATH

CHAT = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"tools":[%b0]}'


def with_tools(element: bytes, times: int) -> bytes:
    return CHAT % (element * times)


@pytest.mark.parametrize("known", [None, KnownBodies(10_000)])
@pytest.mark.parametrize(
    ("element", "most"), [(b"1e308,", INLINE_FLOATS), (b"1.5,", INLINE_FLOATS), (b"[]   ,", INLINE_CONTAINERS - 4)]
)
def test_a_chat_of_many_elements_is_not_decoded_on_the_event_loop(
    element: bytes, most: int, known: KnownBodies | None
) -> None:
    few, many = with_tools(element, most - 1), with_tools(element, most + 1)
    assert len(few) > MIN_BODY_BYTES and len(many) < WHOLE_BYTES
    assert parse_at_once(CHAT_PATH, few, known).whole
    parsed = parse_at_once(CHAT_PATH, many, known)
    assert (parsed.whole, parsed.model, parsed.has_prompt, parsed.has_tools) == (False, "m", True, True)
    assert parsed.fields.tools is None
    assert parsed.decoded().tools == json.loads(many)["tools"]


def test_a_chat_of_long_integers_is_not_handled_on_the_event_loop() -> None:
    number = b"7" * 4_300 + b","
    few, many = with_tools(number, 3), with_tools(number, 20)
    assert parse_at_once(CHAT_PATH, few).whole and fits_inline(parse_at_once(CHAT_PATH, few))
    parsed = parse_at_once(CHAT_PATH, many)
    assert not parsed.whole and not fits_inline(parsed)
    assert parsed.decoded().tools == json.loads(many)["tools"]


def test_brackets_in_a_long_text_do_not_count() -> None:
    text = "x[0] = {}\n" * 4_000 + "plain words without any code " * 5_000
    body = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
    assert parse_at_once(CHAT_PATH, body).whole


def test_what_only_python_reads_has_the_same_bound() -> None:
    body = with_tools(b"1.5,", INLINE_FLOATS)[:-1] + b',"a":NaN}'
    assert parse(CHAT_PATH, body).whole
    body = with_tools(b"1.5,", INLINE_FLOATS + 1)[:-1] + b',"a":NaN}'
    parsed = parse(CHAT_PATH, body)
    assert not parsed.whole and parsed.survey is not None
    assert len(parsed.decoded().tools) == INLINE_FLOATS + 2


@pytest.mark.parametrize("end", [b"", b',"a":NaN'])
def test_a_body_of_too_many_floats_is_not_decoded(end: bytes) -> None:
    most = with_tools(b"1e308,", MOST_FLOATS)[:-1] + end + b"}"
    assert len(all_fields(most).tools) == MOST_FLOATS + 1
    with pytest.raises(CostlyBody):
        all_fields(with_tools(b"1e308,", MOST_FLOATS + 1)[:-1] + end + b"}")
    with pytest.raises(CostlyBody):
        parse(CHAT_PATH, with_tools(b"1e308,", 4 * MOST_FLOATS)).decoded()


def test_each_body_has_its_own_budget() -> None:
    body = with_tools(b"1.5,", INLINE_FLOATS)
    for _ in range(3):
        assert len(inline_fields(body).tools) == INLINE_FLOATS + 1


@pytest.mark.parametrize("padding", [b"", b" " * 1_048_576])
def test_a_body_of_many_long_integers_is_not_decoded(padding: bytes) -> None:
    number = b"7" * 4_300 + b","
    few, many = (LONG_DIGITS_BYTES // 5_000, LONG_DIGITS_BYTES // 3_000)
    assert decoded_bytes(parse(CHAT_PATH, with_tools(number, few) + padding)) is not None
    assert decoded_bytes(parse(CHAT_PATH, with_tools(number, many) + padding)) is None


@given(st.lists(st.tuples(st.integers(0, 2_000), st.binary(max_size=20)), max_size=20))
def test_digits_are_counted_in_the_middle_of_long_runs(pieces: list[tuple[int, bytes]]) -> None:
    body = b"".join(b"7" * digits + other + b"x" for digits, other in pieces)
    runs = [len(run) for run in body.translate(bytes(55 if 48 <= byte <= 57 else 32 for byte in range(256))).split()]
    found = long_digit_bytes(body)
    assert sum(max(0, run - 502) for run in runs) <= found <= sum(run for run in runs if run > 250)


def test_token_ids_are_no_long_integers() -> None:
    assert long_digit_bytes(b"[" + b"123456," * 100_000 + b"1]") == 0


def test_no_place_is_never_looked_at() -> None:
    sampler, body = Sampler(), bytes(range(251)) * 4
    seen = [sampler.sample(body) for _ in range(251)]
    assert {sample[0] for sample in seen} == set(range(251))
    assert all(sample == sample[:1] * 4 for sample in seen)


@pytest.mark.parametrize(
    "element", [b"[],", b"[] ,", b"[]  ,", b"[]   ,", b"{    },", b"[     ],", b"[[[[]]]],        "]
)
def test_no_spacing_hides_containers(element: bytes) -> None:
    body = with_tools(element, INLINE_CONTAINERS)
    for _ in range(251):
        with pytest.raises(CostlyBody):
            inline_fields(body.ljust(100_000))
