from math import nextafter

import pytest

from backends.engine.request import EngineRequest, EngineRequestState
from loadtest.sim.answers import Answer, StepEnds


@pytest.fixture
def steps():
    """Ten steps that end at 1, 2, ... 10 s; what they make is there half a second later."""
    ends = StepEnds(0.5)
    ends.ends_s.extend(range(1, 11))
    return ends


@pytest.fixture
def answer(steps):
    return Answer(EngineRequestState(EngineRequest("r", (1,), 5), 16, 0.0), (), steps, lambda tokens, finish: None)


def test_steps_arrive_as_time_goes_on(steps):
    assert not steps.look(1.4)
    assert steps.look(1.5) and steps.arrived == 1
    assert steps.look(4.0) and steps.arrived == 3
    assert not steps.look(4.4)


def test_tokens_come_one_a_step_from_the_first_on(answer):
    for token, step in ((1, 2), (2, 3), (5, 6)):
        answer.comes(token, step)
    assert [answer.made_by(steps, 5) for steps in (0, 2, 3, 4, 7, 9)] == [0, 0, 1, 2, 5, 5]
    assert list(answer.times_s(3)) == [3.5, 4.5, 5.5]


def test_a_break_in_between_is_kept(answer):
    """Three tokens, then preempted for two steps, then two more."""
    for token, step in ((1, 0), (4, 5)):
        answer.comes(token, step)
    assert [answer.made_by(steps, 5) for steps in range(8)] == [0, 1, 2, 3, 3, 3, 4, 5]
    assert answer.made_by(9, 4) == 4, "no more than there are"
    assert list(answer.times_s(5)) == [1.5, 2.5, 3.5, 6.5, 7.5]
    assert list(answer.times_s(2)) == [1.5, 2.5]
    assert list(answer.times_s(0)) == []


def test_a_step_has_arrived_when_its_end_and_the_way_have_passed_as_floats_have_it():
    """Sums and differences of floats round differently; the sum is what clients see."""
    ends = StepEnds(0.0005)
    ends.ends_s.extend(number * 0.0037 for number in range(1, 400))
    for end_s in ends.ends_s:
        arrives_s = end_s + 0.0005
        assert not ends.look(nextafter(arrives_s, 0.0))
        before = ends.arrived
        assert ends.look(arrives_s) and ends.arrived == before + 1
