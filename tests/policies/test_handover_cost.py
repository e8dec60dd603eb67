"""When a prompt on one worker and its answer on another cost less than both on one."""

import numpy as np
import pytest

from policies.handover_cost import (
    STREAM_WEIGHT,
    TERMS,
    alone_terms,
    cheapest_pair,
    loaded_s,
    pair_terms,
    pull_cost,
    space_price,
    total,
)  # fmt: skip
from policies.view import FleetView, Residency, WorkerId, WorkerView

FAST, NOW = 1e12, 0.0


def fleet(*workers):
    """Return a fleet. Each worker gives the facts in which it differs from an idle one with 1,000 uncached tokens."""
    facts = {
        "residency": Residency.EXACT,
        "cached_tokens": 0,
        "uncached_tokens": 1_000,
        "queued_tokens": 0,
        "running_requests": 0,
        "kv_tokens": 0,
        "kv_capacity_tokens": 100_000,
        "queue_wait_s": 0.0,
        "prefill_s": 0.5,
        "utilisation": 0.0,
        "learned": True,
    }
    return FleetView(NOW, tuple(WorkerView(WorkerId(f"w{n}"), **facts | given) for n, given in enumerate(workers)))


def pair_s(prefill, decode, tokens_per_s, latency_s, alike=True, streams=False):
    return np.where(alike, total(pair_terms(prefill, decode, tokens_per_s, latency_s, streams)), np.inf)


def alone_s(fleet):
    return total(alone_terms(fleet))


def cheapest_of(prefill, alone, decode, *speeds, **fields):
    return cheapest_pair(pair_s(prefill, decode, *speeds, **fields), decode, alone)


BUSY = {"running_requests": 20}


@pytest.mark.parametrize(
    ("why", "decode", "tokens_per_s", "pays"),
    [
        ("an idle worker needs no help", {}, FAST, False),
        ("streams that a prefill would stall", BUSY, FAST, True),
        ("a cached prompt stays where it is", {**BUSY, "prefill_s": 0.001, "uncached_tokens": 16}, FAST, False),
        ("a slow link", BUSY, 500.0, False),
    ],
)
def test_a_pair_pays_where_a_prefill_would_stall_streams(why, decode, tokens_per_s, pays):
    assert cheapest_of(fleet({}), fleet(decode), fleet(decode), tokens_per_s, 0.01).pays is pays, why


def test_the_cost_of_one_worker_and_of_a_pair():
    decode = fleet(BUSY)
    cost = cheapest_of(fleet({}), decode, decode, FAST, 0.01)
    assert (cost.cost_s, cost.alone_s) == pytest.approx((0.51, 0.5 + STREAM_WEIGHT * 0.5 * 20))
    cached = cheapest_of(fleet({}, {"prefill_s": 0.1}), decode, decode, FAST, 0.0)
    assert (cached.sender, cached.cost_s) == (1, pytest.approx(0.1)), "the prefill worker's own prefix counts"


@pytest.mark.parametrize(
    ("why", "prefill", "decode", "link", "costs_s"),
    [
        ("what is lacking is moved", [{}], [{}, {"uncached_tokens": 100}], (1_000.0, 0.01), [[1.51, 0.61]]),
        (
            "each pair has its own link",
            [{}, {}],
            [{}, {}],
            (np.array([[1_000.0, 500.0], [2_000.0, 250.0]]), np.array([[0.0, 0.1], [0.2, 0.3]])),
            [[1.5, 2.6], [1.2, 4.8]],
        ),
        (
            "KV space and queues",
            [{}, {"queue_wait_s": 4.0}],
            [{"kv_wait_s": 2.0}, {"queue_wait_s": 3.0}],
            (FAST, 0.0),
            [[2.5, 3.0], [6.5, 4.5]],
        ),
        ("the prefills that come next", [{"utilisation": 0.5}], [{}], (FAST, 0.0), [[1.0]]),
        (
            "streams that the answer slows",
            [{}],
            [{"decode_externality_s": 2.0}],
            (FAST, 0.0),
            [[0.5 + STREAM_WEIGHT * 2.0]],
        ),
        ("an estimate of which nothing is known", [{"prefill_s": 1.0, "error_s": 3.0}], [{}], (FAST, 0.0), [[0.5]]),
    ],
)
def test_costs_of_pairs_by_hand(why, prefill, decode, link, costs_s):
    assert pair_s(fleet(*prefill), fleet(*decode), *link) == pytest.approx(np.array(costs_s), abs=1e-6), why


@pytest.mark.parametrize(
    ("worker", "cost_s"),
    [
        ({"decode_externality_s": 2.0}, 0.5 + STREAM_WEIGHT * 2.0),
        ({"prefill_s": 5.0, "error_s": 2.0, "running_requests": 10}, 3.0 + STREAM_WEIGHT * 3.0 * 10),
        (
            {"queue_wait_s": 20.0, "prefill_s": 2.0, "error_s": 30.0, "running_requests": 10},
            11.0 + STREAM_WEIGHT * 1.0 * 10,
        ),
    ],
    ids=["streams that the answer slows", "an uncertain estimate, at its low end", "an unknown one, by half"],
)
def test_costs_of_one_worker_by_hand(worker, cost_s):
    assert alone_s(fleet(worker)) == pytest.approx([cost_s])


def test_the_cheapest_of_all_pairs_is_found():
    prefill = fleet({"queue_wait_s": 1.0}, {}, {"queue_wait_s": 2.0})
    decode = fleet({"kv_wait_s": 1.0}, {"kv_wait_s": 0.1})
    cost = cheapest_of(prefill, fleet({"queue_wait_s": 9.0}), decode, FAST, 0.0)
    assert (cost.sender, cost.receiver, cost.pays) == (1, 1, True)
    assert cost.cost_s == pytest.approx(0.6)


