import random
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from backends.worker import Endpoint
from policies.registry import build_policy
from policies.spec import PolicySpec
from policies.view import Decision, LifecycleEventKind, Residency, WorkerId
from router.errors import ErrorKind
from router.placement.fleet.fleet import WorkerState
from router.placement.load import fleet_load
from router.placement.request import FailurePoint, Request, Usage
from router.placement.tickets import Queued, Reject, Ticket
from router.residency.prompt import Prompt, PromptSource
from tests.support.metrics import counted


def test_dispatch_reserves_load_in_the_same_step(rig):
    ticket = rig.dispatch(100)
    assert (ticket.attempt, ticket.predicted_cached_tokens, ticket.residency) == (1, 0, Residency.EXACT)
    assert sorted(rig.reserved()) == [(0, 0, 0)] * 3 + [(1, 100, 100)]
    sibling = rig.dispatch(100)  # the first one's blocks are hittable as soon as it is scheduled, but it is queued
    assert sibling.candidate is ticket.candidate or sibling.predicted_cached_tokens == 0
    rig.core.tickets.first_token(ticket, 0.1)
    third = rig.dispatch(100)
    assert third.predicted_cached_tokens == 96 or third.candidate is not ticket.candidate
    for one in (ticket, sibling, third):
        rig.core.tickets.finished(one, Usage(100, 5, 0), 1.0)
    rig.assert_empty()


def test_lifecycle_events_move_the_reserved_load(rig):
    ticket = rig.dispatch(100)
    rig.core.tickets.first_token(ticket, 0.1)
    rig.core.tickets.first_token(ticket, 0.2)
    assert max(rig.reserved()) == (1, 0, 100)
    rig.core.tickets.progress(ticket, 10)
    rig.core.tickets.progress(ticket, 8)
    assert max(rig.reserved()) == (1, 0, 110)
    rig.core.tickets.finished(ticket, Usage(100, 10, 0), 0.5)
    rig.assert_empty()
    record = rig.core.log.latest(1)[0]
    assert (record.ttft_s, record.duration_s, record.outcome) == (0.1, 0.5, "finished")
    rig.core.tickets.failed(ticket, FailurePoint.STREAM, 0.6, "late")
    rig.core.tickets.cancelled(ticket, 0.6)
    rig.core.tickets.first_token(ticket, 0.6)
    assert record.outcome == "finished"
    rig.assert_empty()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_events_in_any_order_leave_nothing_reserved(shadow_residency, make_rig, data):
    rig = make_rig(residency=type(shadow_residency)(), workers=3, max_requests_per_worker=4)
    core, tickets, now_s = rig.core, [], 0.0
    for _ in range(data.draw(st.integers(1, 40))):
        now_s += data.draw(st.floats(0, 0.5))
        action = data.draw(st.sampled_from(["new", "new", "first", "progress", "finish", "fail", "cancel", "retry"]))
        if action == "new" or not tickets:
            answer = core.dispatcher.dispatch(
                rig.ask(data.draw(st.integers(1, 300)), data.draw(st.integers(0, 3)), stream=data.draw(st.booleans())),
                now_s,
            )
            if isinstance(answer, Ticket):
                tickets.append(answer)
            continue
        ticket = data.draw(st.sampled_from(tickets))
        point = data.draw(st.sampled_from(list(FailurePoint)))
        if action == "first":
            core.tickets.first_token(ticket, now_s)
        elif action == "progress":
            core.tickets.progress(ticket, data.draw(st.integers(0, 50)))
        elif action == "finish":
            core.tickets.finished(ticket, Usage(None, 3, 16), now_s, status=data.draw(st.sampled_from([200, 400])))
        elif action == "fail":
            core.tickets.failed(ticket, point, now_s, "drawn")
        elif action == "cancel":
            core.tickets.cancelled(ticket, now_s)
        elif not ticket.ended:
            again = core.dispatcher.retry(ticket, point, now_s, "drawn")
            if isinstance(again, Ticket):
                tickets.append(again)
        assert min(min(row) for row in rig.reserved()) >= 0
        assert max(row[0] for row in rig.reserved()) <= 4
        assert sum(row[0] for row in rig.reserved()) == sum(not ticket.ended for ticket in tickets)
    for ticket in tickets:
        core.tickets.cancelled(ticket, now_s)
    rig.assert_empty()
    assert not any(endpoint.health.trial_running for endpoint in rig.fleet.endpoints)
    counts = core.statistics()
    assert counts["dispatched"] == counts["finished"] + counts["cancelled"] + counts["failed"]


