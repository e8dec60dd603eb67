import pytest

from router.placement.request import FailurePoint, Usage

TOKEN_S = 1e-3
TURN = 160


@pytest.fixture
def talk(make_rig):
    """A worker of known speed, with a conversation whose next turn has come at once five times."""
    rig = make_rig(workers=1)
    rig.now_s = 0.0
    for number in range(10):
        turn(rig, 50 + 20 * number, start=10_000 * (number + 1))
        rig.now_s += 10.0
    for number in range(1, 7):
        turn(rig, number * TURN)
    return rig


def turn(rig, tokens, start=0, end=None, **fields):
    ticket = rig.dispatch(tokens, start, now_s=rig.now_s, **fields)
    if end is not None:
        end(rig, ticket)
        return
    rig.now_s += 0.001 + TOKEN_S * (tokens - ticket.predicted_cached_tokens)
    rig.core.tickets.first_token(ticket, rig.now_s)
    rig.core.tickets.finished(ticket, Usage(tokens, 1, ticket.predicted_cached_tokens), rig.now_s)


def idle_context(rig):
    (view,) = rig.core.loads.shown(rig.fleet.candidates, rig.now_s)
    return view.idle_tokens


def test_a_conversation_is_idle_context_until_its_next_turn_and_not_for_long(talk):
    assert idle_context(talk) == 6 * TURN
    going_on = talk.dispatch(7 * TURN, now_s=talk.now_s)
    assert idle_context(talk) == 0
    assert going_on.record.fleet.workers[0].idle_tokens == 6 * TURN, "as it was when the choice was made"
    talk.core.tickets.first_token(going_on, talk.now_s)
    talk.core.tickets.progress(going_on, 40)
    talk.core.tickets.finished(going_on, Usage(7 * TURN, 40, 6 * TURN), talk.now_s)
    assert idle_context(talk) == 7 * TURN, "without the answer"
    talk.now_s += 8 * TURN * TOKEN_S
    assert idle_context(talk) == 0, "longer than its prefill would take"


def after_first_token(then):
    def end(rig, ticket):
        rig.core.tickets.first_token(ticket, rig.now_s)
        then(rig, ticket)

    return end


def finished(rig, ticket, status=200):
    rig.core.tickets.finished(ticket, Usage(7 * TURN, 1, 0), rig.now_s, status=status)


def cancelled(rig, ticket):
    rig.core.tickets.cancelled(ticket, rig.now_s)


def failed(rig, ticket):
    rig.core.tickets.failed(ticket, FailurePoint.STREAM, rig.now_s, "gone")


@pytest.mark.parametrize(
    ("end", "stream", "rests"),
    [
        (after_first_token(finished), True, True),
        (finished, False, True),
        (after_first_token(cancelled), True, True),
        (cancelled, True, False),
        (after_first_token(failed), True, False),
        (failed, True, False),
        (lambda rig, ticket: finished(rig, ticket, 400), True, False),
    ],
)
def test_prefilled_context_becomes_idle(talk, end, stream, rests):
    turn(talk, 7 * TURN, start=500_000, end=end, stream=stream)
    assert idle_context(talk) == (13 if rests else 6) * TURN


def test_explaining_changes_nothing(talk):
    for _ in range(3):
        explained = talk.core.explainer.explain(talk.ask(7 * TURN), talk.now_s)
        assert explained.to_builtins()["candidates"][0]["idle_tokens"] == 6 * TURN
    assert idle_context(talk) == 6 * TURN
