import math
from types import SimpleNamespace

import pytest

from router.config.model import TimeoutsConfig
from router.gateway.flow.deadlines import QUIET_LIMITS, Deadline, Trickle
from router.gateway.flow.flow import Flow
from router.gateway.flow.transitions import Event, RequestState

ARRIVED_S = 100.0
TIMEOUTS = TimeoutsConfig(
    connect_s=5,
    first_event_s=60,
    stream_idle_s=30,
    total_s=1_000,
    queue_s=20,
    header_delay_s=10,
    comment_interval_s=4,
)


def attempt(sent=False, since_s=ARRIVED_S, limit_s=math.inf, begins_early=True):
    return SimpleNamespace(sent=sent, since_s=since_s, limit_s=limit_s, begins_early=begins_early)


@pytest.fixture
def flow():
    return Flow(TIMEOUTS, ARRIVED_S)


def feed(flow, *events, attempt=None):
    for event in events:
        assert flow.handle(event, attempt), event


def test_identification_is_limited_by_the_total_time_alone(flow):
    assert flow.next_s(0.0) == ARRIVED_S + TIMEOUTS.total_s
    assert flow.due(1_099.9, 0.0) is Deadline.NOTHING
    assert flow.due(1_100.0, 0.0) is Deadline.TOTAL


def test_a_queued_request_waits_from_the_start_of_its_state(flow):
    feed(flow, Event.IDENTIFIED, Event.NO_WORKER)
    flow.since_s = 103.0
    assert flow.next_s(0.0) == 123.0
    assert flow.due(123.0, 0.0) is Deadline.STATE


def test_an_attempt_has_other_limits_before_and_after_it_is_sent(flow):
    running = attempt()
    feed(flow, Event.IDENTIFIED)
    feed(flow, Event.PLACED, attempt=running)
    assert flow.next_s(0.0) == ARRIVED_S + TIMEOUTS.connect_s
    assert flow.due(104.9, 0.0) is Deadline.NOTHING
    assert flow.due(105.0, 0.0) is Deadline.STATE
    running.sent, running.since_s = True, 102.0
    assert flow.next_s(0.0) == 162.0
    assert flow.due(105.0, 0.0) is Deadline.NOTHING


def test_an_attempt_may_have_a_shorter_limit_of_its_own(flow):
    flow.state, flow.attempt = RequestState.WAITING, attempt(sent=True, limit_s=10.0)
    assert flow.next_s(0.0) == ARRIVED_S + 10.0
    flow.attempt = attempt(sent=True, limit_s=1_000.0)
    assert flow.next_s(0.0) == ARRIVED_S + TIMEOUTS.first_event_s


def test_an_answer_in_one_piece_is_limited_by_the_total_time_and_by_its_own_limit(flow):
    flow.state, flow.attempt = RequestState.WAITING, attempt(sent=True, begins_early=False)
    assert flow.next_s(0.0) == ARRIVED_S + TIMEOUTS.total_s
    assert flow.due(1_100.0, 0.0) is Deadline.TOTAL
    flow.attempt = attempt(sent=True, limit_s=10.0, begins_early=False)
    assert flow.next_s(0.0) == ARRIVED_S + 10.0
    flow.attempt = attempt(sent=False, begins_early=False)
    assert flow.next_s(0.0) == ARRIVED_S + TIMEOUTS.connect_s


def test_comments_are_due_after_a_delay_and_then_at_intervals(flow):
    assert flow.due(110.0, 0.0) is Deadline.NOTHING
    flow.comments_from(ARRIVED_S)
    assert flow.next_s(0.0) == 110.0
    assert flow.due(110.0, 0.0) is Deadline.COMMENT
    flow.comment_sent(110.0)
    assert flow.due(110.0, 0.0) is Deadline.NOTHING
    assert flow.next_s(0.0) == 114.0


def test_an_answer_in_one_piece_is_limited_by_its_last_read_and_gets_no_comments(flow):
    flow.comments_from(ARRIVED_S)
    flow.state = RequestState.STREAMING
    flow.answer_began(101.0, events=False)
    assert (flow.since_s, flow.next_s(101.0)) == (101.0, 131.0)
    assert flow.next_s(200.0) == 230.0
    assert flow.due(230.0, 200.0) is Deadline.STATE
    assert flow.due(1_100.0, 1_090.0) is Deadline.TOTAL


def test_a_quiet_stream_gets_comments_at_intervals_after_its_last_read(flow):
    flow.state = RequestState.STREAMING
    flow.answer_began(101.0, events=True)
    assert flow.next_s(101.0) == 105.0
    assert flow.due(104.9, 101.0) is Deadline.NOTHING
    assert flow.due(105.0, 101.0) is Deadline.COMMENT
    assert flow.due(105.0, 103.0) is Deadline.NOTHING, "the client has received something since"
    assert flow.next_s(103.0) == 107.0
    flow.comment_sent(107.0)
    assert flow.next_s(103.0) == 111.0
    assert flow.due(133.0, 103.0) is Deadline.STATE


def test_a_quiet_stream_goes_on_while_its_worker_works(flow):
    flow.state = RequestState.STREAMING
    flow.answer_began(101.0, events=True)
    flow.comment_sent(1_000.0)
    assert flow.due(131.0, 101.0) is Deadline.STATE
    assert flow.goes_on(131.0, 101.0, worked_s=125.0)
    assert flow.next_s(101.0) == 155.0
    assert flow.due(154.9, 101.0) is Deadline.NOTHING
    assert not flow.goes_on(155.0, 101.0, worked_s=125.0), "the worker hangs, too"
    assert flow.next_s(200.0) == 230.0


def test_a_stream_that_is_quiet_for_very_long_has_stalled(flow):
    flow.state = RequestState.STREAMING
    last_s = 101.0 + QUIET_LIMITS * TIMEOUTS.stream_idle_s
    assert flow.goes_on(last_s - 1, 101.0, worked_s=last_s - 2)
    assert not flow.goes_on(last_s, 101.0, worked_s=last_s - 1)


def test_a_tunnel_has_no_total_time(flow):
    flow.comments_from(ARRIVED_S)
    flow.state = RequestState.TUNNEL
    flow.tunnel_began()
    assert flow.next_s(5_000.0) == 5_030.0


def test_an_ended_request_has_no_state_deadline(flow):
    flow.state = RequestState.OVER
    flow.tunnel_began()
    assert flow.next_s(0.0) == math.inf


@pytest.mark.parametrize(
    ("events", "size_bytes", "stalled"),
    [(0, 0, False), (0, 1, True), (0, 479, True), (0, 480, False), (1, 100, False)],
    ids=["nothing", "a byte", "a few bytes", "a large event", "an event"],
)
def test_a_stream_trickles_if_an_idle_time_brings_almost_nothing(events, size_bytes, stalled):
    trickle = Trickle()
    assert not trickle.stalled(129.0, 100.0, 30.0, 0, 0), "too early to say"
    assert trickle.stalled(130.0, 100.0, 30.0, events, size_bytes) is stalled


def test_a_pause_of_the_client_is_not_the_workers():
    trickle = Trickle()
    trickle.seen(120.0, 5, 1_000)
    assert not trickle.stalled(149.0, 100.0, 30.0, 5, 1_001)
    assert trickle.stalled(150.0, 100.0, 30.0, 5, 1_001)
