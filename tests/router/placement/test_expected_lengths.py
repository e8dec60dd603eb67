"""Learned answer lengths, as a policy receives them."""

import pytest

from policies.spec import PolicySpec
from policies.view import Decision
from router.placement.lifecycle_events import Usage


def expected_decode_s(rig):
    """Collect the expected decode time of each later decision."""
    seen = []

    class Listener:
        def decide(self, request, fleet):
            seen.append(request.decode_s)
            return Decision(tuple(view.id for view in fleet.workers), "first")

    rig.dispatcher.set_policy(Listener(), PolicySpec("listener"))
    return seen


@pytest.mark.parametrize("usage", [Usage(100, 101, 0), Usage()], ids=["told", "counted"])
def test_lengths_are_learned_whether_or_not_a_stream_tells_its_usage(rig, usage):
    seen = expected_decode_s(rig)
    for _ in range(3):
        ticket = rig.dispatch(100)
        rig.dispatcher.first_token(ticket, 0.1)
        rig.dispatcher.progress(ticket, 101)
        rig.dispatcher.finished(ticket, usage, 2.1)
    assert seen == pytest.approx([0.0, 2.02, 2.02])
    rig.dispatch(100, max_tokens=10)
    assert seen[-1] == pytest.approx(0.2)
    rig.dispatch(100, hinted_tokens=900)
    assert seen[-1] == pytest.approx(18.0)


def test_an_answer_without_usage_that_was_not_streamed_teaches_no_length(rig):
    seen = expected_decode_s(rig)
    for _ in range(2):
        rig.dispatcher.finished(rig.dispatch(100), Usage(), 2.1)
    assert seen == [0.0, 0.0]
