"""Transfer parameters leave an answer, wherever its bytes are cut, and its token ids are known."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.gateway.http.usage import find_usage
from router.gateway.rewrites.answer_ids import AnswerIds
from router.gateway.rewrites.usage_frame import HELD_BYTES, data_of

PARAMS = {"do_remote_decode": True, "remote_block_ids": [[1, 2]], "remote_host": "h"}
TEXT = 'he wrote ,"kv_transfer_params":{"a":1},"token_ids":[7]'
USAGE = {"prompt_tokens": 4, "completion_tokens": 3}
FRAMES = [
    {"choices": [{"text": TEXT, "token_ids": [1, 2], "prompt_token_ids": [8, 9]}]},
    {"choices": [{"text": "", "finish_reason": "stop", "token_ids": [3]}], "kv_transfer_params": PARAMS},
    {"choices": [], "usage": USAGE},
]
BODY = {"choices": [{"text": TEXT, "token_ids": [1, 2, 3]}], "usage": USAGE, "kv_transfer_params": PARAMS}


def encoded(value):
    return json.dumps(value, separators=(",", ":")).encode()


STREAM = b"".join(b"data: " + encoded(frame) + b"\n\n" for frame in FRAMES) + b"data: [DONE]\n\n"


def passed(answer, cuts, *, stream, collects=True):
    """Return what the client gets of an answer that comes in pieces, and the filter."""
    seen = AnswerIds(collects=collects) if stream else AnswerIds(collects=collects).of_body()
    places = sorted({cut % (len(answer) + 1) for cut in cuts} | {0, len(answer)})
    shown = b"".join(seen.feed(answer[start:end]) for start, end in pairwise(places))
    return shown, seen


@given(cuts=st.lists(st.integers(0, 10_000), max_size=6))
def test_a_stream_passes_without_parameters(cuts):
    shown, seen = passed(STREAM, cuts, stream=True)
    assert shown + seen.rest() == STREAM.replace(b',"kv_transfer_params":' + encoded(PARAMS), b"")
    seen.ended()
    assert (json.loads(seen.params), list(seen.ids)) == (PARAMS, [1, 2, 3])
    assert find_usage([seen.tail()]).completion_tokens == 3


@given(cuts=st.lists(st.integers(0, 10_000), max_size=6))
def test_a_body_passes_with_null_in_their_place(cuts):
    shown, seen = passed(encoded(BODY), cuts, stream=False)
    assert find_usage([seen.tail()]).completion_tokens == 3
    seen.ended()
    assert json.loads(shown + seen.rest()) == BODY | {"kv_transfer_params": None}
    assert (json.loads(seen.params), list(seen.ids)) == (PARAMS, [1, 2, 3])


def test_ids_are_collected_only_where_they_are_wanted():
    _, seen = passed(STREAM, [], stream=True, collects=False)
    assert (len(seen.ids), json.loads(seen.params)) == (0, PARAMS)


def test_ids_of_another_form_count_as_none():
    _, seen = passed(STREAM.replace(b'"token_ids":[3]', b'"token_ids":[-3]'), [], stream=True)
    assert len(seen.ids) == 0


@pytest.mark.parametrize("cuts", [(), range(0, 2 * HELD_BYTES, 100_000)])
def test_a_long_body_passes_without_parameters_and_its_ids_do_not_count(cuts):
    body = encoded(BODY | {"choices": [{"text": "x" * HELD_BYTES, "token_ids": [1, 2, 3]}]})
    shown, seen = passed(body, cuts, stream=False)
    assert len(shown) > HELD_BYTES // 2
    assert json.loads(shown + seen.rest()) == json.loads(body) | {"kv_transfer_params": None}
    assert (json.loads(seen.params), len(seen.ids)) == (PARAMS, 0)


def test_events_with_null_for_parameters_are_passed_on_at_once():
    """vLLM writes null into every event but the last one."""
    event = b"data: " + encoded(FRAMES[0] | {"kv_transfer_params": None}) + b"\n\n"
    assert AnswerIds(collects=False).feed(event) is event


def test_data_ends_with_its_line():
    assert data_of(b"event: x\r\ndata: {\r\ndata:}\r\n\r\n") == b"{\n}"
    assert data_of(b"data: {}\r\r") == b"{}"
