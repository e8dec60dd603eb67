"""The two forms of a fleet, views and arrays, lead `marginal_cost` to the same decisions, for any views and events."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from policies.registry import build_policy
from policies.spec import PolicySpec
from policies.view import (
    FleetView,
    LifecycleEvent,
    LifecycleEventKind,
    RequestView,
    Residency,
    Roster,
    WorkerId,
    WorkerView,
)
from tests.policies.conftest import RunningRequests

BLOCK = 16
NEAR = {"rel": 1e-9, "abs": 1e-12}

few = st.sampled_from([0, 0, 1, 6, 30])
some_s = st.sampled_from([0.0, 0.05, 0.05, 0.1, 0.5]) | st.floats(0.0, 100.0)
prefill_s = st.sampled_from([0.1, 0.1, 4.0]) | st.floats(0.0, 100.0)
names = st.lists(st.integers(0, 9), min_size=1, max_size=6, unique=True)
blocks = st.lists(st.integers(0, 1), max_size=6).map(tuple)


@st.composite
def request_views(draw, name=None):
    hashes = draw(blocks)
    return RequestView(
        id=name or draw(st.sampled_from(["r1", "r2", "r3"])),
        model=draw(st.sampled_from(["m", "m", "n"])),
        prompt_tokens=draw(st.sampled_from([0, 7, 7])) + BLOCK * len(hashes),
        block_tokens=BLOCK,
        block_hashes=hashes,
        decode_s=draw(st.sampled_from([0.0, 2.0, 7.0])),
        waited_s=draw(st.sampled_from([0.0, 0.1, 50.0])),
    )


@st.composite
def views(draw, roster, learned, load=few):
    def view(worker, labels):
        held = draw(st.sampled_from([0, 16, 64, 90_000]))
        return WorkerView(
            id=worker,
            residency=draw(st.sampled_from(Residency)),
            cached_tokens=BLOCK * draw(st.integers(0, 4)),
            uncached_tokens=draw(st.sampled_from([0, 7, 7, 64, 500])),
            queued_tokens=draw(st.integers(0, 10**6)),
            running_requests=draw(load),
            kv_tokens=held,
            kv_capacity_tokens=draw(st.sampled_from([0, 440_000, 90_100])),
            queue_wait_s=draw(some_s),
            prefill_s=draw(prefill_s),
            utilisation=draw(st.sampled_from([0.0, 0.0, 0.5]) | st.floats(0.0, 0.97)),
            learned=learned,
            error_s=draw(st.sampled_from([0.0, 0.01, 1.0])),
            cached_tokens_by_tier=draw(st.none() | st.just({"GPU": 16, "CPU": 32})),
            queued_requests=draw(few),
            decode_externality_s=draw(some_s),
            kv_wait_s=draw(st.just(0.0) | some_s),
            labels=labels,
            idle_tokens=draw(st.sampled_from([0, 0, 50_000])),
        )

    return tuple(map(view, roster.ids, roster.labels))


@st.composite
def rosters(draw):
    pins = draw(st.dictionaries(st.integers(0, 9), st.sampled_from(["prefill", "decode"]), max_size=3))
    return [
        Roster(
            tuple(WorkerId(f"w{number}") for number in numbers),
            [{"lane": pins[number]} if number in pins else {} for number in numbers],
        )
        for numbers in draw(st.lists(names, min_size=1, max_size=3))
    ]


class Pair:
    """Two policies with the same past: one that sees views, and one that sees arrays."""

    def __init__(self, params):
        self.by_row, self.by_column = (build_policy(PolicySpec(params=params), random.Random(0)) for _ in range(2))
        self._running = []
        self.requests = RunningRequests()

    def forms(self, now_s, workers, roster):
        share = self.requests.share
        rows = FleetView(now_s, workers, roster, running_share=share)
        return rows, FleetView(now_s, None, roster, rows.columns, share)

    def placed(self, request, now_s, workers, roster, place):
        rows, columns = self.forms(now_s, workers, roster)
        self.requests.add(roster.ids[place], request.block_hashes)
        for policy, fleet in ((self.by_row, rows), (self.by_column, columns)):
            chosen = fleet.worker(place)
            policy.observe(
                LifecycleEvent(LifecycleEventKind.RESERVED, request, chosen.id, now_s, None, placed=chosen, fleet=fleet)
            )
        self._running.append((request, roster.ids[place]))

    def ended(self, kind, now_s):
        if self._running:
            request, worker = self._running.pop(0)
            for policy in (self.by_row, self.by_column):
                policy.observe(LifecycleEvent(kind, request, worker, now_s))

    def agree(self, request, now_s, workers, roster):
        rows, columns = self.forms(now_s, workers, roster)
        one, other = self.by_row.decide(request, rows), self.by_column.decide(request, columns)
        assert not columns.is_small, "a decision on arrays makes no object per worker"
        assert one.ranked[0] == other.ranked[0]
        assert (one.reason, one.unit, one.until_prefills_done) == (
            other.reason,
            other.unit,
            other.until_prefills_done,
        )
        assert one.hold_s == pytest.approx(other.hold_s, **NEAR)
        costs = dict(zip(other.ranked, other.costs, strict=True))
        assert len(costs) == len(other.ranked) == len(workers), "every worker once"
        assert costs == pytest.approx(dict(zip(one.ranked, one.costs, strict=True)), **NEAR)
        assert list(other.costs[1:]) == sorted(other.costs[1:])
        assert other.costs[0] == costs[other.ranked[0]]
        assert set(one.terms) == set(other.terms) == set(roster.ids)
        for worker in roster.ids:
            terms = one.terms[worker]
            assert other.terms[worker] == pytest.approx(terms, **NEAR)
            assert sum(terms.values()) == pytest.approx(costs[worker], rel=1e-9, abs=1e-9)


@given(data=st.data())
def test_rows_and_columns_decide_alike(data):
    draw = data.draw
    fleets, now_s = draw(rosters()), 0.0
    params = {"stream_weight": draw(st.sampled_from([0.1, 0.0, 1.0]))}
    pair = Pair(params)
    for number in range(draw(st.integers(0, 10))):
        roster = draw(st.sampled_from(fleets))
        now_s += draw(st.sampled_from([0.0, 0.3, 6.0, 90.0]))
        workers = draw(views(roster, draw(st.sampled_from([True, True, False]))))
        if draw(st.sampled_from([True, True, False])):
            place = draw(st.integers(0, len(workers) - 1))
            pair.placed(draw(request_views(f"past{number}")), now_s, workers, roster, place)
        else:
            pair.ended(draw(st.sampled_from(LifecycleEventKind)), now_s)
        pair.agree(draw(request_views()), now_s, workers, roster)
    roster = draw(st.sampled_from(fleets))
    pair.agree(draw(request_views()), now_s, draw(views(roster, draw(st.booleans()))), roster)


@given(data=st.data())
def test_rows_and_columns_price_a_lane_alike(data):
    """Documents of four seconds beside chats, so that the price is above 0."""
    draw = data.draw
    ids = tuple(WorkerId(f"w{number}") for number in range(draw(st.integers(2, 8))))
    roster, rng = Roster(ids, [{"lane": "prefill"}] + [{}] * (len(ids) - 1)), random.Random(draw(st.integers(0, 9)))
    plain = WorkerView(ids[0], Residency.EXACT, 0, 64, 0, 2, 0, 0, 0.0, 0.1, 0.3, learned=True)
    pair = Pair({})
    for number in range(150):
        own_s = 0.1 if number % 10 else 4.0
        workers = tuple(
            replace(plain, id=worker, labels=labels, prefill_s=own_s * (1.0 + 0.1 * rng.random()))
            for worker, labels in zip(ids, roster.labels, strict=True)
        )
        request = RequestView(f"r{number}", "m", 64, BLOCK, (number % 3, 1), decode_s=7.0)
        pair.placed(request, number * 0.2, workers, roster, rng.randrange(len(ids)))
    workers = draw(views(roster, True))
    request = draw(request_views())
    pair.agree(replace(request, model="m"), 30.0, workers, roster)
    free = tuple(replace(view, queued_requests=0, prefill_s=4.0) for view in workers)
    pair.agree(replace(request, model="m"), 30.0, free, roster)
    terms = pair.by_column.decide(replace(request, model="m"), pair.forms(30.0, free, roster)[1]).terms
    assert any(terms[worker]["prefill_lane_s"] for worker in ids)


@given(data=st.data())
def test_rows_and_columns_price_a_hot_prefix_alike(data):
    """Many requests with one prefix run on the first worker, which holds it."""
    draw = data.draw
    count = draw(st.integers(2, 8))
    roster = Roster(tuple(WorkerId(f"w{number}") for number in range(count)), [{}] * count)
    pair, learned = Pair({}), draw(st.booleans())
    workers = draw(views(roster, learned, load=st.integers(0, 3)))
    running = draw(st.integers(1, 60))
    holder = replace(workers[0], cached_tokens=3 * BLOCK, running_requests=running, error_s=0.0)
    workers = (holder, *workers[1:])
    for number in range(running):
        request = RequestView(f"hot{number}", "m", 64, BLOCK, (1, 2, 3, number + 10), decode_s=2.0)
        pair.placed(request, 0.1, workers, roster, 0)
    decode_s = draw(st.sampled_from([0.0, 2.0]))
    hot = RequestView("next", "m", 64, BLOCK, (1, 2, 3, 5), decode_s=decode_s)
    pair.agree(hot, 0.2, workers, roster)
    alone = tuple(replace(view, cached_tokens=0, running_requests=0) for view in workers[1:])
    if running > 12:
        _, columns = pair.forms(0.2, (holder, *alone), roster)
        priced = pair.by_column.decide(hot, columns).terms[holder.id]["hot_prefix_s"]
        growth_s = holder.decode_externality_s
        dearest_s = max(map(first_token_s, columns.workers))
        assert priced == pytest.approx(growth_s * running if growth_s else dearest_s)
    pair.agree(hot, 0.2, (holder, *alone), roster)


def first_token_s(view):
    return view.queue_wait_s + view.kv_wait_s + view.prefill_s / (1.0 - view.utilisation)
