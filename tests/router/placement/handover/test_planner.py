import random
from dataclasses import replace

import pytest

from backends.worker import ConnectorFacts, Endpoint, ServedModel
from policies.registry import build_policy
from policies.spec import PolicySpec
from policies.view import LifecycleEventKind
from router.config.model import HandoverConfig, HealthConfig, WorkerConfig
from router.placement.core import DecisionCore
from router.placement.fleet import traffic
from router.placement.fleet.fleet import Fleet
from router.placement.handover.kv_formats import kv_format
from router.placement.handover.plan import LegPlan
from router.placement.policies.policy_runner import PolicyRunner
from router.placement.request import FailurePoint, Request, Usage
from router.placement.selection import exclusions, select
from router.placement.tickets import Queued, Ticket
from router.residency.residency_map import ResidencyMap
from router.workers.settings import worker_findings

HANDOVER = HandoverConfig(connector="nixl_pull", latency_s=0.0, transfer_tokens_per_s=1e12)


class Site:
    """A fleet whose port 1 and 2 are prefill workers, 3 and 4 decode workers, and 5 is mixed."""

    def __init__(self, facts, residency, roles, **shared):
        self.facts, self.residency = facts, residency
        self.fleet = Fleet(HealthConfig(), residency, connector="nixl_pull")
        spec = PolicySpec("marginal_cost")
        policy = build_policy(spec, random.Random(0))
        self.core = DecisionCore(self.fleet, residency, policy, spec=spec, handover=HANDOVER, **shared)
        for port, role in roles.items():
            self.fleet.add(Endpoint("http", "h", port), 0.0)
            self.fleet.describe(f"h:{port}", {}, 1.0, None, role)
            self.fleet.probe_succeeded(f"h:{port}", facts(events=False), 0.0)

    def load(self, port):
        return self.core.statistics()["workers"][f"h:{port}"]

    def half_open(self, port, **other):
        """Let a worker be down and answer again, at 1,000 s, with `other` facts."""
        for _ in range(5):
            self.fleet.probe_failed(f"h:{port}", "down", 1.0)
        self.fleet.probe_succeeded(f"h:{port}", replace(self.facts(events=False), **other), 1_000.0)

    def stream(self, request, count=1):
        """Let streams run on workers that take whole requests."""
        for _ in range(count):
            ticket = self.core.dispatcher.dispatch(request, 0.0)
            self.core.tickets.first_token(ticket, 0.0)


@pytest.fixture
def site(facts):
    def make(roles, **shared):
        return Site(facts, ResidencyMap(), roles, **shared)

    return make


@pytest.fixture
def ask(prompt):
    def make(tokens=1_000, first=0, **fields):
        return Request(f"r{first}", "/v1/completions", "m", prompt(range(first, first + tokens)), tokens, 0.0, **fields)

    return make


@pytest.fixture
def placed(site, ask):
    """A prefill worker, and a decode worker with three streams, so that a pair pays."""
    made = site({1: "prefill", 3: "decode"})
    made.stream(ask(first=5_000), 3)
    return made


def hand_over(site, request):
    planned = site.core.planner.pair(request, 0.0)
    assert isinstance(planned, LegPlan), planned
    return pair_of(site.core.planner.reserve(request, planned, 0.0))


def pair_of(decode):
    return decode.prefill, decode


def test_a_prefill_worker_is_no_candidate_for_whole_requests(site, ask):
    placed = site({1: "prefill", 3: "decode", 5: "mixed"})
    names = [candidate.id for candidate in select(placed.fleet, ask(), (), 0.0).candidates]
    assert names == ["h:3", "h:5"]
    selection = select(placed.fleet, ask(), (), 0.0, prefill=True)
    assert [candidate.id for candidate in selection.candidates] == ["h:1"]
    whole = select(placed.fleet, ask(), (), 0.0)
    assert exclusions(placed.fleet, ask(), whole) == {"h:1": "its role is prefill"}


def test_without_a_connector_a_role_changes_no_decision(facts, ask):
    fleet = Fleet(HealthConfig(), ResidencyMap())
    fleet.add(Endpoint("http", "h", 1), 0.0)
    fleet.describe("h:1", {}, 1.0, None, "prefill")
    fleet.probe_succeeded("h:1", facts(), 0.0)
    assert len(select(fleet, ask(), (), 0.0).candidates) == 1


