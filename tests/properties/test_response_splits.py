"""The places at which reads divide a worker's bytes change nothing for the client, and no faulty answer looks
complete.
"""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.placement.request import Usage
from tests.conformance.corpus import BODY, H, L, P
from tests.conformance.response_cases import RESPONSE_CASES
from tests.properties.harness import CUTS, World, byte_by_byte, cut_up
from tests.properties.strict import read_message
from tests.support.gateway_rig import COMPILED

REQUEST = P + H + L + b"\r\n" + BODY


class Outcome:
    """One request and its result. `written` has the number of bytes that the client had after each piece."""

    def __init__(self, pieces, request=REQUEST, closes=False):
        world = self.world = World()
        client = world.client()
        client.send(request)
        (worker,) = world.dials
        self.written = []
        for piece in pieces:
            worker.send(piece)
            self.written.append(len(client.got))
        if closes:
            worker.leave()
        self.raw, self.closed = client.got, client.closed
        self.pooled = world.pooled
        self.events = [event for event in world.lifecycle if not event.startswith("progress")]
        self.usage = world.usage
        self.bodiless = request.startswith(b"HEAD ")
        client.leave()
        worker.leave()
        assert world.at_rest()
        assert world.failures == []

    @property
    def answer(self):
        return read_message(self.raw, answer=True, closed=self.closed, bodiless=self.bodiless)

    @property
    def meaning(self):
        answer = self.answer
        return answer.start, answer.lines, answer.content, answer.whole, self.events, self.usage


ANSWERS = [name for name, case in RESPONSE_CASES.items() if case.gets == "answer"]
FAULTS = [name for name in RESPONSE_CASES if name not in ANSWERS]
# In one read, the bytes are one answer, and the gateway need not end the client's connection. In several reads, they
# are an answer and then further bytes on an idle connection, which is closed.
BEHIND_THE_END = {"Chunks: line breaks after the end"}


def check(name, pieces):
    case = RESPONSE_CASES[name]
    split = Outcome(pieces, case.request, case.closes)
    if name in FAULTS:
        check_fault(case.raw, split)
        return
    whole = Outcome([case.raw], case.request, case.closes)
    assert split.meaning == whole.meaning
    assert (split.answer.status, split.answer.content) == (case.status, case.content)
    if name not in BEHIND_THE_END:
        assert (split.closed, split.pooled) == (whole.closed, whole.pooled)
        assert split.raw == whole.raw or split.answer.framing == "chunked"


def check_fault(raw, outcome):
    """Check that a client gets either a whole answer with which the worker's bytes begin, or an error about the
    fault.
    """
    answer = outcome.answer
    if answer is None:
        assert outcome.raw == b"" and outcome.closed
        return
    assert not outcome.pooled
    if answer.status >= 500:
        assert outcome.raw[answer.end :] == b""
        assert json.loads(answer.content)["error"]["code"] in ("worker_failed", "no_worker_available")
    elif not answer.whole:
        assert outcome.closed
    elif b'"code":"worker_died_in_stream"' in answer.content or b'"code":"bad_upstream_response"' in answer.content:
        assert answer.content.endswith(b"data: [DONE]\n\n")
    else:
        meant = read_message(raw, answer=True, closed=True, bodiless=outcome.bodiless)
        assert meant.whole and meant.end < len(raw)
        assert answer.content == meant.content


@pytest.mark.parametrize("name", RESPONSE_CASES)
def test_each_row_byte_by_byte(name):
    check(name, byte_by_byte(RESPONSE_CASES[name].raw))


@given(st.sampled_from(ANSWERS), CUTS)
def test_each_answer_cut_anywhere(name, cuts):
    check(name, cut_up(RESPONSE_CASES[name].raw, cuts))


@given(st.sampled_from(FAULTS), CUTS)
def test_each_fault_cut_anywhere(name, cuts):
    check(name, cut_up(RESPONSE_CASES[name].raw, cuts))


# streams

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
COMMENT = st.sampled_from([b": ping\n\n", b":\r\n\r\n", b"id: 1\n\n", b"retry: 5\n\n", b"\n"])
TEXT = st.text(max_size=20) | st.sampled_from(['"usage":{"prompt_tokens":9}', "data: \n\n", "\r\n0\r\n\r\n", "\u2028"])
END = st.sampled_from([b"\n\n", b"\r\n\r\n", b"\n\n", b"\r\r"])
DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error":{"message":"boom","code":500}}\n\n'


@st.composite
def token(draw):
    frame = {"choices": [{"index": 0, "delta": {"content": draw(TEXT)}}]}
    return b"data: " + json.dumps(frame, ensure_ascii=draw(st.booleans())).encode("utf-8", "replace") + draw(END)


