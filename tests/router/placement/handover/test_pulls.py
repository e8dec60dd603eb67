"""When a worker pulls the start of a prompt, from which other worker, and the load that is reserved."""

import random

import msgspec
import pytest

from backends.worker import Endpoint
from policies.registry import build_policy
from policies.spec import PolicySpec
from policies.view import Residency
from policies.wrappers import lane_plan
from policies.wrappers.hold import AdmissionHold
from policies.wrappers.prefill_lanes import ModelLane, PrefillLanes
from router.config.model import Config, HandoverConfig, HealthConfig, WorkerConfig
from router.placement.core import DecisionCore
from router.placement.decision_log.decisions import DecisionRecord
from router.placement.decision_log.lines import DecisionLine, EventLine, decode
from router.placement.decision_log.log_replay import LogReplay
from router.placement.decision_log.recorder import Recorder
from router.placement.fleet.fleet import Fleet
from router.placement.handover.plan import LegPlan, peer_address
from router.placement.request import Request, Usage
from router.placement.settings import check
from router.placement.tickets import Held
from router.residency.residency_map import ResidencyMap
from tests.router.placement.test_decision_log import Lines
from tests.support.kv_wire import Wire

WIRE = Wire(block_size=16)
TOKENS = 1_000
HELD = list(range(992))


class Site:
    """Workers at ports, whose host memory holds what the test says."""

    def __init__(self, facts, roles, policy="marginal_cost", **handover):
        self.residency = ResidencyMap()
        self.fleet = Fleet(HealthConfig(), self.residency, connector=handover.get("connector"))
        spec = PolicySpec(policy)
        self.config = config = HandoverConfig(**{"pulls": "offloading_peer", "latency_s": 0.0} | handover)
        self.core = DecisionCore(
            self.fleet, self.residency, build_policy(spec, random.Random(0)), spec=spec, handover=config
        )
        for port, role in roles.items():
            self.fleet.add(Endpoint("http", "h", port), 0.0)
            self.fleet.describe(f"h:{port}", {}, 1.0, None, role)
            self.fleet.probe_succeeded(f"h:{port}", facts(), 0.0)
            self.residency.slot(self.at(port).slot).link_up()
            self.residency.slot(self.at(port).slot).replay_ended(True)
        self._seq = dict.fromkeys(roles, 0)

    def at(self, port):
        (candidate,) = self.fleet.get(f"h:{port}").candidates
        return candidate

    def hold(self, port, tokens=HELD, medium="CPU", removed=()):
        events = [WIRE.stored(list(tokens), medium=medium), WIRE.removed(list(removed), medium)]
        self.residency.slot(self.at(port).slot).ingest(self._seq[port], WIRE.batch(*events))
        self._seq[port] += 1

    def busy(self, port, prompt, count=1):
        """Reserve long prefills on one worker."""
        for number in range(count):
            request = Request(f"busy-{number}", "/v1/completions", "m", prompt(range(9_000, 19_000)), 10_000, 0.0)
            self.core.dispatcher.dispatch(request, 0.0, within={f"h:{port}"})

    def load(self, port):
        return self.core.statistics()["workers"][f"h:{port}"]

    def plan(self, request, now_s=0.0):
        planned = self.core.planner.pull(request, now_s)
        return planned if isinstance(planned, LegPlan) else None

    @property
    def decisions(self):
        return self.core.statistics()["decisions"]


@pytest.fixture
def site(facts):
    def make(*ports, roles=None, **handover):
        return Site(facts, dict.fromkeys(ports, "mixed") if roles is None else roles, **handover)

    return make


@pytest.fixture
def busy(site, prompt):
    """Two workers, of which the first has the prefix in host memory and a long prefill to do."""
    placed = site(1, 2)
    placed.hold(1)
    placed.busy(1, prompt)
    return placed


