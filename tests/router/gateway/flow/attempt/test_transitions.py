import pytest

from router.gateway.flow.attempt.transitions import ATTEMPT_TRANSITIONS, AttemptState, Release
from router.gateway.flow.outcomes import AttemptEvent, Outcome

DONE = (AttemptState.UNSENT, AttemptState.OVER)
ENDS = frozenset({Outcome.ANSWERED, Outcome.NOT_FOUND, Outcome.ERRED, Outcome.FAILED})
ROWS = [pytest.param(*key, row, id=f"{key[0].name}-{key[1].name}") for key, row in ATTEMPT_TRANSITIONS.items()]


@pytest.mark.parametrize(("state", "event", "row"), ROWS)
def test_a_row_says_why_it_ends_what_it_ends(state, event, row):
    assert state not in DONE
    ends = ENDS.intersection(row.outcomes)
    assert bool(ends) == (row.to in (AttemptState.ENDED, *DONE) and event is not AttemptEvent.RELEASED)
    assert (row.point is None) == (not ends or row.outcomes == (Outcome.ANSWERED,))
    if row.to is AttemptState.ENDED:
        assert row.release is Release.KEEP  # the client may get what the connection has
    elif row.to is AttemptState.OVER and event is not AttemptEvent.RELEASED:
        assert row.release is not Release.KEEP


def test_every_state_is_reached_and_can_be_given_up_and_released():
    reached, found = {AttemptState.DIALLING}, 0
    while found < len(reached):
        found = len(reached)
        reached |= {row.to for (state, _), row in ATTEMPT_TRANSITIONS.items() if state in reached}
    assert reached == set(AttemptState)
    for state in reached.difference(DONE):
        assert (state, AttemptEvent.GIVEN_UP) in ATTEMPT_TRANSITIONS
        assert ATTEMPT_TRANSITIONS[state, AttemptEvent.RELEASED].to in DONE


def test_every_event_but_an_incomplete_read_is_expected_somewhere():
    assert {event for _, event in ATTEMPT_TRANSITIONS} == set(AttemptEvent) - {AttemptEvent.INCOMPLETE}
