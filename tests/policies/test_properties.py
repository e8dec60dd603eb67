import random
from math import isfinite

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.registry import BUILT_IN, build_policy, terms_of
from policies.spec import PolicySpec
from policies.view import FleetView, LifecycleEvent, LifecycleEventKind, RequestView, Residency, WorkerId, WorkerView

DRAWN = ("random", "power_of_two")
TIES_BY_ORDER = ("cache_aware", "preble", "dualmap")

counts = st.integers(0, 1_000)
seconds = st.floats(0.0, 1e4)
ids = st.integers(0, 12).map(lambda number: WorkerId(f"h{number}:80" if number % 3 else f"h{number}:80#1"))
requests = st.builds(
    RequestView,
    id=st.sampled_from(["r1", "r2", "r3"]),
    model=st.just("m"),
    prompt_tokens=st.integers(0, 5_000),
    block_tokens=st.sampled_from([0, 16, 512]),
    block_hashes=st.lists(st.integers(0, 2**64 - 1), max_size=80).map(tuple)
    | st.integers(0, 80).map(lambda length: tuple(range(length))),
    session_id=st.none() | st.text(max_size=3),
    max_tokens=st.none() | counts,
    priority=st.integers(-3, 3),
    decode_s=seconds,
)


@st.composite
def workers(draw, worker, learned=False):
    cached = draw(st.integers(0, 5_000))
    return WorkerView(
        id=worker,
        residency=draw(st.sampled_from(Residency)),
        cached_tokens=cached,
        uncached_tokens=draw(st.integers(0, 5_000)),
        queued_tokens=draw(st.integers(0, 10**7)),
        running_requests=draw(counts),
        kv_tokens=draw(st.integers(0, 10**6)),
        kv_capacity_tokens=draw(st.sampled_from([0, 16, 440_000])),
        queue_wait_s=draw(seconds),
        prefill_s=draw(seconds),
        utilisation=draw(st.floats(0.0, 0.97)),
        learned=learned,
        error_s=draw(st.floats(0.0, 1.0)),
        cached_tokens_by_tier=draw(st.none() | st.just({"GPU": cached, "CPU": 32, "STORE": 16})),
        queued_requests=draw(counts),
        decode_externality_s=draw(seconds),
        kv_wait_s=draw(seconds),
        labels=draw(st.sampled_from([{}, {"lane": "prefill"}])),
        weight=draw(st.sampled_from([1.0, 0.5])),
        idle_tokens=draw(counts),
    )


@st.composite
def fleets(draw):
    names = draw(st.lists(ids, min_size=1, max_size=8, unique=True))
    learned = draw(st.booleans())  # all or none: a common speed is lent to those that have not learned theirs
    return FleetView(draw(st.floats(0.0, 1e6)), tuple(draw(workers(name, learned)) for name in names))


@st.composite
def pasts(draw):
    """Events of any requests on any workers, in any order, some without a reservation."""
    events = []
    for _ in range(draw(st.integers(0, 12))):
        worker = draw(ids)
        placed = draw(st.none() | workers(worker))
        events.append(
            LifecycleEvent(
                draw(st.sampled_from(LifecycleEventKind)), draw(requests), worker, draw(st.floats(0, 1e6)), 16, placed
            )
        )
    return events


def after(name, events):
    policy = build_policy(PolicySpec(name), random.Random(3))
    for event in events if hasattr(policy, "observe") else ():
        policy.observe(event)
    return policy


@given(request=requests, fleet=fleets(), events=pasts())
def test_every_candidate_is_ranked_once_with_its_cost_and_terms(request, fleet, events):
    for name in BUILT_IN:
        decision = after(name, events).decide(request, fleet)
        assert sorted(decision.ranked) == sorted(view.id for view in fleet.workers), name
        assert decision.reason, name
        assert len(decision.costs) in (0, len(decision.ranked)), name
        assert bool(decision.costs) == bool(decision.unit), name
        assert all(isinstance(cost, float) and isfinite(cost) for cost in decision.costs), name
        assert all(isfinite(value) for worker in decision.terms for value in decision.terms[worker].values()), name
        assert {term for worker in decision.terms for term in decision.terms[worker]} <= set(
            terms_of(PolicySpec(name))
        ), name


@given(request=requests, other=requests, fleet=fleets(), events=pasts())
def test_deciding_changes_nothing(request, other, fleet, events):
    for name in BUILT_IN:
        asked, unasked = after(name, events), after(name, events)
        first = asked.decide(request, fleet)
        if name not in DRAWN:  # all that those may change is their random source
            asked.decide(other, FleetView(fleet.now_s + 1_000.0, fleet.workers[:1]))
            assert asked.decide(request, fleet) == first, name
        assert unasked.decide(request, fleet) == first, name


@given(request=requests, fleet=fleets(), data=st.data())
def test_the_fleets_order_does_not_matter_where_turns_break_ties(request, fleet, data):
    shuffled = FleetView(fleet.now_s, tuple(data.draw(st.permutations(fleet.workers))))
    events = [LifecycleEvent(LifecycleEventKind.RESERVED, request, view.id, fleet.now_s) for view in fleet.workers]
    for name in BUILT_IN:
        if name not in (*DRAWN, *TIES_BY_ORDER):
            policy = after(name, events)
            assert policy.decide(request, shuffled).ranked == policy.decide(request, fleet).ranked, name


@given(request=requests, fleet=fleets(), events=pasts())
def test_one_worker_is_chosen_and_newcomers_are_ranked(request, fleet, events):
    newcomer = msgspec.structs.replace(fleet.workers[0], id=WorkerId("new:1"))
    for name in BUILT_IN:
        policy = after(name, events)
        assert policy.decide(request, FleetView(fleet.now_s, fleet.workers[:1])).ranked == (fleet.workers[0].id,), name
        grown = policy.decide(request, FleetView(fleet.now_s, (*fleet.workers, newcomer)))
        assert len(grown.ranked) == len(set(grown.ranked)) == len(fleet.workers) + 1, name


@pytest.mark.parametrize("name", BUILT_IN)
def test_memory_for_workers_and_requests_is_bounded(name):
    policy = build_policy(PolicySpec(name), random.Random(3))
    if not hasattr(policy, "observe"):
        return
    sizes = []
    for number in range(6_000):
        request = RequestView(f"r{number}", "m", 512, 16, tuple(range(32 * number, 32 * number + 32)), f"s{number}")
        for kind in (LifecycleEventKind.RESERVED, LifecycleEventKind.FINISHED):
            policy.observe(LifecycleEvent(kind, request, WorkerId(f"w{number}:1"), number * 0.1))
        if number in (4_500, 5_999):
            sizes.append(_entries(vars(policy)))
    assert sizes[1] <= sizes[0] * 1.01 + 10


def _entries(value, seen=None):
    seen = set() if seen is None else seen
    if id(value) in seen or isinstance(value, (str, int, float, msgspec.Struct, random.Random, type(None))):
        return 1
    seen.add(id(value))
    if isinstance(value, dict):
        return sum(_entries(item, seen) for item in value.values()) + len(value)
    if hasattr(value, "__iter__"):
        return sum(_entries(item, seen) for item in value)
    names = getattr(value, "__slots__", None) or getattr(value, "__dict__", ())  # a function of C has neither
    return sum(_entries(getattr(value, field), seen) for field in names)