def test_a_fleet_of_prefill_workers_alone_queues_requests_and_says_why(site, ask):
    placed = site({1: "prefill"}).core.dispatcher.dispatch(ask(), 0.0)
    assert isinstance(placed, Queued)
    assert "role prefill" in placed.reason


def test_a_changed_role_counts_from_the_next_decision_on(site, ask):
    placed = site({1: "prefill"})
    calls = []
    placed.fleet.on_change.append(lambda: calls.append(1))
    placed.fleet.describe("h:1", {}, 1.0, None, "mixed")
    assert calls == [1]
    assert isinstance(placed.core.dispatcher.dispatch(ask(), 0.0), Ticket)


def test_an_idle_fleet_hands_nothing_over(site, ask):
    assert site({1: "prefill", 3: "decode"}).core.planner.pair(ask(), 0.0) is None


def test_without_a_prefill_worker_there_is_no_pair(site, ask):
    assert isinstance(site({3: "decode"}).core.planner.pair(ask(), 0.0), Queued)


def test_mixed_workers_take_no_part_in_a_pair(site, ask):
    placed = site({1: "prefill", 5: "mixed"})
    placed.stream(ask(first=5_000), 3)
    assert placed.core.planner.pair(ask(), 0.0) is None


MIXED = {"kv_connector": "nixl_pull"}


def labelled(placed, port, role="mixed", **labels):
    placed.fleet.describe(f"h:{port}", labels, 1.0, None, role)


def test_a_mixed_worker_with_the_connector_is_the_prefill_or_the_decode_worker_of_a_pair(site, ask):
    placed = site({1: "prefill", 5: "mixed"})
    labelled(placed, 5, **MIXED)
    placed.stream(ask(first=5_000), 3)
    prefill, decode = hand_over(placed, ask())
    assert (prefill.candidate.id, decode.candidate.id) == ("h:1", "h:5")
    placed = site({3: "decode", 5: "mixed"})
    labelled(placed, 5, **MIXED)
    selection = select(placed.fleet, ask(), (), 0.0, prefill=True)
    assert [candidate.id for candidate in selection.candidates] == ["h:5"]


def test_a_worker_is_never_both_ends_of_a_pair(site, ask):
    placed = site({5: "mixed"})
    labelled(placed, 5, **MIXED)
    placed.stream(ask(first=5_000), 30)
    assert placed.core.planner.pair(ask(), 0.0) is None


def test_a_prefill_is_not_retried_at_the_worker_that_waits_for_it(site, ask):
    placed = site({1: "prefill", 5: "mixed"})
    labelled(placed, 5, **MIXED)
    placed.stream(ask(first=5_000), 3)
    prefill, decode = hand_over(placed, ask())
    receiver = decode.candidate.endpoint.id
    why = (FailurePoint.CONNECT, 0.0, "gone")
    assert placed.core.planner.retry_prefill(prefill, *why, receiver=receiver) is None


@pytest.mark.parametrize("labels", [{"kv_connector": "none"}, {"kv_connector": "mooncake"}, {"kv_format": "fp8"}])
def test_workers_that_their_labels_tell_apart_are_no_pair(site, ask, labels):
    placed = site({1: "prefill", 3: "decode"})
    labelled(placed, 3, "decode", **labels)
    placed.stream(ask(first=5_000), 3)
    assert placed.core.planner.pair(ask(), 0.0) is None


def test_a_connector_label_that_names_no_connector_is_an_error():
    worker = WorkerConfig(url="http://h:1", labels={"kv_connector": "nixl"})
    ((path, problem, fix),) = worker_findings(worker, ("workers", 0))
    assert (path, problem) == (("workers", 0, "labels", "kv_connector"), "'nixl' is no KV connector")
    assert "nixl_pull" in fix
    worker = WorkerConfig(url="http://h:1", labels={"kv_connector": "moriio_pull", "kv_sidecar": "x"})
    (mixed, sidecar) = worker_findings(worker, ("workers", 0))
    assert "is for prefill or for decode" in mixed[1]
    assert sidecar[1] == "'x' is no sidecar"


