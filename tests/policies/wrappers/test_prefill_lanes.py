import random
from copy import deepcopy
from itertools import pairwise

import pytest
from msgspec.structs import replace

from policies.registry import build_policy
from policies.spec import PolicySpec
from policies.view import Decision, FleetView, LifecycleEvent, LifecycleEventKind
from policies.wrappers.lane_plan import delay_per_s, planned
from policies.wrappers.prefill_lanes import REPLAN_S, PrefillLanes
from policies.wrappers.workload_histogram import Mix, Part

DOCUMENT_S, CHAT_S = 4.0, 0.1
WORKERS = ("a", "b", "c", "d")
LEARNED = {"learned": True, "utilisation": 0.3}


def documents(per_s, decode_s=2.0):
    return Part(per_s, per_s * DOCUMENT_S, per_s * DOCUMENT_S**2, per_s * decode_s)


def chats(per_s, decode_s=7.0):
    return Part(per_s, per_s * CHAT_S, per_s * CHAT_S**2, per_s * decode_s)


def split(long, free, tied=None):
    return Mix(1.0, long, long if tied is None else tied, free)


def plan_of(views, long_per_s, free_per_s, current=None):
    return planned([split(documents(long_per_s), chats(free_per_s))], current, views, 0.1)


@pytest.fixture
def views(view):
    def make(count, **labelled):
        names = [f"w{number}" for number in range(count)]
        return [view(name, labels={"lane": labelled[name]} if name in labelled else {}, **LEARNED) for name in names]

    return make


class Traffic:
    """Documents of four seconds among chats of a tenth, as a policy sees them."""

    def __init__(self, policy, view, form):
        self.policy, self.view, self.form, self.now_s, self.labels = policy, view, form, 0.0, {}

    def fleet(self, prefill_s, **other):
        workers = [
            self.view(name, prefill_s=prefill_s, labels=self.labels.get(name, {}), **{**LEARNED, **other})
            for name in WORKERS
        ]
        return self.form(FleetView(self.now_s, tuple(workers)))

    def chat(self, request):
        self._place(request, CHAT_S)

    def document(self, request):
        self._place(request, DOCUMENT_S)

    def _place(self, request, prefill_s):
        fleet = self.fleet(prefill_s)
        self.now_s += 0.2
        placed_on(self.policy, request, fleet, fleet.worker(round(self.now_s * 5) % 4))

    def mixed(self, request, seconds, every=25):
        for number in range(round(seconds * 5)):
            self._place(request, CHAT_S if number % every else DOCUMENT_S)


@pytest.fixture
def prefill_lanes():
    return PrefillLanes(build_policy(PolicySpec("lpwl"), random.Random(0)), 0.1)


@pytest.fixture
def traffic(prefill_lanes, view, form):
    return Traffic(prefill_lanes, view, form)


@pytest.fixture
def chat(request_view):
    return request_view(decode_s=7.0)


# what lanes cost and save


def test_delay_grows_with_load_and_with_streams_and_goes_on_beyond_saturation():
    delays = [delay_per_s(chats(per_s).plus(documents(0.2)), 4, 0.1) for per_s in (1, 5, 20, 38, 60)]
    assert all(one < other for one, other in pairwise(delays))
    assert delay_per_s(chats(5), 4, 0.0) < delay_per_s(chats(5), 4, 0.1) < delay_per_s(chats(5, decode_s=9.0), 4, 0.1)
    assert delay_per_s(Part(), 4, 0.1) == 0.0


def test_documents_beside_chats_pay_for_a_lane_and_either_kind_alone_does_not(views):
    plan = plan_of(views(4), 0.2, 6)
    assert plan is not None and 1 <= plan.workers <= 3 and plan.streams_without > plan.streams_within
    assert plan_of(views(4), 0.2, 0.01) is None
    assert planned([], None, views(4), 0.1) is None
    assert plan_of(views(1), 0.2, 6) is None, "one worker has no lanes"


def test_no_lane_where_nearly_all_who_stream_are_tied_to_long_prefixes(views):
    long = documents(0.2, decode_s=3.0)
    everybody_else = Part(6.0, 0.6, 0.1, 42.0)
    assert planned([split(long, chats(0.1), tied=long.plus(everybody_else))], None, views(4), 0.1) is None


def test_the_lane_follows_the_load_and_leaves_neither_kind_without_a_worker(views):
    sizes = [plan_of(views(8), per_s, 6).workers for per_s in (0.1, 0.4, 1.0, 2.0)]
    assert sizes == sorted(sizes)
    assert 1 <= sizes[0] < sizes[-1] <= 7
    for long, free in ((2.0, 0.5), (0.01, 60.0), (5.0, 200.0)):
        plan = plan_of(views(3), long, free)
        assert plan is None or 1 <= plan.workers <= 2