def test_a_request_is_queued_until_a_worker_is_ready(rig):
    for port in range(1, 5):
        rig.fleet.drain(f"h:{port}")
    answer = rig.core.dispatcher.dispatch(rig.ask(), 0.0)
    assert isinstance(answer, Queued)
    assert "draining" in answer.reason
    woken = []
    rig.fleet.on_change.append(lambda: woken.append(1))
    rig.fleet.undrain("h:3")
    assert woken
    assert rig.dispatch().candidate.id == "h:3"


@pytest.mark.parametrize(
    ("points", "kind"),
    [
        (["connect", "connect", "connect"], ErrorKind.WORKER_FAILED),
        (["refused", "refused", "refused"], ErrorKind.OVERLOADED),
        (["connect", "refused", "connect"], ErrorKind.WORKER_FAILED),
        (["unserved", "unserved", "unserved"], ErrorKind.WORKER_FAILED),
        (["unserved", "refused", "sent"], ErrorKind.WORKER_FAILED),
        (["sent", "sent"], ErrorKind.WORKER_FAILED),
        (["connect", "sent", "sent"], ErrorKind.WORKER_FAILED),
        (["sent", "connect", "connect"], ErrorKind.WORKER_FAILED),
        (["stream"], ErrorKind.WORKER_DIED_IN_STREAM),
    ],
)
def test_retries_go_elsewhere_and_end(rig, points, kind):
    ticket = rig.dispatch()
    visited = [ticket.candidate.id]
    for number, point in enumerate(points[:-1], start=2):
        ticket = rig.core.dispatcher.retry(
            ticket, FailurePoint(point), 0.0, "drawn", 7.0 if point == "refused" else None
        )
        assert isinstance(ticket, Ticket)
        assert ticket.attempt == number
        visited.append(ticket.candidate.id)
    answer = rig.core.dispatcher.retry(ticket, FailurePoint(points[-1]), 0.0, "drawn")
    assert isinstance(answer, Reject)
    assert answer.error.kind is kind
    if kind is not ErrorKind.WORKER_DIED_IN_STREAM:
        assert answer.error.retry_after_s == (7.0 if "refused" in points else 1.0)
    assert len(set(visited)) == len(visited)
    rig.assert_empty()
    assert isinstance(rig.core.dispatcher.retry(ticket, FailurePoint.CONNECT, 0.0, "again"), Reject)


def test_a_lone_worker_has_no_alternative(make_rig):
    rig = make_rig(workers=1)
    answer = rig.core.dispatcher.retry(rig.dispatch(), FailurePoint.CONNECT, 0.0, "connection refused")
    assert isinstance(answer, Reject)
    assert "connection refused" in answer.error.message
    assert rig.dispatch(now_s=0.01).candidate.id == "h:1"  # still used: there is no other worker


def test_client_errors_never_count_against_a_worker(rig):
    for index in range(100):
        ticket = rig.dispatch(start=index, now_s=index * 0.01)
        rig.core.tickets.finished(ticket, Usage(), index * 0.01, status=400)
    assert [endpoint.state for endpoint in rig.fleet.endpoints] == [WorkerState.READY] * 4
    assert ("finished", 0) not in rig.residency.calls
    assert rig.core.log.latest(1)[0].outcome == "finished with status 400"
    rig.assert_empty()


