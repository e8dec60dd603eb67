import pytest

from loadtest.sim.sessions import TextCall, sessions_of
from loadtest.workload.plan import Call, Plan, Session
from loadtest.workload.text import Text, chain

FIRST = Call(Text.of([(1, 20), (2, 7)]), (3, 10), pause_s=0.5)
SECOND = Call(Text.of([(1, 20), (2, 7), (3, 10), (4, 30)]), (5, 9), pause_s=2.0, max_tokens=50)


def test_gateway_and_worker_know_a_text_by_the_same_hashes():
    call = TextCall(SECOND)
    request = call.request("name", 8)
    full = chain(SECOND.prompt.plus(SECOND.answer), 8)
    assert request.hashed.chain == full and len(full) == 76 // 8
    assert list(call.prompt().chain(8)) == full[: 67 // 8]
    assert (call.prompt_tokens, call.prompt().tokens, request.hashed.prompt_tokens) == (67, 67, 67)
    assert (request.max_tokens, request.stop_after, call.max_tokens) == (50, 9, 50)


@pytest.mark.source_only
def test_a_call_that_goes_on_from_another_hashes_only_what_is_new(monkeypatch):
    first = TextCall(FIRST)
    known = first.chain(8)
    begun_with = []

    def extend(links, text, block_tokens):
        begun_with.append(list(links))
        return chain(text, block_tokens)

    monkeypatch.setattr("loadtest.sim.sessions.extend", extend)
    assert TextCall(SECOND, first).chain(8) == chain(SECOND.prompt.plus(SECOND.answer), 8)
    other = Call(Text.of([(9, 64)]), (5, 9))
    assert TextCall(other, first).chain(8) == chain(other.prompt.plus(other.answer), 8)
    assert begun_with == [known, []]


def test_without_a_limit_the_engine_is_given_the_answers_length():
    request = TextCall(FIRST).request("name", 8)
    assert (request.max_tokens, request.stop_after) == (10, 10)
    assert TextCall(FIRST).max_tokens is None, "which the gateway is not told"


def test_a_session_begins_after_its_first_pause():
    planned = Plan.of("drawn", [Session("s", 3.0, (FIRST, SECOND))], 10.0)
    (session,) = sessions_of(planned, leaves_after_s=60.0)
    assert (session.id, session.start_s) == ("s", 3.5)
    assert [(call.pause_s, call.leaves_after_s, call.kind) for call in session.calls] == [
        (0.5, 60.0, "chat"),
        (2.0, 60.0, "chat"),
    ]