@pytest.fixture
def ask(prompt):
    def make(first=0, **fields):
        ids = prompt(range(first, first + TOKENS))
        return Request("r", "/v1/completions", "m", ids, TOKENS, 0.0, **fields)

    return make


def test_a_prefix_on_a_busy_worker_is_pulled_to_an_idle_one(site, ask, prompt):
    placed = site(1, 2)
    placed.hold(1)
    placed.busy(1, prompt, 5)
    planned = placed.plan(ask())
    assert (planned.source.id, planned.cost.tokens, planned.cost.loaded_tokens) == ("h:1", 992, 992)
    ticket = placed.core.planner.reserve(ask(), planned, 0.0)
    assert ticket.candidate.id == "h:2"
    assert placed.load(2)["queued_tokens"] == 8
    assert placed.load(2)["kv_tokens"] == TOKENS
    reason = ticket.record.decision.reason
    assert reason.startswith("pull 992 tokens from h:1: ")
    assert reason.endswith(" s without")
    placed.core.tickets.first_token(ticket, 0.5)
    placed.core.tickets.finished(ticket, Usage(TOKENS, 5), 1.0)
    assert placed.load(2)["running_requests"] == 0
    assert ticket.record.ttft_s == 0.5


def learned(placed, prompt, port):
    """Teach the speed of a worker: 60 us per token. Return the time."""
    now_s = 0.0
    for number in range(20):
        tokens = (500, 2_000, 8_000)[number % 3]
        ids = prompt(range(20_000 + 10_000 * number, 20_000 + 10_000 * number + tokens))
        request = Request(f"known-{number}", "/v1/completions", "m", ids, tokens, now_s)
        ticket = placed.core.dispatcher.dispatch(request, now_s, within={f"h:{port}"})
        now_s += 60e-6 * tokens
        placed.core.tickets.first_token(ticket, now_s)
        placed.core.tickets.finished(ticket, Usage(tokens, 1), now_s)
    return now_s


def test_a_worker_does_not_look_stalled_while_a_pull_is_under_way(site, ask, prompt):
    placed = site(1, 2)
    now_s = learned(placed, prompt, 2)
    placed.hold(1)
    placed.busy(1, prompt, 5)
    pulling = placed.core.planner.reserve(ask(), placed.plan(ask(), now_s), now_s)
    assert pulling.candidate.id == "h:2"
    other = Request("other", "/v1/completions", "m", prompt(range(9_000, 9_100)), 100, now_s + 10.0)
    ticket = placed.core.dispatcher.dispatch(other, now_s + 10.0, within={"h:2"})
    (seen,) = ticket.record.fleet.workers
    assert seen.queue_wait_s < 0.01
    assert (seen.queued_tokens, seen.queued_requests, seen.running_requests) == (8, 0, 1)
    assert ticket.situation.head_start_s == 0.0  # the transfer teaches nothing about prefills


@pytest.mark.parametrize(("stream", "queued"), [(True, 8), (False, 0)])
def test_the_rest_of_a_streamed_prompt_is_queued_until_its_first_token(site, ask, prompt, stream, queued):
    placed = site(1, 2)
    placed.hold(1)
    placed.busy(1, prompt, 5)
    ticket = placed.core.planner.reserve(ask(stream=stream), placed.plan(ask(stream=stream)), 0.0)
    assert placed.load(2)["queued_tokens"] == queued
    placed.core.tickets.cancelled(ticket, 1.0)
    assert (placed.load(2)["queued_tokens"], placed.load(2)["kv_tokens"]) == (0, 0)


def test_the_time_of_a_pull_teaches_no_prefill_speed_and_its_report_is_not_compared(busy, ask):
    ticket = busy.core.planner.reserve(ask(stream=True), busy.plan(ask(stream=True)), 0.0)
    assert ticket.situation is None
    assert ticket.predicted_cached_tokens is None
    assert ticket.residency is Residency.EXACT