def test_a_model_that_is_served_no_more_is_no_fault_of_its_worker(rig, facts):
    for index in range(40):
        rig.core.tickets.failed(rig.dispatch(now_s=float(index)), FailurePoint.UNSERVED, float(index), "404")
    assert {endpoint.state for endpoint in rig.fleet.endpoints} == {WorkerState.READY}
    kill(rig, 1, 1.0)
    rig.fleet.probe_succeeded("h:1", facts(), 10.0)
    trial = rig.dispatch(now_s=10.1)
    assert trial.candidate.id == "h:1"
    again = rig.core.dispatcher.retry(trial, FailurePoint.UNSERVED, 10.2, "404")
    assert again.candidate.id != "h:1"
    assert rig.fleet.get("h:1").state is WorkerState.HALF_OPEN  # the trial has no result; another one follows
    rig.core.tickets.cancelled(again, 10.3)
    rig.assert_empty()


def test_a_worker_that_serves_a_model_no_more_does_not_draw_the_next_requests(rig):
    busy = [rig.dispatch(now_s=0.0) for _ in range(8)]
    idle = busy.pop()
    rig.core.tickets.failed(idle, FailurePoint.UNSERVED, 0.0, "404")
    for number in range(8):
        ticket = rig.dispatch(now_s=0.01 * number)
        assert ticket.candidate.id != idle.candidate.id
        busy.append(ticket)
    for ticket in busy:
        rig.core.tickets.cancelled(ticket, 1.0)
    rig.assert_empty()


def kill(rig, port, now_s):
    for second in range(3):
        rig.fleet.probe_failed(f"h:{port}", "connection refused", now_s + second)
    assert rig.fleet.get(f"h:{port}").state is WorkerState.UNHEALTHY


@pytest.mark.parametrize("policy", ["marginal_cost", "lpwl", "random", "cache_aware"])
def test_a_revived_worker_has_the_next_request(make_rig, facts, policy):
    rig = make_rig(policy=policy)
    warm = rig.dispatch(2_000)
    rig.core.tickets.first_token(warm, 0.1)  # every further request would prefer the worker with the prefix
    dead = next(endpoint.id for endpoint in rig.fleet.endpoints if endpoint is not warm.candidate.endpoint)
    kill(rig, dead.split(":")[1], 1.0)
    rig.fleet.probe_succeeded(dead, facts(), 10.0)
    trial = rig.dispatch(2_000, now_s=10.1)
    assert trial.candidate.id == dead
    assert "trial" in trial.record.decision.reason
    assert rig.dispatch(2_000, now_s=10.1).candidate.id != dead
    rig.core.tickets.first_token(trial, 10.2)
    assert rig.fleet.get(dead).state is WorkerState.READY


def test_a_trial_that_tells_nothing_leaves_room_for_another(rig, facts):
    kill(rig, 1, 1.0)
    rig.fleet.probe_succeeded("h:1", facts(), 10.0)
    rig.core.tickets.cancelled(rig.dispatch(now_s=10.0), 10.1)
    rig.core.tickets.failed(rig.dispatch(now_s=10.2), FailurePoint.REFUSED, 10.2, "503")
    trial = rig.dispatch(now_s=10.6)
    assert trial.candidate.id == "h:1"
    again = rig.core.dispatcher.retry(trial, FailurePoint.SENT, 10.7, "reset")
    assert rig.fleet.get("h:1").state is WorkerState.UNHEALTHY
    assert again.candidate.id != "h:1"


