import random

import pytest
from msgspec.structs import replace

from policies.spec import PolicySpec
from policies.view import Decision, WorkerId
from router.placement.held_by_worker import ASKED_AT_ONCE, HeldByWorker
from router.placement.request import FailurePoint, Usage
from router.placement.tickets import Held, Ticket


class Patient:
    """Holds every request while the first worker prefills."""

    def __init__(self, hold_s):
        self.hold_s = hold_s

    def decide(self, request, fleet):
        busy = fleet.workers[0].queued_requests
        return Decision(tuple(view.id for view in fleet.workers), "first", hold_s=self.hold_s if busy else 0.0)


@pytest.fixture
def relieved(rig):
    """Collect the workers that are reported to have no prefill left."""
    told = []
    rig.core.tickets.on_prefills_done.append(told.append)
    return told


def test_a_request_is_held_where_policy_and_caller_agree(rig):
    rig.core.policies.default.adopt(Patient(2.0), PolicySpec("patient"))
    first = rig.dispatch(start=0, now_s=1.0)
    second = rig.ask(start=1)
    reserved, counts = rig.reserved(), rig.core.statistics()
    assert rig.core.dispatcher.dispatch(second, 1.5, may_hold=True) == Held(WorkerId("h:1"), 3.5)
    assert rig.reserved() == reserved and rig.core.statistics()["dispatched"] == counts["dispatched"]
    assert rig.core.explainer.explain(second, 1.5).to_builtins()["hold_s"] == 2.0
    third = rig.dispatch(start=2, now_s=1.5)
    assert third.candidate is first.candidate, "who cannot wait goes at once"
    rig.core.tickets.first_token(first, 2.0)
    rig.core.tickets.first_token(third, 2.0)
    placed = rig.core.dispatcher.dispatch(second, 2.5, may_hold=True)
    assert placed.candidate is first.candidate
    told = rig.core.log.latest(1)[0]
    assert told.to_builtins()["waited_s"] == 2.5 and (told.close("finished", 3.0), told.request.waited_s)[1] == 2.5


@pytest.mark.parametrize(("tokens", "max_tokens", "waits"), [(100, 28, True), (100, 29, False), (128, None, False)])
def test_a_prompt_too_long_for_the_worker_is_not_held(rig, facts, tokens, max_tokens, waits):
    for endpoint in rig.fleet.endpoints:
        rig.fleet.probe_succeeded(endpoint.id, facts(max_model_len=128), 0.0)
    rig.core.policies.default.adopt(Patient(2.0), PolicySpec("patient"))
    rig.dispatch(start=0)
    request = rig.ask(tokens, start=1, max_tokens=max_tokens)
    explained = rig.core.explainer.explain(request, 0.0)
    assert (explained.action, explained.hold_s) == (("hold", 2.0) if waits else ("dispatch", 0.0))
    assert isinstance(rig.core.dispatcher.dispatch(request, 0.0, may_hold=True), Held if waits else Ticket)


def test_a_request_without_known_prompt_is_not_held(rig):
    rig.core.policies.default.adopt(Patient(2.0), PolicySpec("patient"))
    rig.dispatch(start=0)
    assert isinstance(rig.core.dispatcher.dispatch(replace(rig.ask(start=1), prompt=None), 0.0, may_hold=True), Ticket)


def test_no_policy_holds_a_request_forever(rig):
    rig.core.policies.default.adopt(Patient(float("inf")), PolicySpec("patient"))
    rig.dispatch(start=0)
    request = rig.ask(start=1)
    assert rig.core.explainer.explain(request, 0.0).hold_s == 60.0
    assert rig.core.dispatcher.dispatch(request, 0.0, may_hold=True) == Held(WorkerId("h:1"), 60.0)
    assert rig.core.dispatcher.dispatch(request, 59.0, may_hold=True) == Held(WorkerId("h:1"), 60.0)
    assert isinstance(rig.core.dispatcher.dispatch(request, 60.0, may_hold=True), Ticket)


def test_a_retry_is_never_held(rig):
    rig.core.policies.default.adopt(Patient(2.0), PolicySpec("patient"))
    rig.dispatch(start=0)
    ticket = rig.dispatch(start=1)
    rig.core.policies.default.adopt(Patient(2.0), PolicySpec("patient"))
    assert isinstance(rig.core.dispatcher.retry(ticket, FailurePoint.CONNECT, 0.1, "refused"), Ticket)


def test_listeners_are_called_once_no_prefill_is_left(rig, relieved):
    rig.core.policies.default.adopt(Patient(2.0), PolicySpec("patient"))
    tickets = [rig.dispatch(start=number) for number in range(4)]
    rig.core.tickets.first_token(tickets[0], 1.0)
    rig.core.tickets.finished(tickets[0], Usage(100, 3, 0), 1.1)
    rig.core.tickets.cancelled(tickets[1], 1.2)
    rig.core.tickets.failed(tickets[2], FailurePoint.LOCAL, 1.3, "no descriptors")
    assert relieved == []
    rig.core.tickets.finished(tickets[3], Usage(100, 3, 0), 1.4)  # in one piece: its end also ends its prefill
    assert relieved == ["h:1"]
    again = rig.dispatch(start=9)
    rig.core.tickets.first_token(again, 1.5)
    rig.core.tickets.finished(again, Usage(100, 3, 0), 1.6)
    assert relieved == ["h:1", "h:1"], "its end is no news"


def test_a_trial_is_not_held(rig, facts):
    rig.core.policies.default.adopt(Patient(2.0), PolicySpec("patient"))
    rig.dispatch(start=0)
    for _ in range(3):
        rig.fleet.probe_failed("h:2", "gone", 0.0)
    rig.fleet.probe_succeeded("h:2", facts(), 1.0)
    for number in range(1, 9):
        answer = rig.core.dispatcher.dispatch(rig.ask(start=number), 100.0, may_hold=True)
        if isinstance(answer, Ticket):
            assert answer.trial and answer.candidate.id == "h:2"
            return
    raise AssertionError("no trial")


A, B = WorkerId("a"), WorkerId("b")


def test_requests_are_decided_again_in_order_of_entry():
    waiting = HeldByWorker()
    for one, worker in (("x", A), ("y", A), ("z", B)):
        waiting.enter(one, worker)
    assert (waiting.first(A), waiting.first(B), waiting.first(WorkerId("c"))) == (["x", "y"], ["z"], [])
    assert waiting.leave("x") and not waiting.leave("x")
    waiting.enter("x", A)
    assert waiting.first(A) == ["y", "x"] and "x" in waiting and len(waiting) == 3
    assert waiting.leave("z") and waiting.workers == [A], "nothing is kept of a worker that nobody waits for"


def test_random_entries_and_exits_match_a_reference():
    rng, waiting, expected = random.Random(1), HeldByWorker(), {}
    for _ in range(2_000):
        one = rng.randrange(5 * ASKED_AT_ONCE)
        if one in expected:
            assert waiting.leave(one)
            del expected[one]
        else:
            expected[one] = rng.choice((A, B))
            waiting.enter(one, expected[one])
        for worker in (A, B):
            assert waiting.first(worker) == [other for other in expected if expected[other] == worker][:ASKED_AT_ONCE]
        assert len(waiting) == len(expected)