def test_a_bootstrap_port_that_is_none_is_an_error():
    worker = WorkerConfig(url="http://h:1", labels={"mooncake_bootstrap_port": "x"})
    ((path, problem, fix),) = worker_findings(worker, ("workers", 0))
    assert path == ("workers", 0, "labels", "mooncake_bootstrap_port")
    assert problem == "the label mooncake_bootstrap_port is 'x', which is no port from 1 to 65535"
    assert "VLLM_MOONCAKE_BOOTSTRAP_PORT" in fix
    assert list(worker_findings(WorkerConfig(url="http://h:1", labels={"mooncake_bootstrap_port": "9001"}), ())) == []


def test_streams_on_the_decode_worker_make_a_pair_pay_and_both_loads_are_reserved(placed, ask):
    before = placed.load(3)
    prefill, decode = hand_over(placed, ask())
    assert (prefill.candidate.id, decode.candidate.id) == ("h:1", "h:3")
    assert placed.load(1)["queued_tokens"] == 1_000
    after = placed.load(3)
    assert after["running_requests"] == before["running_requests"] + 1
    assert after["kv_tokens"] == before["kv_tokens"] + 1_000
    assert after["queued_tokens"] == before["queued_tokens"]
    account = decode.load.account
    assert account.decode_tokens >= 1_000  # the next decisions see the stream before its KV cache has come
    assert (account.queued_requests, account.arriving) == (0, 0)


class Turns:
    """Notes the placed requests in place of the diagnosis."""

    def __init__(self):
        self.tickets = []

    def placed(self, ticket, fleet):
        assert ticket.candidate.id in fleet.ids
        self.tickets.append(ticket)


def test_the_diagnosis_counts_a_handed_over_request_once_where_its_answer_is_written(site, ask):
    placed = site({1: "prefill", 3: "decode"})
    placed.stream(ask(10, first=50_000), count=6)
    placed.core.tickets.traffic = turns = Turns()
    _, decode = hand_over(placed, ask())
    assert turns.tickets == [decode]


def test_both_reservations_are_released_once(placed, ask):
    before = placed.load(3)
    prefill, decode = hand_over(placed, ask())
    placed.core.tickets.first_token(prefill, 0.5)
    placed.core.tickets.finished(prefill, Usage(1_000, None, 0), 0.5)
    assert placed.load(1)["running_requests"] == 0
    lengths = placed.core.tickets.output_lengths
    assert lengths.most_tokens(ask()) == 0, "a prefill says nothing of the lengths of answers"
    placed.core.tickets.first_token(decode, 0.6)
    assert decode.record.ttft_s == pytest.approx(0.6)
    placed.core.tickets.finished(decode, Usage(None, 20), 1.0)
    assert placed.load(3)["running_requests"] == before["running_requests"]
    assert (prefill.record.outcome, decode.record.outcome) == ("finished", "finished")


def test_a_decode_that_is_not_used_leaves_no_load(placed, ask):
    before = placed.load(3)
    _, decode = hand_over(placed, ask())
    placed.core.tickets.cancelled(decode, 0.1)
    assert placed.load(3) == before


def test_the_record_of_a_decode_shows_the_worker_after_the_transfer_and_predicts_nothing(placed, ask):
    prefill, decode = hand_over(placed, ask())
    assert decode.predicted_cached_tokens is None and prefill.predicted_cached_tokens is not None
    seen = [ticket.record.to_builtins(chosen_only=True)["candidates"][0] for ticket in (prefill, decode)]
    assert [(one["cached_tokens"], one["uncached_tokens"]) for one in seen] == [(0, 1_000), (999, 1)]


class Follower:
    """A policy that notes the reservations that it is shown."""

    def __init__(self, policy):
        self.policy, self.seen = policy, []

    def decide(self, request, fleet):
        return self.policy.decide(request, fleet)

    def observe(self, event):
        if event.kind is LifecycleEventKind.RESERVED:
            self.seen.append((event.worker, None if event.placed is None else event.placed.uncached_tokens))


def test_a_what_if_shows_a_handover_to_the_policy_as_the_gateway_does(site, ask):
    placed = site({1: "prefill", 3: "decode"})
    spec = PolicySpec("marginal_cost")
    placed.core.policies.default.adopt(live := Follower(build_policy(spec, random.Random(0))), spec)
    placed.stream(ask(first=5_000), 3)
    hand_over(placed, ask())
    with placed.core.what_ifs.begin(spec) as what_if:
        what_if._runner = PolicyRunner(again := Follower(build_policy(spec, random.Random(0))), spec)
        assert len([one for one in what_if if one is not None]) == 3
    assert again.seen == live.seen
    assert live.seen[3:] == [("h:1", None), ("h:3", None)]


