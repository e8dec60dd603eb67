import pytest

from policies.spec import PolicySpec
from policies.view import Decision
from router.placement.request import Usage


def expected_decode_s(rig):
    """Collect the expected decode time of each later decision."""
    seen = []

    class Listener:
        def decide(self, request, fleet):
            seen.append(request.decode_s)
            return Decision(tuple(view.id for view in fleet.workers), "first")

    rig.core.policies.default.adopt(Listener(), PolicySpec("listener"))
    return seen


def answer(rig, events, usage):
    ticket = rig.dispatch(100)
    rig.core.tickets.first_token(ticket, 0.1)
    rig.core.tickets.progress(ticket, events)
    rig.core.tickets.finished(ticket, usage, 2.1)
    return ticket


def test_lengths_are_learned_from_usage(rig):
    seen = expected_decode_s(rig)
    for _ in range(3):
        answer(rig, 101, Usage(100, 101, 0))
    assert seen == pytest.approx([0.0, 2.02, 2.02])
    rig.dispatch(100, max_tokens=10)
    assert seen[-1] == pytest.approx(0.2)
    rig.dispatch(100, hinted_tokens=900)
    assert seen[-1] == pytest.approx(18.0)


def test_events_alone_teach_no_length(rig):
    seen = expected_decode_s(rig)
    tickets = [answer(rig, 101, Usage()) for _ in range(3)]
    assert seen == [0.0] * 3 and [ticket.output_tokens for ticket in tickets] == [None] * 3


def test_events_count_as_many_tokens_as_in_streams_that_report_usage(make_rig):
    rig = make_rig(workers=1)
    assert answer(rig, 10, Usage(100, 80, 0)).output_tokens == 80
    assert answer(rig, 20, Usage()).output_tokens == 160
    running = rig.dispatch(100)
    rig.core.tickets.first_token(running, 0.1)
    rig.core.tickets.progress(running, 5)
    assert running.reservation.output_tokens == 40


def test_an_answer_without_any_event_leaves_the_tokens_of_an_event_as_they_are(make_rig):
    rig = make_rig(workers=1)
    answer(rig, 10, Usage(100, 20, 0))
    answer(rig, 0, Usage(100, 500, 0))
    answer(rig, 10, Usage(100, 0, 0))
    assert answer(rig, 10, Usage()).output_tokens == 20


def test_an_answer_without_usage_that_was_not_streamed_teaches_no_length(rig):
    seen = expected_decode_s(rig)
    for _ in range(2):
        rig.core.tickets.finished(rig.dispatch(100), Usage(), 2.1)
    assert seen == [0.0, 0.0]
