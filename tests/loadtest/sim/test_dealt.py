import pytest

from loadtest.sim.dealt import Dealt

pytestmark = pytest.mark.source_only  # a stand-in for a compiled class


class Noting:
    """A gateway that notes the sessions it is asked for."""

    def __init__(self):
        self.sessions = []

    def place(self, name, session, call):
        self.sessions.append(session)
        return self


def test_sessions_are_dealt_out_in_turn_and_stay():
    one, two = Noting(), Noting()
    dealt = Dealt([one, two])
    placed = [dealt.place(session, session, None) for session in ("a", "b", "c", "a", "b")]
    assert placed == [one, two, one, one, two]
    assert one.sessions == ["a", "c", "a"]
    assert dealt.statistics() == {"sessions": 3}