def test_deaths_of_older_requests_do_not_decide_a_trial(rig, facts):
    old = [rig.dispatch(start=index) for index in range(8)]
    first = old[0].candidate.endpoint
    mine = [ticket for ticket in old if ticket.candidate.endpoint is first]
    kill(rig, first.endpoint.port, 1.0)
    rig.fleet.probe_succeeded(first.id, facts(), 5.0)
    trial = rig.dispatch(now_s=5.0)
    assert trial.candidate.endpoint is first
    for ticket in mine:
        rig.core.tickets.failed(ticket, FailurePoint.SENT, 5.1, "reset")
    assert first.state is WorkerState.HALF_OPEN


def test_events_after_a_worker_left_are_harmless(rig, facts):
    ticket = rig.dispatch(100)
    slot, gone = ticket.candidate.slot, ticket.candidate.endpoint.id
    rig.fleet.remove(gone)
    rig.fleet.add(Endpoint("http", "h", 9), 1.0)
    rig.fleet.probe_succeeded("h:9", facts(), 1.0)
    assert rig.fleet.get("h:9").candidates[0].slot == slot
    rig.residency.calls.clear()
    rig.core.tickets.first_token(ticket, 1.1)
    rig.core.tickets.progress(ticket, 5)
    rig.core.tickets.finished(ticket, Usage(100, 5, 0), 1.3)
    assert rig.residency.calls == []
    rig.assert_empty()


def test_predictions_are_compared_with_reports(rig):
    ticket = rig.dispatch(100)
    rig.core.tickets.first_token(ticket, 0.1)
    rig.core.tickets.finished(ticket, Usage(100, 5, 16), 0.2)
    worker = ticket.candidate.id
    assert counted(rig.registry, "cached_tokens") == [(worker, "reported")] * 16
    assert counted(rig.registry, "cached_comparisons") == [(worker, "under")]
    counts = rig.core.statistics()["workers"][ticket.candidate.id]["predicted_cached"]
    assert sum(counts.pop("differences").values()) == 1
    tokens = {"absolute_error_tokens": 16, "reported_tokens": 16}
    assert counts == {"equal": 0, "over": 0, "under": 1, "pending": 0, **tokens}
    assert rig.core.log.latest(1)[0].reported_cached_tokens == 16


def test_what_cannot_be_compared_is_not(rig):
    text = Prompt(100, PromptSource.TEXT, lambda block: [])
    several = Prompt(100, PromptSource.IDS, lambda block: [], multiple=True)
    for prompt in (None, text, several):
        ticket = rig.core.dispatcher.dispatch(replace(rig.ask(), prompt=prompt), 0.0)
        rig.core.tickets.finished(ticket, Usage(100, 5, 16), 0.1)
    silent = rig.dispatch()
    rig.core.tickets.finished(silent, Usage(100, 5, None), 0.1)
    assert counted(rig.registry, "cached_comparisons") == []


def test_the_prediction_is_of_the_request_that_the_answer_will_report_of(rig):
    ids = [*range(100)]
    rig.residency.blocks[0].update(rig.prompt(ids[:64]).chain(16))
    plain = Request("r", "/v1/completions", "m", rig.prompt(ids), 100, 0.0, stream=False)
    several = Prompt(300, PromptSource.IDS, rig.prompt(ids).chain, multiple=True, own_tokens=100, shared_tokens=90)
    for request, predicted in (
        (plain, 64),
        (replace(plain, answers=3), 96),
        (replace(plain, answers=3, stream=True), 64),
        (replace(plain, prompt=several), 80),
        (replace(plain, prompt=several, answers=2), 96),
        (replace(plain, prompt=several, stream=True), 64),
        (replace(plain, reads_cache=False), 0),
    ):
        ticket = rig.core.dispatcher.dispatch(replace(request, pinned="h:1"), 0.0)
        assert ticket.predicted_cached_tokens == predicted
        rig.core.tickets.cancelled(ticket, 0.1)
    rig.assert_empty()