def test_the_decisions_of_both_parts_name_each_other_and_a_repeated_prefill_keeps_the_plan(site, ask):
    placed = site({1: "prefill", 2: "prefill", 3: "decode"})
    placed.stream(ask(first=5_000), 3)
    prefill, decode = hand_over(placed, ask())
    shown = [ticket.record.to_builtins()["handover"] for ticket in (prefill, decode)]
    assert shown == [
        {"leg": "prefill", "plan": decode.id, "with_worker": "h:3"},
        {"leg": "decode", "plan": decode.id, "with_worker": prefill.candidate.id},
    ]
    again = placed.core.planner.retry_prefill(prefill, FailurePoint.SENT, 0.1, "gone")
    assert again.record.leg == prefill.record.leg
    assert placed.core.log.latest(10)[-1].to_builtins()["handover"] is None


def test_a_failed_prefill_goes_to_a_worker_that_was_not_tried(site, ask):
    placed = site({1: "prefill", 2: "prefill", 3: "decode"})
    placed.stream(ask(first=5_000), 3)
    prefill, _ = hand_over(placed, ask())
    again = placed.core.planner.retry_prefill(prefill, FailurePoint.SENT, 0.1, "gone")
    assert {prefill.candidate.id, again.candidate.id} == {"h:1", "h:2"}
    assert again.attempt == 2
    assert placed.core.planner.retry_prefill(again, FailurePoint.SENT, 0.2, "gone") is None
    assert placed.core.planner.retry_prefill(again, FailurePoint.SENT, 0.2, "gone") is None  # ended already


def test_workers_of_different_versions_or_models_are_no_pair(site, ask, facts):
    placed = site({1: "prefill", 2: "prefill", 3: "decode"})
    other = replace(facts(events=False), version="0.32.0")
    placed.fleet.probe_succeeded("h:1", other, 0.0)
    placed.fleet.probe_succeeded("h:2", replace(other, version="0.33.0", models=(ServedModel("m", "/other"),)), 0.0)
    placed.stream(ask(first=5_000), 3)
    assert placed.core.planner.pair(ask(), 0.0) is None
    placed.fleet.probe_succeeded("h:3", other, 0.0)
    prefill, _ = hand_over(placed, ask())
    assert prefill.candidate.id == "h:1"
    assert kv_format(prefill.candidate, "m")[0] == "0.32.0"
    assert placed.core.planner.retry_prefill(prefill, FailurePoint.SENT, 0.1, "gone") is None


@pytest.mark.parametrize("usable", [True, False], ids=["usable", "of another version"])
def test_a_trial_that_pays_comes_first_and_any_other_does_not_keep_the_rest_from_a_handover(site, ask, usable):
    placed = site({1: "prefill", 2: "prefill", 3: "decode"})
    placed.stream(ask(first=5_000), 3)
    placed.half_open(2, version="0.33.0" if usable else "0.32.0")
    planned = placed.core.planner.pair(ask(), 1_000.0)
    prefill = placed.core.planner.reserve(ask(), planned, 1_000.0).prefill
    assert (prefill.candidate.id, prefill.trial) == (("h:2", True) if usable else ("h:1", False))


def test_beside_a_trial_that_does_not_pay_a_worker_that_asked_for_a_pause_is_left_out(site, ask):
    placed = site({1: "prefill", 2: "prefill", 4: "prefill", 3: "decode"})
    placed.stream(ask(first=5_000), 3)
    placed.half_open(2, version="0.32.0")
    traffic.avoid(placed.fleet, placed.fleet.get("h:1"), 30.0, 1_000.0, trial=False)
    planned = placed.core.planner.pair(ask(), 1_000.0)
    assert planned.legs[0].seen.fleet.ids == ("h:4",)
    explained = placed.core.planner.explain(ask(), 1_000.0)
    assert {pair.prefill for pair in explained.pairs} == {"h:4"}
    traffic.avoid(placed.fleet, placed.fleet.get("h:4"), 30.0, 1_000.0, trial=False)
    assert placed.core.planner.pair(ask(), 1_000.0) is None


