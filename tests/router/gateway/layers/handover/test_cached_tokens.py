"""The number of cached tokens of another worker in the usage of an answer, wherever its bytes are cut."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.gateway.layers.handover.cached_tokens import CachedTokens, with_cached_tokens
from router.requests.answers.usage import TAIL_BYTES, find_usage

DETAILS = {"cached_tokens": 40, "created_cache_tokens": 0}
USAGE = {"prompt_tokens": 40, "completion_tokens": 2, "prompt_tokens_details": DETAILS}
TEXT = 'he wrote "cached_tokens": 40, "usage": {"cached_tokens": 40}'
FRAMES = [{"choices": [{"text": TEXT}], "usage": None}, {"choices": [], "usage": USAGE}]
STREAM = b"".join(b"data: " + json.dumps(frame).encode() + b"\n\n" for frame in FRAMES) + b"data: [DONE]\n\n"
BODY = json.dumps({"choices": [{"text": TEXT}], "usage": USAGE, "kv_transfer_params": None}).encode()


def passed(answer, cuts, cached_tokens, *, stream):
    """Return what the client gets of an answer that comes in pieces, and the filter."""
    seen = CachedTokens(lambda: cached_tokens)
    seen = seen if stream else seen.of_body()
    places = sorted({cut % (len(answer) + 1) for cut in cuts} | {0, len(answer)})
    shown = b"".join(seen.feed(answer[start:end]) for start, end in pairwise(places))
    return shown, seen


@given(cuts=st.lists(st.integers(0, 10_000), max_size=6), cached_tokens=st.integers(0, 10**6))
def test_a_streams_usage_has_the_other_number(cuts, cached_tokens):
    shown, seen = passed(STREAM, cuts, cached_tokens, stream=True)
    changed = STREAM.replace(b'"cached_tokens": 40, "created', b'"cached_tokens": %d, "created' % cached_tokens)
    assert shown + seen.rest() == changed
    assert find_usage([seen.tail()]).cached_tokens == cached_tokens


@given(cuts=st.lists(st.integers(0, 10_000), max_size=6), cached_tokens=st.integers(0, 10**6))
def test_a_bodys_usage_has_the_other_number(cuts, cached_tokens):
    shown, seen = passed(BODY, cuts, cached_tokens, stream=False)
    assert find_usage([seen.tail()]).cached_tokens == cached_tokens
    answer = json.loads(shown + seen.rest())
    assert answer["choices"][0]["text"] == TEXT
    assert answer["usage"] == USAGE | {"prompt_tokens_details": DETAILS | {"cached_tokens": cached_tokens}}


@pytest.mark.parametrize("stream", [True, False])
def test_an_unknown_number_is_not_reported(stream):
    shown, seen = passed(STREAM if stream else BODY, [], None, stream=stream)
    shown += seen.rest()
    frame = json.loads(shown.split(b"\n\n")[1][6:]) if stream else json.loads(shown)
    assert frame["usage"] == USAGE | {"prompt_tokens_details": None}


def test_of_a_long_body_only_the_end_is_held_back():
    seen = CachedTokens(lambda: 1).of_body()
    body = json.dumps({"choices": "x" * 10 * TAIL_BYTES, "usage": USAGE}).encode()
    shown = b"".join(seen.feed(body[start : start + 50_000]) for start in range(0, len(body), 50_000))
    assert len(body) - len(shown) <= 2 * TAIL_BYTES
    assert json.loads(shown + seen.rest())["usage"]["prompt_tokens_details"]["cached_tokens"] == 1


@pytest.mark.parametrize("body", [b"", b"{}", b'{"usage":', b'{"usage":{"prompt_tokens":1}}', b'{"usage":{{{'])
def test_a_body_without_the_number_is_unchanged(body):
    assert with_cached_tokens(body, 3) == body
    assert with_cached_tokens(body, None) == body


@pytest.mark.parametrize(("cached_tokens", "shown"), [(16, (24, 16)), (0, (40, 0)), (None, (40, None))])
@pytest.mark.parametrize("stream", [True, False])
def test_a_messages_other_tokens_count_as_its_input(stream, cached_tokens, shown):
    usage = {"input_tokens": 1, "output_tokens": 2, "cache_read_input_tokens": 39}
    body = {"type": "message_delta", "delta": {}, "usage": usage}
    raw = json.dumps(body).encode()
    answer, seen = passed(
        b"event: message_delta\ndata: %b\n\n" % raw if stream else raw, [9], cached_tokens, stream=stream
    )
    found = json.loads((answer + seen.rest()).removeprefix(b"event: message_delta\ndata: "))["usage"]
    assert (found["input_tokens"], found["cache_read_input_tokens"], found["output_tokens"]) == (*shown, 2)


@pytest.mark.parametrize("cached_tokens", [16, None])
def test_a_response_always_has_a_number(cached_tokens):
    usage = {"input_tokens": 40, "input_tokens_details": {"cached_tokens": 39}, "output_tokens": 2}
    answer, seen = passed(json.dumps({"usage": usage}).encode(), [], cached_tokens, stream=False)
    found = json.loads(answer + seen.rest())["usage"]
    assert found == usage | {"input_tokens_details": {"cached_tokens": cached_tokens or 0}}