@st.composite
def usage(draw):
    prompt, cached = draw(st.integers(0, 9_999)), draw(st.none() | st.integers(0, 9_999))
    details = None if cached is None else {"cached_tokens": cached}
    frame = {
        "choices": [],
        "usage": {"prompt_tokens": prompt, "completion_tokens": 3, "prompt_tokens_details": details},
    }
    return b"data: " + json.dumps(frame).encode() + draw(END), Usage(prompt, 3, cached)


def chunked(content, cuts):
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in cut_up(content, cuts)) + b"0\r\n\r\n"


@given(st.lists(COMMENT, max_size=3), st.lists(token(), min_size=1, max_size=8), usage(), CUTS, CUTS, st.booleans())
def test_a_stream_passes_byte_for_byte(comments, tokens, reported, chunk_cuts, cuts, each_byte):
    frame, expected = reported
    content = b"".join([*comments, *tokens, frame, DONE])
    body = chunked(content, chunk_cuts)
    raw = HEAD + body
    pieces = byte_by_byte(raw) if each_byte else cut_up(raw, cuts)
    outcome = Outcome(pieces)
    assert outcome.raw.endswith(b"\r\n\r\n" + body)
    assert outcome.answer.content == content
    assert COMPILED or outcome.events == ["ticket", "first_token", "finished 200"]
    assert COMPILED or outcome.usage == expected
    assert (outcome.closed, outcome.pooled) == (False, 1)
    check_first_event(outcome, pieces, raw, b"".join(comments), b"".join([*comments, tokens[0]]))


def check_first_event(outcome, pieces, raw, before, until):
    """Check that no byte goes out before the first real event has arrived, and that no byte is held back after it."""
    read = 0
    for piece, written in zip(pieces, outcome.written, strict=True):
        read += len(piece)
        there = shown(raw[:read])
        if len(there) <= len(before):
            assert written == 0
        elif len(there) >= len(until):
            assert outcome.raw[:written].endswith(raw[len(HEAD) : read])


def shown(raw):
    message = read_message(raw, answer=True)
    return b"" if message is None else message.content


@given(st.lists(COMMENT, max_size=3), CUTS, CUTS, st.booleans())
def test_an_error_in_place_of_the_first_event_is_no_answer(comments, chunk_cuts, cuts, each_byte):
    raw = HEAD + chunked(b"".join([*comments, ERROR, DONE]), chunk_cuts)
    outcome = Outcome(byte_by_byte(raw) if each_byte else cut_up(raw, cuts))
    assert (outcome.answer.status, outcome.pooled) == (503, 0)
    assert b"boom" not in outcome.raw or json.loads(outcome.answer.content)["error"]["code"] == "worker_failed"
    assert COMPILED or outcome.events == ["ticket", "retry answered", "failed answered"]


@given(st.lists(token(), min_size=1, max_size=6), CUTS, CUTS, st.integers(1, 1 << 30))
def test_a_stream_that_is_lost_says_so_or_shows_it(tokens, chunk_cuts, cuts, lost):
    whole = HEAD + chunked(b"".join([*tokens, DONE]), chunk_cuts)
    raw = whole[: lost % len(whole)]
    outcome = Outcome(cut_up(raw, cuts), closes=True)
    check_fault(raw, outcome)
    answer = outcome.answer
    assert answer is None or answer.status == 503 or not answer.whole or b'"worker_died_in_stream"' in answer.content


# streams that the gateway makes report usage, and from which it removes the usage frame

ASKING = b'{"model":"m","messages":[],"stream":true}'
STREAM_REQUEST = P + H + b"Content-Length: %d\r\n\r\n" % len(ASKING) + ASKING
FINISH = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'


@pytest.mark.source_only
@given(st.lists(token(), min_size=1, max_size=5), usage(), CUTS, CUTS, st.booleans())
def test_a_usage_frame_is_taken_out_wherever_it_is_cut(tokens, reported, chunk_cuts, cuts, each_byte):
    frame, expected = reported
    world = World(observe_usage=1.0)
    client = world.client()
    client.send(STREAM_REQUEST)
    (worker,) = world.dials
    worker.send(HEAD + chunked(b"".join([*tokens, FINISH, DONE]), []))
    first = read_message(client.got, answer=True)
    client.send(STREAM_REQUEST)
    assert b'"include_usage":true' in worker.got
    raw = HEAD + chunked(b"".join([*tokens, FINISH, frame, DONE]), chunk_cuts)
    worker.send(*(byte_by_byte(raw) if each_byte else cut_up(raw, cuts)))
    second = read_message(client.got[first.end :], answer=True)
    assert (second.content, second.whole, first.end + second.end) == (first.content, True, len(client.got))
    assert world.usage == expected
    assert (client.closed, world.pooled, world.failures) == (False, 1, [])