@pytest.mark.parametrize(("medium", "teaches"), [("CPU", False), ("GPU", True)])
def test_a_prompt_that_a_worker_loads_from_its_own_host_memory_teaches_no_prefill_speed(site, ask, medium, teaches):
    placed = site(1)
    placed.hold(1, medium=medium)
    ticket = placed.core.dispatcher.dispatch(ask(stream=True), 0.0)
    assert (ticket.situation is not None) is teaches


def test_what_a_worker_loads_from_its_own_host_memory_is_no_prefill_that_others_wait_for(site, ask):
    placed = site(1)
    placed.hold(1, HELD[:480], medium="GPU")
    placed.hold(1)
    ticket = placed.core.dispatcher.dispatch(ask(stream=True), 0.0)
    assert ticket.predicted_cached_tokens == 480
    assert (placed.load(1)["queued_tokens"], placed.load(1)["kv_tokens"]) == (8, TOKENS)
    assert (
        placed.core.dispatcher.dispatch(ask(stream=True, reads_cache=False), 0.0).reservation.uncached_tokens == TOKENS
    )


def test_a_prompt_that_does_not_fit_into_the_kv_cache_is_not_pulled(site, ask, prompt):
    """It would keep the space that others wait for, too, for the time of its transfer."""
    placed = site(1, 2)
    placed.hold(1)
    assert isinstance(placed.core.planner.pull(ask(), 0.0, within={"h:2"}), LegPlan)
    tokens = 27_500 * 16 - TOKENS + 1
    filling = Request("f", "/v1/completions", "m", prompt(range(9_000, 9_000 + tokens)), tokens, 0.0)
    ticket = placed.core.dispatcher.dispatch(filling, 0.0, within={"h:2"})
    placed.core.tickets.first_token(ticket, 0.1)
    assert isinstance(placed.core.planner.pull(ask(), 0.1, within={"h:2"}), DecisionRecord)
    placed.core.tickets.finished(ticket, Usage(tokens, 1), 0.2)
    assert isinstance(placed.core.planner.pull(ask(), 0.2, within={"h:2"}), LegPlan)


def beside_a_prefill(site, prompt, **handover):
    """Return two workers of which the first has the prefix, and other prefills that take less than the prefix does."""
    placed = site(1, 2, **handover)
    placed.hold(1)
    placed.hold(1, medium="GPU")
    ahead = Request("ahead", "/v1/completions", "m", prompt(range(9_000, 9_500)), 500, 0.0)
    placed.core.dispatcher.dispatch(ahead, 0.0, within={"h:1"})
    return placed


def test_an_idle_worker_pulls_what_the_policy_would_queue_on_a_busy_one(site, ask, prompt):
    placed = beside_a_prefill(site, prompt, transfer_tokens_per_s=1e9)
    planned = placed.plan(ask())
    assert planned.answer.seen.decision.ranked[0] == "h:1"
    assert (planned.answer.worker.id, planned.source.id) == ("h:2", "h:1")
    assert planned.cost.cost_s < planned.cost.alone_s
    sink = Lines()
    placed.core.record(Recorder(sink, lambda: 1_700_000_000.0))
    ticket = placed.core.planner.reserve(ask(), planned, 0.0)
    assert list(LogReplay(sink.lines)) == [], "no policy decided for this worker"
    assert (ticket.candidate.id, ticket.record.by_policy) == ("h:2", False)
    assert sorted(ticket.record.decision.ranked) == ["h:1", "h:2"]
    assert ticket.record.decision.reason.endswith(" s without on h:1")
    assert beside_a_prefill(site, prompt, transfer_tokens_per_s=1_000.0).plan(ask()) is None


