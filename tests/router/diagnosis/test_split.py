import heapq
import random
from dataclasses import replace

import numpy as np
import pytest

from router.diagnosis.split import (
    MOST_BUSY,
    PhaseLoad,
    Price,
    Split,
    best,
    delay_s,
    prices,
    queue_s,
    stretched,
    wait_s,
)

LOAD = PhaseLoad(
    prefills_per_s=4.0,
    prefill_s=0.5,
    prefill_square_s2=0.4,
    moved_s=0.1,
    answers_per_s=4.0,
    gaps=200.0,
    gap_s=0.02,
    step_token_s=1e-7,
    context_tokens=5_000.0,
    kv_tokens=200_000.0,
)
PROMPTS = replace(LOAD, prefills_per_s=8.0, answers_per_s=8.0, gaps=500.0, step_token_s=1e-8, kv_tokens=0.0)
"""Half of eight workers' time is prefill, under light streams."""
ANSWERS = replace(LOAD, prefills_per_s=8.0, prefill_s=0.05, prefill_square_s2=0.004, answers_per_s=8.0)
SPLITS = [Split(p, d, m) for p in range(4) for d in range(4) for m in range(3) if d + m]


def simulated_wait_s(servers, rate_per_s, services_s, seed):
    """Mean wait of customers of a first-come-first-served queue with Poisson arrivals."""
    draw = random.Random(seed)
    free_at_s, now_s, waited_s = [0.0] * servers, 0.0, 0.0
    for service_s in services_s:
        now_s += draw.expovariate(rate_per_s)
        start_s = max(now_s, heapq.heappop(free_at_s))
        waited_s += start_s - now_s
        heapq.heappush(free_at_s, start_s + service_s)
    return waited_s / len(services_s)


def prefill_load(services_s, rate_per_s):
    mean_s = sum(services_s) / len(services_s)
    square_s2 = sum(one * one for one in services_s) / len(services_s)
    return replace(LOAD, prefills_per_s=rate_per_s, prefill_s=mean_s, prefill_square_s2=square_s2)


@pytest.mark.parametrize("servers", [1, 3, 8])
@pytest.mark.parametrize("busy", [0.5, 0.8])
@pytest.mark.parametrize("spread", ["equal", "exponential", "few long ones"])
def test_waits_for_a_prefill_are_those_of_a_simulated_queue(servers, busy, spread):
    draw = random.Random(1)
    make = {
        "equal": lambda: 0.5,
        "exponential": lambda: draw.expovariate(2.0),
        "few long ones": lambda: 4.0 if draw.random() < 0.1 else 0.2,
    }[spread]
    services_s = [make() for _ in range(60_000)]
    rate_per_s = busy * servers / (sum(services_s) / len(services_s))
    load = prefill_load(services_s, rate_per_s)
    expected_s = rate_per_s * simulated_wait_s(servers, rate_per_s, services_s, 2)
    near = pytest.approx(expected_s, rel=0.25, abs=0.05 * load.prefill_work)
    assert wait_s(load, Split(servers, 1, 0), 1.0) == near
    assert wait_s(load, Split(0, servers, 0), 0.0) == near


@pytest.mark.parametrize("context_busy", [0.3, 0.7])
def test_gaps_under_many_streams_are_those_of_simulated_steps(context_busy):
    """One worker whose step takes f + k * S: streams arrive, get a token each step, and leave."""
    draw, load = random.Random(3), replace(LOAD, gaps=50.0, context_tokens=1_000.0, prefills_per_s=0.0, kv_tokens=0.0)
    load = replace(load, answers_per_s=context_busy / (load.step_token_s * load.context_tokens * load.gaps))
    now_s, arrival_s, lefts, gap_sum_s, gaps = 0.0, 0.0, [], 0.0, 0
    for _ in range(20_000):
        step_s = load.gap_s + load.step_token_s * load.context_tokens * len(lefts)
        now_s, gap_sum_s, gaps = now_s + step_s, gap_sum_s + step_s * len(lefts), gaps + len(lefts)
        lefts = [left - 1 for left in lefts if left > 1]
        while arrival_s <= now_s:
            arrival_s += draw.expovariate(load.answers_per_s)
            lefts.append(50)
    slower_s = gap_sum_s / gaps - load.gap_s
    assert delay_s(load, Split(0, 1, 0)) == pytest.approx(0.1 * load.answers_per_s * load.gaps * slower_s, rel=0.15)