def test_requests_without_identity_are_placed_by_load(rig):
    request = replace(rig.ask(), prompt=None, prompt_tokens=0)
    tickets = [rig.core.dispatcher.dispatch(request, 0.0) for _ in range(8)]
    assert len({ticket.candidate.id for ticket in tickets}) == 4
    assert tickets[0].predicted_cached_tokens is None
    for ticket in tickets:
        rig.core.tickets.finished(ticket, Usage(), 0.1)
    rig.assert_empty()


def test_explain_changes_nothing_and_agrees_with_dispatch(rig):
    rig.dispatch(500, start=7)
    before = rig.reserved()
    rig.fleet.drain("h:4")
    explanation = rig.core.explainer.explain(rig.ask(300), 0.5)
    assert rig.reserved() == before
    assert len(rig.core.log.latest(99)) == 1
    told = explanation.to_builtins()
    assert told["choice"] == rig.dispatch(300, now_s=0.5).candidate.id
    assert told["candidates"][0]["worker"] == told["choice"]
    assert {"cached_tokens", "queued_tokens", "first_token_s", "terms", "cost"} <= set(told["candidates"][0])
    terms = {
        "queue_wait_s",
        "kv_wait_s",
        "prefill_s",
        "prefill_externality_s",
        "decode_externality_s",
        "hot_prefix_s",
        "prefill_lane_s",
    }
    assert set(told["candidates"][0]["terms"]) == terms
    for candidate in told["candidates"]:
        assert candidate["error_s"] >= 0.0
        assert sum(candidate["terms"].values()) == pytest.approx(candidate["cost"])
    assert list(told["excluded"]) == ["h:4"]


@pytest.mark.parametrize("policy", ["random", "power_of_two", "marginal_cost"])
def test_explaining_leaves_no_trace_in_counters_or_random_source(make_rig, policy):
    def choices(explained):
        rig = make_rig(policy=policy)
        chosen = []
        for index in range(20):
            for _ in range(explained):
                rig.core.explainer.explain(rig.ask(100, start=index), 0.0)
            chosen.append(rig.dispatch(100, start=index).candidate.id)
        return chosen, rig.core.statistics()["decisions"]

    assert choices(0) == choices(3)


def test_explaining_a_policy_that_fails_counts_nothing(rig):
    rig.core.policies.default.adopt(Rogue(lambda: None), PolicySpec("rogue"))
    explanation = rig.core.explainer.explain(rig.ask(), 0.0)
    assert "fell back to least tokens" in explanation.reason
    assert rig.core.statistics()["fallbacks"] == 0
    assert rig.core.statistics()["last_error"] is None


def test_a_policy_that_cannot_be_copied_is_asked_itself(rig):
    policy = build_policy(PolicySpec("least_tokens"), random.Random(1))
    policy.lock = threading.Lock()
    rig.core.policies.default.adopt(policy, PolicySpec("locked"))
    assert "fell back" not in rig.core.explainer.explain(rig.ask(), 0.0).reason


def test_views_of_all_candidates_in_any_state(rig):
    rig.dispatch(500, start=7)
    rig.fleet.drain("h:4")
    views = {view.id: view for view in rig.core.loads.shown(rig.fleet.candidates, 0.5)}
    assert list(views) == ["h:1", "h:2", "h:3", "h:4"]
    assert sum(view.running_requests for view in views.values()) == 1
    assert rig.core.statistics()["decisions"] == 1


def test_explain_of_queued_and_rejected_requests(rig):
    unknown = rig.core.explainer.explain(replace(rig.ask(), model="x"), 0.0).to_builtins()
    assert unknown["choice"] is None and "does not exist" in unknown["reason"] and unknown["candidates"] == []
    for port in range(1, 5):
        rig.fleet.drain(f"h:{port}")
    held = rig.core.explainer.explain(rig.ask(), 0.0).to_builtins()
    assert held["choice"] is None and "no worker is ready" in held["reason"]
    assert len(held["excluded"]) == 4