def test_a_plan_is_kept_until_another_saves_a_tenth(views):
    mixes = [split(documents(0.4), chats(6))]
    best = planned(mixes, None, views(8), 0.1)
    near = best._replace(workers=best.workers - 1)
    costs = [
        delay_per_s(mixes[0].tied, plan.workers, 0.1) + delay_per_s(mixes[0].free, 8 - plan.workers, 0.1)
        for plan in (best, near)
    ]
    assert 1.0 < costs[1] / costs[0] < 1.0 / 0.9
    assert planned(mixes, near, views(8), 0.1).workers == near.workers
    assert planned(mixes, best, views(8), 0.1) == best
    assert plan_of(views(8), 0.6, 0.01, best) is None


@pytest.mark.parametrize(
    ("pins", "sizes"),
    [
        ({"w0": "prefill"}, {1, 2, 3}),
        ({"w0": "prefill", "w1": "prefill", "w2": "prefill"}, {3}),
        ({"w0": "decode", "w1": "decode", "w2": "decode"}, {1}),
        ({"w0": "prefill", "w1": "decode", "w2": "decode", "w3": "decode"}, {1}),
    ],
)
def test_pinned_workers_bound_the_lane(views, pins, sizes):
    assert plan_of(views(4, **pins), 0.1, 40).workers in sizes


@pytest.mark.parametrize("pin", ["prefill", "decode"])
def test_with_a_pin_there_is_a_lane_even_where_it_does_not_pay(views, pin):
    assert plan_of(views(4, w0=pin), 0.2, 0.01) is not None
    assert planned([], None, views(4, w0=pin), 0.1) is None
    everyone = {f"w{number}": pin for number in range(4)}
    assert plan_of(views(4, **everyone), 0.2, 6) is None, "nobody is left for one kind"


# prices


def priced(prefill_lanes, request, fleet):
    prices_s = prefill_lanes.prices_s(request, fleet)
    return dict(zip(fleet.ids, prices_s, strict=True)) if len(prices_s) else {}


def placed_on(prefill_lanes, request, fleet, placed):
    prefill_lanes.observe(
        LifecycleEvent(LifecycleEventKind.RESERVED, request, placed.id, fleet.now_s, placed=placed, fleet=fleet)
    )


def lane(prefill_lanes, traffic, chat):
    """Workers on which a chat costs more than elsewhere."""
    prices = priced(prefill_lanes, chat, traffic.fleet(CHAT_S))
    return {worker for worker, price_s in prices.items() if price_s}


def test_nothing_is_priced_before_there_is_a_lane(prefill_lanes, traffic, chat):
    assert priced(prefill_lanes, chat, traffic.fleet(DOCUMENT_S)) == {}
    for _ in range(200):
        traffic.chat(chat)
    assert priced(prefill_lanes, chat, traffic.fleet(DOCUMENT_S)) == {}
    assert prefill_lanes.statistics() == {"prefill_lanes": {}}


def test_documents_are_dearer_out_of_the_lane_and_chats_in_it(prefill_lanes, traffic, chat):
    traffic.mixed(chat, 60)
    within = lane(prefill_lanes, traffic, chat)
    assert 1 <= len(within) <= 3
    document = priced(prefill_lanes, chat, traffic.fleet(DOCUMENT_S))
    assert max(document[one] for one in within) < min(document[one] for one in document if one not in within)
    (shown,) = prefill_lanes.statistics()["prefill_lanes"].values()
    plan = prefill_lanes._model_lanes[chat.model].plan
    assert shown["workers"] == sorted(within) and len(within) == plan.workers
    assert shown["long_s"] == plan.long_s and shown["streams_without"] == plan.streams_without > 0.0


def test_prices_grow_with_the_streams_delayed_and_stay_finite(prefill_lanes, traffic, request_view, chat):
    traffic.mixed(chat, 60)
    longer = priced(prefill_lanes, chat, traffic.fleet(2 * DOCUMENT_S))
    long = priced(prefill_lanes, chat, traffic.fleet(DOCUMENT_S))
    assert all(long[worker] < longer[worker] < 1e3 for worker in long)
    short = priced(prefill_lanes, request_view(decode_s=0.1), traffic.fleet(CHAT_S))
    assert sum(short.values()) < sum(priced(prefill_lanes, chat, traffic.fleet(CHAT_S)).values())


def test_a_long_prefill_is_charged_its_decode_externality(prefill_lanes, traffic, chat):
    traffic.mixed(chat, 60)
    within, plan = lane(prefill_lanes, traffic, chat), prefill_lanes._model_lanes[chat.model].plan
    chats, documents = (priced(prefill_lanes, chat, traffic.fleet(long_s)) for long_s in (CHAT_S, DOCUMENT_S))
    for worker, price_s in documents.items():
        streams = plan.streams_within if worker in within else plan.streams_without
        assert price_s - chats[worker] == pytest.approx(0.1 * DOCUMENT_S * streams)