@pytest.mark.parametrize(
    ("lane", "long_s", "pulls"),
    [
        ({"h:2"}, 10.0, False),  # a short prompt has no business beside long prefills
        ({"h:1"}, 10.0, True),
        ({"h:1"}, 1e-9, False),  # even the rest is a long prefill, for which there is a lane
        ({"h:1", "h:2"}, 1e-9, True),
    ],
)
def test_another_worker_pulls_only_what_its_lane_allows(site, ask, prompt, lane, long_s, pulls):
    placed = beside_a_prefill(site, prompt, transfer_tokens_per_s=1e9)
    known = placed.core.dispatcher.dispatch(
        Request("known", "/v1/completions", "m", None, 10, 0.0), 0.0, within={"h:1"}
    )
    placed.core.tickets.first_token(known, 0.1)
    placed.core.tickets.finished(known, Usage(10, 100), 10.0)  # answers take 10 s
    assert placed.plan(ask()).answer.worker.id == "h:2"
    lanes = placed.core.policies.default.policy
    while not isinstance(lanes, PrefillLanes):
        lanes = lanes.inner
    model_lane = lanes._model_lanes["m"] = ModelLane(0.1)
    model_lane.plan, model_lane.lane = lane_plan.Plan(long_s, len(lane), 0.0, 1e6, 1.0), frozenset(lane)
    planned = placed.plan(ask())
    assert (planned is not None and planned.answer.worker.id == "h:2") is pulls


def test_a_policy_that_does_not_minimise_seconds_keeps_its_worker(site, ask, prompt):
    placed = beside_a_prefill(site, prompt, transfer_tokens_per_s=1e9, policy="lpwl")
    assert placed.core.planner.pull(ask(), 0.0).decision.ranked[0] == "h:1"


def test_a_worker_of_less_weight_gets_no_further_pulls(site, ask, prompt):
    placed = beside_a_prefill(site, prompt, transfer_tokens_per_s=1e9)
    placed.fleet.describe("h:2", {}, 0.5, None, "mixed")
    assert placed.plan(ask()) is None


def test_another_request_with_the_prefix_finds_it_only_once_it_has_arrived(busy, ask, prompt):
    ticket = busy.core.planner.reserve(ask(), busy.plan(ask()), 0.0)
    slot, tokens = busy.at(2).slot, ask().prompt
    assert busy.residency.match(tokens, [slot])[slot].tokens == 0
    busy.core.tickets.arrived(ticket)
    assert busy.residency.match(tokens, [slot])[slot].tokens == 992
    busy.core.tickets.first_token(ticket, 0.5)
    busy.core.tickets.cancelled(ticket, 0.5)
    busy.core.tickets.arrived(ticket)
    assert busy.residency.match(tokens, [slot])[slot].tokens == 0


def test_what_only_the_gpu_holds_is_not_pulled(site, ask, prompt):
    placed = site(1, 2)
    placed.hold(1, medium="GPU")
    placed.hold(1, range(5_000, 5_016))
    placed.busy(1, prompt)
    assert placed.plan(ask()) is None


@pytest.mark.parametrize("medium", ["CPU", "GPU"])
def test_a_worker_that_has_the_prefix_needs_no_pull(busy, ask, medium):
    busy.hold(2, medium=medium)
    assert busy.plan(ask()) is None


def test_a_slow_link_and_a_source_that_lost_the_blocks_pay_nothing(site, ask, prompt):
    slow = site(1, 2, transfer_tokens_per_s=1_000.0)
    slow.hold(1)
    slow.busy(1, prompt)
    assert slow.plan(ask()) is None
    lost = site(1, 2)
    lost.busy(1, prompt)
    lost.hold(1, removed=WIRE.hashes(HELD))
    assert lost.plan(ask()) is None


def test_without_the_setting_nothing_is_pulled(site, ask, prompt):
    placed = site(1, 2, pulls=None)
    placed.hold(1)
    placed.busy(1, prompt)
    assert placed.plan(ask()) is None


@pytest.mark.parametrize("fields", [{"reads_cache": False}, {"model": "other"}])
def test_requests_that_read_no_cache_or_have_no_worker_are_not_pulled(busy, ask, fields):
    assert busy.plan(ask()) is not None
    assert busy.plan(msgspec.structs.replace(ask(), **fields)) is None