def test_decisions_are_kept_newest_first_and_bounded(rig):
    for index in range(60):
        rig.core.tickets.cancelled(rig.dispatch(start=index), 0.0)
    kept = rig.core.log.latest(99)
    assert len(kept) == 50
    assert [record.request.id for record in kept[:2]] == ["r59", "r58"]
    told = kept[0].to_builtins()
    assert told["outcome"] == "cancelled"
    assert len(told["candidates"]) == 4


class Rogue:
    def __init__(self, answer):
        self.answer = answer

    def decide(self, request, fleet):
        return self.answer()

    def observe(self, event):
        raise KeyError("observe")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda: Decision((WorkerId("h:99"),), "?"), "which is not a candidate"),
        (lambda: Decision((), "?"), "IndexError"),
        (lambda: 1 / 0, "ZeroDivisionError"),
        (lambda: None, "AttributeError"),
        (lambda: Decision((WorkerId("h:1"),), "?", hold_s=-1.0), "would hold the request for -1.0 s"),
        (lambda: Decision((WorkerId("h:1"),), "?", hold_s=float("nan")), "would hold the request for nan s"),
        (lambda: Decision((WorkerId("h:1"),), "?", hold_s="long"), "TypeError"),
    ],
)
def test_a_policy_that_fails_fails_no_request(rig, answer, words):
    rig.core.policies.default.adopt(Rogue(answer), PolicySpec("rogue", {"a": 1}))
    tickets = [rig.dispatch(start=index) for index in range(4)]
    assert len({ticket.candidate.id for ticket in tickets}) == 4  # placed by least tokens, the fallback
    assert words in tickets[0].record.decision.reason
    assert "fell back to least tokens" in tickets[0].record.decision.reason
    counts = rig.core.statistics()
    assert (counts["policy"], counts["fallbacks"], counts["observe_errors"]) == ("rogue", 4, 4)
    assert rig.core.policies.default.spec == PolicySpec("rogue", {"a": 1})


def test_each_policy_failure_is_reported_and_the_first_is_marked(rig):
    rig.core.policies.default.adopt(Rogue(lambda: 1 / 0), PolicySpec("rogue"))
    rig.core.explainer.explain(rig.ask(), 0.0)
    assert rig.policy_failures == []
    rig.dispatch()  # both `decide` and `observe` raise
    assert rig.policy_failures == [("rogue", True), ("rogue", False)]
    rig.core.policies.default.adopt(Rogue(lambda: None), PolicySpec("other"))
    rig.dispatch(start=1)
    assert rig.policy_failures[2:] == [("other", True), ("other", False)]


def test_an_unknown_model_is_rejected_and_reported(rig):
    asked = []
    rig.fleet.on_unknown_model.append(asked.append)
    unknown = replace(rig.ask(), model="who")
    rig.core.explainer.explain(unknown, 0.0)
    assert asked == []
    answer = rig.core.dispatcher.dispatch(unknown, 0.0)
    assert isinstance(answer, Reject) and answer.error.kind is ErrorKind.MODEL_NOT_FOUND
    assert asked == ["who"]


def test_an_alternative_is_one_that_is_ready(make_rig, facts):
    rig = make_rig(workers=2)
    ticket = rig.dispatch()
    assert rig.core.dispatcher.has_alternative(ticket, FailurePoint.SENT, 0.0)
    assert not rig.core.dispatcher.has_alternative(ticket, FailurePoint.STREAM, 0.0)
    again = rig.core.dispatcher.retry(ticket, FailurePoint.SENT, 0.0, "reset")
    assert not rig.core.dispatcher.has_alternative(again, FailurePoint.SENT, 0.0)  # it was sent twice
    assert not rig.core.dispatcher.has_alternative(ticket, FailurePoint.SENT, 0.0)  # it has ended
    third = rig.dispatch(start=1)
    other = next(f"h:{port}" for port in (1, 2) if f"h:{port}" != third.candidate.id)
    for second in range(3):
        rig.fleet.probe_failed(other, "refused", second)
    rig.fleet.probe_succeeded(other, facts(), 4.0)
    assert rig.fleet.get(other).state is WorkerState.HALF_OPEN
    assert not rig.core.dispatcher.has_alternative(third, FailurePoint.SENT, 5.0)