def test_the_lane_is_given_up_when_documents_stop(prefill_lanes, traffic, chat):
    traffic.mixed(chat, 60)
    assert priced(prefill_lanes, chat, traffic.fleet(CHAT_S))
    for _ in range(5 * 1_200):
        traffic.chat(chat)
    assert priced(prefill_lanes, chat, traffic.fleet(CHAT_S)) == {}


def test_another_process_with_the_same_traffic_has_the_same_lane(view, chat, form):
    lanes = []
    for _ in range(2):
        prefill_lanes = PrefillLanes(build_policy(PolicySpec("lpwl"), random.Random(0)), 0.1)
        traffic = Traffic(prefill_lanes, view, form)
        traffic.mixed(chat, 60)
        lanes.append(priced(prefill_lanes, chat, traffic.fleet(CHAT_S)))
    assert lanes[0] == lanes[1]


def test_labels_pin_workers_to_the_lane_and_out_of_it(prefill_lanes, traffic, chat):
    traffic.labels = {"c": {"lane": "prefill"}, "a": {"lane": "decode"}, "b": {"lane": "decode"}}
    traffic.mixed(chat, 60)
    prices = priced(prefill_lanes, chat, traffic.fleet(CHAT_S))
    assert prices["c"] > 0.0
    assert prices["a"] == prices["b"] == 0.0


def test_a_worker_that_has_gone_leaves_the_lane_to_the_next(prefill_lanes, traffic, chat):
    traffic.labels = {"c": {"lane": "prefill"}}
    traffic.mixed(chat, 60)
    without = FleetView(traffic.now_s, tuple(view for view in traffic.fleet(CHAT_S).workers if view.id != "c"))
    for _ in range(3):
        now_s = without.now_s + REPLAN_S
        without = traffic.form(FleetView(now_s, without.workers))
        for prefill_s in (CHAT_S, DOCUMENT_S):
            placed_on(prefill_lanes, chat, without, traffic.view("a", prefill_s=prefill_s, **LEARNED))
    prices = priced(prefill_lanes, chat, without)
    assert "c" not in prices
    assert prices == {} or max(prices.values()) > 0.0


def test_requests_that_may_not_go_everywhere_do_not_take_the_lane_along(prefill_lanes, traffic, chat):
    traffic.mixed(chat, 60)
    before = lane(prefill_lanes, traffic, chat)
    for _ in range(50):
        traffic.chat(chat)
        fleet = traffic.fleet(CHAT_S)
        few = traffic.form(FleetView(fleet.now_s, tuple(view for view in fleet.workers if view.id not in before)))
        placed_on(prefill_lanes, chat, few, few.worker(0))
    assert before & lane(prefill_lanes, traffic, chat)


def test_events_without_a_learned_view_are_ignored(prefill_lanes, traffic, chat, reserved):
    reserved(prefill_lanes, "a", chat)
    unlearned = traffic.fleet(DOCUMENT_S, learned=False)
    for kind in LifecycleEventKind:
        prefill_lanes.observe(
            LifecycleEvent(kind, chat, unlearned.ids[0], 1.0, placed=unlearned.worker(0), fleet=unlearned)
        )
    assert priced(prefill_lanes, chat, unlearned) == {}


def test_requests_without_prompt_make_no_lane(prefill_lanes, traffic, chat):
    """Calls that only count tokens, as long as documents by their size, beside chats."""
    for number in range(300):
        if number % 25:
            traffic.chat(chat)
        else:
            traffic.document(replace(chat, prompt_tokens=0))
    assert priced(prefill_lanes, chat, traffic.fleet(DOCUMENT_S)) == {}


# in the default rule


@pytest.mark.parametrize("on", [True, False])
def test_marginal_cost_explains_the_lane_and_can_do_without(view, chat, form, on):
    policy = build_policy(PolicySpec(lanes=on), random.Random(0))
    traffic = Traffic(policy, view, form)
    traffic.mixed(chat, 60)
    decision = policy.decide(chat, traffic.fleet(DOCUMENT_S))
    terms = [decision.terms[worker]["prefill_lane_s"] for worker in WORKERS]
    assert (max(terms) > min(terms)) is on
    costs = dict(zip(decision.ranked, decision.costs, strict=True))
    assert costs[decision.ranked[0]] == min(costs.values())
    if on:
        assert decision.terms[decision.ranked[0]]["prefill_lane_s"] == min(terms)