def test_a_request_that_names_a_half_open_prefill_worker_is_its_trial(site, ask):
    placed = site({1: "prefill", 2: "prefill", 3: "decode"})
    placed.half_open(2)
    planned = placed.core.planner.pair(ask(), 1_000.0, prefiller="h:2")
    prefill = placed.core.planner.reserve(ask(), planned, 1_000.0).prefill
    assert (prefill.candidate.id, prefill.trial) == ("h:2", True)


@pytest.mark.parametrize("usable", [True, False], ids=["usable", "of another version"])
def test_a_decode_worker_has_its_trial_in_a_pair_that_pays(site, ask, usable):
    placed = site({1: "prefill", 2: "decode", 3: "decode"})
    placed.stream(ask(first=5_000), 6)
    placed.half_open(2, version="0.33.0" if usable else "0.32.0")
    decode = placed.core.planner.reserve(ask(), placed.core.planner.pair(ask(), 1_000.0), 1_000.0)
    assert (decode.candidate.id, decode.trial) == (("h:2", True) if usable else ("h:3", False))
    assert not decode.prefill.trial
    again = placed.core.planner.reserve(ask(), placed.core.planner.pair(ask(), 1_000.0), 1_000.0)
    assert (again.candidate.id, again.trial) == ("h:3", False)
    placed.core.tickets.cancelled(decode, 1_001.0)
    assert not decode.trial


def test_two_workers_on_trial_are_no_pair(site, ask):
    placed = site({1: "prefill", 2: "prefill", 3: "decode", 4: "decode"})
    placed.stream(ask(first=5_000), 6)
    placed.half_open(2)
    placed.half_open(4)
    pairs = []
    for _ in range(2):
        decode = placed.core.planner.reserve(ask(), placed.core.planner.pair(ask(), 1_000.0), 1_000.0)
        pairs.append((decode.prefill.candidate.id, decode.candidate.id))
    assert pairs == [("h:2", "h:3"), ("h:1", "h:4")]


def test_the_blocks_of_a_handover_count_as_cached_once_they_have_arrived(placed, ask):
    _, decode = hand_over(placed, ask())
    slot, prompt = decode.candidate.slot, ask().prompt
    assert placed.residency.match(prompt, [slot])[slot].tokens == 0
    placed.core.tickets.arrived(decode)
    assert placed.residency.match(prompt, [slot])[slot].tokens == 992


def serve(placed, port, requests):
    """Let a worker serve prompts, one after the other, at 60 us per token and a fixed time between 5 and 25 ms."""
    now_s, rng = 0.0, random.Random(1)
    for request in requests:
        ticket = placed.core.dispatcher.dispatch(request, now_s, within={f"h:{port}"})
        now_s += rng.uniform(0.005, 0.025) + 60e-6 * request.prompt_tokens
        placed.core.tickets.first_token(ticket, now_s)
        placed.core.tickets.finished(ticket, Usage(request.prompt_tokens, 1), now_s)


def test_a_decode_worker_that_knows_short_prompts_alone_does_not_look_free_for_long_ones(site, ask):
    placed = site({1: "mixed", 3: "decode"})
    for port, tokens, first in ((1, 1_000, 1_000_000), (3, 2, 2_000_000)):
        serve(placed, port, [ask(tokens * n, first + 20_000 * n) for n in range(1, 16)])
    placed.fleet.describe("h:1", {}, 1.0, None, "prefill")
    placed.stream(ask(first=5_000), 20)
    planned = placed.core.planner.pair(ask(16_000, first=500_000), 8.0)
    assert isinstance(planned, LegPlan)
    assert planned.cost.alone_s > 0.5 * 60e-6 * 16_000 * (1 + 20 * 0.1)


def test_what_both_workers_report_must_be_equal(placed, ask):
    facts = placed.facts(events=False)
    half, full = (ConnectorFacts(name="NixlConnector", dtype=name) for name in ("torch.float16", "torch.float32"))
    for sender, receiver, paired in ((half, None, True), (half, half, True), (half, full, False), (None, full, True)):
        placed.fleet.probe_succeeded("h:1", replace(facts, connector=sender), 0.0)
        placed.fleet.probe_succeeded("h:3", replace(facts, connector=receiver), 0.0)
        assert isinstance(placed.core.planner.pair(ask(), 0.0), LegPlan) is paired