def test_a_new_policy_receives_events_of_running_requests(rig):
    ticket = rig.dispatch()
    events = []

    class Listener(Rogue):
        def observe(self, event):
            events.append((event.kind, event.worker, event.cached_tokens))

    rig.core.policies.default.adopt(Listener(lambda: None), PolicySpec("listener"))
    rig.core.tickets.first_token(ticket, 0.1)
    rig.core.tickets.finished(ticket, Usage(100, 5, 32), 0.2)
    worker = ticket.candidate.id
    assert events == [(LifecycleEventKind.FIRST_TOKEN, worker, None), (LifecycleEventKind.FINISHED, worker, 32)]


def test_a_reservation_event_carries_the_workers_view(rig):
    placed = []

    class Listener:
        def decide(self, request, fleet):
            return Decision(tuple(view.id for view in reversed(fleet.workers)), "last")

        def observe(self, event):
            placed.append(event.placed)
            fleets.append(event.fleet)

    fleets = []
    rig.core.policies.default.adopt(Listener(), PolicySpec("listener"))
    ticket = rig.dispatch(100)
    rig.core.tickets.first_token(ticket, 0.1)
    assert [fleet and fleet.workers[-1] is placed[0] for fleet in fleets] == [True, None]
    assert [view and (view.id, view.uncached_tokens, view.running_requests) for view in placed] == [
        (ticket.candidate.id, 100, 0),
        None,
    ]


def test_ranks_are_candidates_of_their_own(make_rig, facts):
    rig = make_rig(workers=1)
    rig.fleet.probe_succeeded("h:1", facts(ranks=4), 1.0)
    tickets = [rig.dispatch(start=1_000 * index) for index in range(4)]
    assert {ticket.candidate.id for ticket in tickets} == {f"h:1#{rank}" for rank in range(4)}
    answer = rig.core.dispatcher.retry(tickets[0], FailurePoint.CONNECT, 0.0, "refused")
    assert isinstance(answer, Reject)  # the other ranks live in the same process


class SharesSeen:
    """Rank in the fleet's order, and keep the share of each worker's running requests with the prompt's first block."""

    def __init__(self):
        self.seen = []

    def decide(self, request, fleet):
        self.seen.append([fleet.running_share(worker, request, 1) for worker in fleet.ids])
        return Decision(fleet.ids, "first")


@pytest.mark.source_only
@pytest.mark.parametrize("arrays_from", [1, 80])
def test_a_policy_reads_the_share_of_running_requests_with_the_same_prefix(rig, monkeypatch, arrays_from):
    monkeypatch.setattr(fleet_load, "ARRAYS_FROM", arrays_from)
    for turn in range(12):  # until a speed is learned
        ticket = rig.dispatch(100 + turn, 1_000, now_s=float(turn))
        rig.core.tickets.first_token(ticket, turn + 0.01 + turn * 1e-4)
        rig.core.tickets.finished(ticket, Usage(100, 5, 0), turn + 0.1)
    policy = SharesSeen()
    rig.core.policies.default.adopt(policy, PolicySpec("shares"))
    tickets = [rig.dispatch(*ask, now_s=20.0) for ask in [(100, 0), (40, 0), (100, 500), (100, 0)]]
    rig.core.tickets.finished(tickets[2], Usage(100, 5, 0), 21.0)
    rig.dispatch(100, 0, now_s=22.0)
    assert {ticket.candidate.id for ticket in tickets} == {"h:1"}
    assert policy.seen == [[share, 0.0, 0.0, 0.0] for share in (0.0, 1.0, 0.0, 2 / 3, 1.0)]
    assert rig.policy_failures == []