def test_a_long_prefill_spills_where_the_lane_is_full(view, chat, form):
    policy = build_policy(PolicySpec(), random.Random(0))
    traffic = Traffic(policy, view, form)
    traffic.mixed(chat, 60)
    fleet = traffic.fleet(DOCUMENT_S)
    costs = policy.decide(chat, fleet).terms
    dearest = max(costs[worker]["prefill_lane_s"] for worker in WORKERS)
    full = [
        traffic.view(one.id, prefill_s=DOCUMENT_S, queue_wait_s=dearest + 1.0, **LEARNED)
        if costs[one.id]["prefill_lane_s"] < dearest
        else one
        for one in fleet.workers
    ]
    chosen = policy.decide(chat, form(FleetView(fleet.now_s, tuple(full)))).ranked[0]
    assert costs[chosen]["prefill_lane_s"] == dearest


# around a rule that does not price in seconds


@pytest.fixture
def around(view, form, chat):
    """`lpwl` with a lane of one worker, and the name of that worker."""

    def make():
        policy = build_policy(PolicySpec("lpwl", lanes=True), random.Random(0))
        traffic = Traffic(policy, view, form)
        traffic.labels = {"a": {"lane": "prefill"}, **{worker: {"lane": "decode"} for worker in "bcd"}}
        traffic.mixed(chat, 60)
        (shown,) = policy.statistics()["prefill_lanes"].values()
        return policy, traffic, shown["workers"]

    return make


def candidates(traffic, **fields):
    """A fleet in which each worker has the facts of `fields`, by name."""
    usual = {**LEARNED, "prefill_s": CHAT_S, "running_requests": 5}
    workers = [traffic.view(name, **{**usual, **fields.get(name, {})}) for name in WORKERS]
    return traffic.form(FleetView(traffic.now_s, tuple(workers)))


def test_a_short_prompt_goes_outside_and_the_lane_is_ranked_last(around, chat):
    policy, traffic, lane = around()
    decision = policy.decide(chat, candidates(traffic, a={"running_requests": 0}, c={"running_requests": 4}))
    assert lane == ["a"] and decision.ranked == ("c", "b", "d", "a")
    assert decision.reason.endswith("; prefill lane: 3 of 4 candidates")
    assert decision.terms["a"]["prefill_lane_s"] > 0.0 == decision.terms["b"]["prefill_lane_s"]
    assert decision.terms["c"]["uncached_tokens"] == 100


def test_a_long_prompt_goes_into_the_lane_or_where_it_is_cached(around, chat):
    policy, traffic, _ = around()
    long = {name: {"prefill_s": DOCUMENT_S, "queue_wait_s": 1.0} for name in WORKERS}
    assert policy.decide(chat, candidates(traffic, **long)).ranked[0] == "a"
    cached = policy.decide(chat, candidates(traffic, **{**long, "c": {"running_requests": 1}}))
    assert cached.ranked[0] == "c" and cached.ranked[1] == "a"


def test_a_long_queue_on_its_own_side_sends_a_prompt_across(around, chat):
    policy, traffic, _ = around()
    queue = {name: {"queue_wait_s": 90.0} for name in "bcd"}
    decision = policy.decide(chat, candidates(traffic, a={"running_requests": 0}, **queue))
    assert decision.ranked[0] == "a" and "prefill lane" not in decision.reason


def test_without_candidates_on_a_side_or_known_speeds_nothing_is_left_out(around, chat):
    policy, traffic, _ = around()
    assert policy.decide(chat, FleetView(0.0, candidates(traffic).workers[:1])).ranked == ("a",)
    unknown = candidates(traffic, **{name: {"learned": False} for name in WORKERS})
    assert "prefill lane" not in policy.decide(chat, unknown).reason


def test_the_same_candidates_share_a_roster(around, chat):
    policy, traffic, _ = around()
    seen = []
    policy.inner.decide = lambda request, fleet: seen.append(fleet) or Decision(fleet.ids, "")
    workers = candidates(traffic)
    for _ in range(2):
        policy.decide(chat, workers)
    if not workers.is_small:
        assert seen[0].roster is seen[1].roster
    assert seen[0].ids == ("b", "c", "d")


def test_a_copy_keeps_its_lane_and_goes_its_own_way(around, chat):
    policy, traffic, _ = around()
    copy = deepcopy(policy)
    workers = candidates(traffic, a={"running_requests": 0})
    assert copy.decide(chat, workers).ranked == policy.decide(chat, workers).ranked
    before = policy.statistics()
    for _ in range(50):
        Traffic(copy, traffic.view, traffic.form).mixed(chat, 60, every=10_000)
    assert policy.statistics() == before


def test_the_weight_is_the_lanes_own_the_rules_or_a_tenth():
    def weight(*spec, **lanes):
        return build_policy(PolicySpec(*spec, hold=False, lanes=lanes), random.Random(0))._weight

    assert weight("lpwl") == 0.1 and weight("lpwl", stream_weight=0.3) == 0.3
    assert weight("marginal_cost", {"stream_weight": 0.2}) == 0.2
    assert weight("marginal_cost", {"stream_weight": 0.2}, stream_weight=0.0) == 0.0
