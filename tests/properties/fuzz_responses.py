"""Mutated responses raise no exception and leave nothing behind. A client gets an answer only if a strict reader of the
worker's bytes gets the same one.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.gateway.layers.usage.usage_frame import UsageFrame
from router.requests.answers.sse import FirstEvent
from router.requests.answers.usage import find_usage
from tests.conformance.response_cases import HEAD_REQUEST, RESPONSE_CASES
from tests.properties.harness import CUTS, cut_up
from tests.properties.limits import limited
from tests.properties.mutations import MUTATIONS, budget, mutated
from tests.properties.strict import read_final
from tests.properties.test_response_splits import REQUEST, Outcome

# No timeout of the test: each example has limits on CPU time and memory.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(0), pytest.mark.usefixtures("bounded_memory")]
ROWS = [case.raw for case in RESPONSE_CASES.values() if len(case.raw) < 5_000]
FAULTS = (b'"code":"worker_died_in_stream"', b'"code":"bad_upstream_response"')


def check(raw, pieces, closes, request):
    outcome = Outcome(pieces, request, closes)
    answer = outcome.answer
    if answer is None:
        assert outcome.raw == b""
        return
    assert len(outcome.raw) == answer.end or answer.framing == "chunked"
    if answer.whole and answer.status < 500 and not any(fault in answer.content for fault in FAULTS):
        meant = read_final(raw, bodiless=outcome.bodiless)
        assert meant is not None and meant.whole
        assert (answer.status, answer.content) == (meant.status, meant.content)


@budget(10)
@given(st.sampled_from(ROWS), MUTATIONS, CUTS, st.booleans(), st.sampled_from([REQUEST, REQUEST, HEAD_REQUEST]))
@limited
def test_mutated_rows(row, mutations, cuts, closes, request):
    raw = mutated(row, mutations)
    check(raw, [raw], closes, request)
    check(raw, cut_up(raw, cuts), closes, request)


@budget(5)
@given(st.binary(max_size=200), st.sampled_from(ROWS), CUTS, st.booleans())
@limited
def test_bytes_behind_a_row(noise, row, cuts, closes):
    check(row + noise, cut_up(row + noise, cuts), closes, REQUEST)
    check(noise, cut_up(noise, cuts), closes, REQUEST)


EVENT_PARTS = st.sampled_from(
    [
        b"data: ", b"data:", b"event: error", b"event: response.created", b": c", b"\n", b"\n\n", b"\r\n",
        b"\r\n\r\n", b"\r", b'{"error":{"message":"m","code":500}}', b'{"choices":[]}',
        b'{"choices":[],"usage":{"prompt_tokens":1}}', b'"usage":{', b"{" * 50, b"[" * 2_000, b"}", b"[DONE]",
        b"\xff", b'"finish_reason":"stop"',
    ]
)  # fmt: skip


@budget(10)
@given(st.lists(EVENT_PARTS, max_size=12).map(b"".join), CUTS)
@limited
def test_events(raw, cuts):
    pieces = cut_up(raw, cuts)
    find_usage(pieces)
    whole, verdict = FirstEvent().feed(raw), False
    first = FirstEvent()
    for piece in pieces:
        if verdict is False:
            verdict = first.feed(piece)
    # a line break of two bytes, divided by a read, looks like the end of one more, empty event
    assert verdict == whole
    shown = UsageFrame(None), UsageFrame(None)
    assert shown[0].feed(raw) + shown[0].rest() == b"".join(map(shown[1].feed, pieces)) + shown[1].rest()
    assert shown[0].taken == shown[1].taken