def test_workers_of_different_kinds_are_no_pair():
    prefill, decode = fleet({"prefill_s": 0.1}, {}), fleet(BUSY)
    alike = np.array([[False], [True]])
    assert cheapest_of(prefill, decode, decode, FAST, 0.0, alike=alike).sender == 1
    assert not cheapest_of(prefill, decode, decode, FAST, 0.0, alike=np.zeros((2, 1), bool)).pays


def test_streams_on_a_prefill_worker_make_the_pair_dearer():
    prefill, decode = fleet({"running_requests": 4}), fleet(BUSY)
    without = cheapest_of(prefill, decode, decode, FAST, 0.0)
    cost = cheapest_of(prefill, decode, decode, FAST, 0.0, streams=np.array([True]))
    assert cost.cost_s - without.cost_s == pytest.approx(STREAM_WEIGHT * 0.5 * 4)


def test_the_terms_are_those_that_are_described():
    both = fleet({}, {})
    assert set(alone_terms(both)) | set(pair_terms(both, both, FAST, 0.0)) == set(TERMS)


# pulls


REST_S = 0.5 * 100 * 1_900 / 1_000**2
"""Prefill of the last 100 of 1,000 tokens."""


def one(**given):
    """Return the view of one worker. The size of its KV cache is not known unless it is given."""
    return fleet({"kv_capacity_tokens": 0} | given).worker(0)


def pull(worker, sources, tokens_per_s=FAST, latency_s=0.0, own=0, alike=None, decode_s=0.0):
    if alike is None:
        alike = np.ones(len(sources), bool)
    return pull_cost(worker, own, np.array(sources, float), tokens_per_s, latency_s, alike, decode_s)


def test_a_pull_pays_where_the_transfer_is_shorter_than_the_prefill():
    cost = pull(one(), [900], 10_000.0, 0.01)
    assert (cost.pays, cost.tokens) == (True, 900)
    assert cost.alone_s == pytest.approx(0.5)
    assert cost.cost_s == pytest.approx(0.01 + 0.09 + REST_S)
    assert not pull(one(), [900], 1_000.0, 0.01).pays


def test_the_rest_of_a_prompt_costs_its_share_of_the_attention():
    worker = one(cached_tokens=600, uncached_tokens=400)
    whole, half, least = loaded_s(worker, np.array([0.0, 800.0, 999.0]), 0.0)
    assert whole == pytest.approx(alone_s(FleetView(NOW, (worker,)))[0])
    assert half == pytest.approx(0.5 * (1_000**2 - 800**2) / (1_000**2 - 600**2))
    assert 0.0 < least < 0.01


def test_the_transfer_and_the_queue_pass_together():
    assert pull(one(queue_wait_s=2.0), [900], 900.0).cost_s == pytest.approx(2.0 + REST_S)
    assert pull(one(queue_wait_s=0.2), [900], 900.0).cost_s == pytest.approx(1.0 + REST_S)


def test_kv_space_streams_and_the_answer_count_for_a_pull_too():
    worker = {"kv_wait_s": 1.0, "running_requests": 4, "decode_externality_s": 3.0}
    assert pull(one(**worker), [900]).cost_s == pytest.approx(
        1.0 + REST_S + STREAM_WEIGHT * (4 * REST_S + 3.0), abs=1e-6
    )


def test_a_prompt_pays_for_the_kv_space_that_it_holds_during_transfer_prefill_and_answer():
    worker = one(kv_capacity_tokens=10_000, kv_tokens=5_000)  # a tenth of the cache, of which half is free
    assert space_price(worker) == pytest.approx(0.2)
    priced, free = (pull(given, [900], 900.0, decode_s=2.0) for given in (worker, one()))
    assert priced.cost_s - free.cost_s == pytest.approx(0.2 * (1.0 + REST_S + 2.0))
    assert priced.alone_s - free.alone_s == pytest.approx(0.2 * (0.5 + 2.0))
    assert priced.delay_s == pytest.approx(free.cost_s)


def test_the_space_of_a_full_cache_has_a_finite_price():
    assert space_price(one(kv_capacity_tokens=10_000, kv_tokens=20_000)) == pytest.approx(0.1 / 0.03)


def test_only_what_the_worker_lacks_is_pulled():
    assert pull(one(cached_tokens=500, uncached_tokens=500, prefill_s=0.375), [800], 1e4).tokens == 300
    assert pull(one(cached_tokens=900, uncached_tokens=100), [800]).cost_s == np.inf


def test_a_slower_tier_of_its_own_needs_no_pull():
    assert not pull(one(), [900], own=900).pays
    cost = pull(one(), [900], 10_000.0, own=880)
    assert (cost.tokens, cost.alone_s) == (20, pytest.approx(0.5 * 120 * 1_880 / 1_000**2))


def test_each_source_has_its_link_and_its_share_of_the_prompt():
    cost = pull(one(), [950, 800, 950], np.array([100.0, 50_000.0, 100.0]))
    assert (cost.sender, cost.tokens) == (1, 800)
    cost = pull(one(), [950, 800, 950], np.array([100.0, 50_000.0, 50_000.0]))
    assert (cost.sender, cost.tokens) == (2, 950)


def test_a_worker_does_not_pull_from_itself_or_from_another_kind():
    assert pull(one(), [900, 800], alike=np.array([False, True])).sender == 1
    assert not pull(one(), [900], alike=np.array([False])).pays


def test_an_uncertain_prefill_makes_no_pull_free():
    cost = pull(one(prefill_s=5.0, error_s=4.9), [500], 250.0)
    assert cost.alone_s == pytest.approx(2.5)
    assert cost.cost_s == pytest.approx(2.0 + 2.5 * 0.75)
    assert not cost.pays