def test_the_trial_of_a_worker_is_no_pull(site, ask, facts):
    placed = site(1, 2)
    placed.hold(1)
    for _ in range(5):
        placed.fleet.probe_failed("h:2", "down", 1.0)
    placed.fleet.probe_succeeded("h:2", facts(), 1_000.0)
    assert placed.plan(ask(), 1_000.0) is None


def test_the_policy_decides_once_about_a_request_that_pulls(busy, ask):
    sink, before = Lines(), busy.decisions
    busy.core.record(Recorder(sink, lambda: 1_700_000_000.0))
    ticket = busy.core.planner.reserve(ask(), busy.plan(ask()), 0.0)
    assert busy.decisions == before + 1
    (replayed,) = LogReplay(sink.lines)
    assert (replayed.recorded, replayed.same) == (ticket.candidate.id, True)
    assert ticket.record.by_policy
    with busy.core.what_ifs.begin(PolicySpec("least_requests")) as what_if:
        assert [one.request.id for one in what_if if one is not None][-1] == "r"


def test_the_policy_decides_once_about_a_request_for_which_no_pull_pays(site, ask, prompt):
    placed = site(1, 2)
    placed.hold(1)
    placed.hold(2)
    before = placed.decisions
    decided = placed.core.planner.pull(ask(), 0.0)
    ticket = placed.core.dispatcher.dispatch(ask(), 0.0, decided=decided)
    assert ticket.record.decision is decided.decision
    assert placed.decisions == before + 1


class Holds:
    def __init__(self, inner, until_prefills_done):
        self.inner, self._until_prefills_done = inner, until_prefills_done

    def decide(self, request, fleet):
        decision = self.inner.decide(request, fleet)
        return msgspec.structs.replace(decision, hold_s=1.0, until_prefills_done=self._until_prefills_done)

    def observe(self, event):
        self.inner.observe(event)


@pytest.mark.parametrize(("until_prefills_done", "pulls"), [(True, True), (False, False)])
def test_a_request_that_waits_for_kv_space_does_not_pull_and_one_that_waits_for_prefills_does(
    busy, ask, until_prefills_done, pulls
):
    spec = PolicySpec("marginal_cost")
    busy.core.policies.default.adopt(Holds(build_policy(spec, random.Random(0)), until_prefills_done), spec)
    decided = busy.core.planner.pull(ask(), 0.0)
    assert isinstance(decided, LegPlan) is pulls
    if not pulls:
        assert isinstance(busy.core.dispatcher.dispatch(ask(), 0.0, may_hold=True, decided=decided), Held)


def test_the_record_of_a_pull_keeps_the_hold_that_the_policy_asked_for(busy, ask):
    planned = busy.plan(ask())
    seen = planned.answer.seen
    seen.decision = msgspec.structs.replace(seen.decision, hold_s=1.0)
    assert busy.core.planner.reserve(ask(), planned, 0.0).record.decision.hold_s == 1.0


def means_of(policy):
    """Return the mean prefill and the mean fixed time by model that the hold has learned."""
    while not isinstance(policy, AdmissionHold):
        policy = policy.inner
    return {model: (usual.prefill.seconds, usual.fixed.seconds) for model, usual in policy._usual.items()}