def test_the_stretch_is_continued_by_its_tangent():
    below, at, above = stretched(np.array([MOST_BUSY - 1e-6, MOST_BUSY, MOST_BUSY + 1e-6]))
    assert at - below == pytest.approx(above - at, rel=1e-3)
    assert np.isfinite(stretched(np.array([50.0]))).all()


def test_a_queue_without_load_has_no_wait():
    assert queue_s(np.array([0.0]), np.array([3.0]), 1.0)[0] == 0.0


@pytest.mark.parametrize("times", [0.1, 1.0, 10.0])
def test_a_further_worker_never_costs(times):
    load = replace(LOAD, prefills_per_s=times * 4.0, answers_per_s=times * 4.0)
    for split in SPLITS:
        now_s = delay_s(load, split)
        assert np.isfinite(now_s) and now_s >= 0.0, split
        for role in Split._fields:
            more = split._replace(**{role: getattr(split, role) + 1})
            assert delay_s(load, more) <= now_s * (1.0 + 1e-9), more
        assert min(prices(load, split)) >= 0.0, split


def test_without_load_no_worker_is_worth_anything():
    idle = replace(LOAD, prefills_per_s=0.0, answers_per_s=0.0)
    assert prices(idle, Split(1, 1, 1)) == Price(0.0, 0.0, 0.0)
    assert best(idle, Split(2, 3, 0)) == (Split(2, 3, 0), 0.0)


def test_the_dearer_pool_is_the_loaded_one():
    more_prefill, more_decode = prices(PROMPTS, Split(2, 6, 0)), prices(ANSWERS, Split(6, 2, 0))
    assert more_prefill.prefill > more_prefill.decode
    assert more_decode.decode > more_decode.prefill


def test_the_best_split_follows_the_load_and_keeps_the_number_of_workers():
    many, few = best(PROMPTS, Split(4, 4, 0))[0], best(ANSWERS, Split(4, 4, 0))[0]
    assert many.prefill > few.prefill
    assert sum(many) == sum(few) == 8
    assert (many.mixed, few.mixed) == (0, 0)


def test_the_best_split_is_the_cheapest_of_all():
    for start in (Split(1, 4, 0), Split(2, 2, 1), Split(0, 0, 5)):
        found, cost_s = best(LOAD, start)
        mixed = start.mixed if start.prefill or start.decode else 0
        every = [Split(p, sum(start) - mixed - p, mixed) for p in range(sum(start) - mixed)]
        assert cost_s == pytest.approx(min([delay_s(LOAD, one) for one in every]))
        assert delay_s(LOAD, found) == pytest.approx(cost_s)


def test_mixed_workers_stay_mixed_beside_others_and_may_be_split_alone():
    assert best(LOAD, Split(1, 3, 2))[0].mixed == 2
    assert best(replace(LOAD, moved_s=50.0), Split(0, 0, 4))[0] == Split(0, 0, 4)
    assert best(LOAD, Split(0, 0, 4))[0].mixed == 0


def test_a_slow_network_keeps_prefill_workers_from_paying():
    far = replace(LOAD, moved_s=5.0, prefills_per_s=1.0, answers_per_s=1.0)
    assert prices(far, Split(0, 4, 0)).prefill == 0.0
    assert best(far, Split(2, 2, 0))[0].prefill == 0


def test_a_full_kv_cache_makes_decode_workers_dear():
    roomy = replace(LOAD, kv_tokens=1e7)
    tight = replace(LOAD, kv_tokens=2.0 * 5_000.0)
    assert prices(tight, Split(2, 2, 0)).decode > 10.0 * prices(roomy, Split(2, 2, 0)).decode


def test_more_engines_per_worker_are_more_servers():
    assert delay_s(replace(LOAD, ranks=8.0), Split(1, 1, 0)) < delay_s(LOAD, Split(1, 1, 0))