def test_a_log_with_pairs_and_pulls_replays_to_the_same_choices(facts, prompt):
    roles = {1: "prefill", 2: "decode", 3: "decode"}
    placed = Site(facts, roles, connector="shared_store", transfer_tokens_per_s=1e12)
    for number in range(0, 80, 5):
        placed.hold(1, range(10_000 * number, 10_000 * number + 992))
    spec = PolicySpec("marginal_cost", hold=True, lanes=True)
    policy = build_policy(spec, random.Random(0))
    placed.core.policies.default.adopt(policy, spec)
    sink, rng, now_s, made = Lines(), random.Random(4), 0.0, {}
    placed.core.record(Recorder(sink, lambda: 1_700_000_000.0))
    core = placed.core
    for number in range(80):
        now_s += rng.expovariate(20.0)
        tokens = TOKENS if number % 5 == 0 else rng.choice([100, 500, 4_000])
        ids = prompt(range(10_000 * number, 10_000 * number + tokens))
        request = Request(f"r{number}", "/v1/completions", "m", ids, tokens, now_s, stream=True)
        pair = core.planner.pair(request, now_s) if number > 30 else None
        decided = core.planner.pull(request, now_s)
        if pair is not None:
            answer = core.planner.reserve(request, pair, now_s)
            tickets = answer.prefill, answer
        elif isinstance(decided, LegPlan):
            tickets = (core.planner.reserve(request, decided, now_s),)
        else:
            tickets = (core.dispatcher.dispatch(request, now_s, decided=decided),)
        made[request.id] = pair is not None, decided is not None
        for ticket in tickets:
            now_s += 60e-6 * tokens
            core.tickets.first_token(ticket, now_s)
            if number % 3:
                core.tickets.finished(ticket, Usage(tokens, 1), now_s)
    assert len(set(made.values())) == 4
    lines = [decode(line) for line in sink.lines]
    carried_out = {line.request.id for line in lines if isinstance(line, DecisionLine) and line.reserved}
    carried_out |= {line.request_id for line in lines if isinstance(line, EventLine) and line.decision}
    assert carried_out and not any(made[one][0] for one in carried_out)  # a pair follows no decision of the policy
    replay = LogReplay(sink.lines)
    assert [one for one in replay if not one.same] == []
    assert means_of(replay._runners["default"].policy) == means_of(policy) != {}


def test_pulls_learn_the_speed_of_their_own_links(busy, ask):
    planned = busy.plan(ask(stream=True))
    ticket = busy.core.planner.reserve(ask(stream=True), planned, 0.0)
    busy.core.planner.transferred(busy.core.planner.transfer(ticket, 0.0, planned), 2.0)
    (link,) = busy.core.planner.known_links(2.0)
    assert (link.kind, link.sender.id, link.receiver.id) == ("pull", "h:1", "h:2")
    assert 992 / link.tokens_per_s > 0.5
    assert busy.plan(ask(first=0), 2.0) is None


@pytest.mark.parametrize(
    ("label", "address"),
    [
        (None, ("h", 5_710)), ("6000", ("h", 6_000)), ("10.0.0.1:6000", ("10.0.0.1", 6_000)),
        ("[::1]:6000", ("::1", 6_000)), ("0", None), ("70000", None), ("10.0.0.1", None), ("x:y", None), ("", None),
        ("9" * 5_000, None), ("٣", None), ("000001234567", None), ("h:000006000", None),
    ],
)  # fmt: skip
def test_a_label_says_where_a_workers_side_channel_is(site, ask, prompt, label, address):
    placed = site(1, 2)
    placed.fleet.describe("h:1", {} if label is None else {"kv_peer": label}, 1.0, None, "mixed")
    assert peer_address(placed.at(1)) == address
    placed.hold(1)
    placed.busy(1, prompt)
    assert (placed.plan(ask()) is None) is (address is None)


@pytest.mark.parametrize("setting", ["pulls", "connector"])
def test_a_label_that_is_no_address_is_found_in_the_settings(setting):
    workers = (WorkerConfig(url="http://h:1", labels={"kv_peer": "x"}), WorkerConfig(url="http://h:2"))
    (finding,) = check(Config(workers=workers, handover=HandoverConfig(**{setting: "offloading_peer"})))
    assert finding[0] == ("workers", 0, "labels", "kv_peer")
    assert "'x'" in finding[1]
    assert list(check(Config(workers=workers))) == []
