"""One worker must never get all the traffic of a hot prefix, and round robin must never serve a mix better.

The real core, residency map and engine model (8B on H100) in virtual time.
"""

import itertools
import random

import pytest

SYSTEM_TOKENS = 2_000  # about 8,000 characters


def hot_prefix(count, output, seed=3, rate=None):
    """A shared system prompt with short unique questions."""
    rng = random.Random(seed)
    system = [rng.randrange(30_000) for _ in range(SYSTEM_TOKENS)]
    at_s = 0.0
    for _ in range(count):
        at_s += rng.expovariate(rate) if rate else 0.0
        yield at_s, system + [rng.randrange(30_000) for _ in range(rng.randint(10, 40))], rng.randint(*output)


def conversations(sessions, rate, seed=5, first=(500, 6_000)):
    """Sessions of six turns each over three system prompts, at fixed times."""
    rng = random.Random(seed)
    systems = [[rng.randrange(30_000) for _ in range(500)] for _ in range(3)]
    start_s, requests = 0.0, []
    for _ in range(sessions):
        start_s += rng.expovariate(rate)
        ids = rng.choice(systems) + [rng.randrange(30_000) for _ in range(rng.randint(*first))]
        at_s = start_s
        for _ in range(6):
            output = rng.randint(50, 200)
            requests.append((at_s, list(ids), output))
            ids += [rng.randrange(30_000) for _ in range(output + rng.randint(50, 400))]
            at_s += rng.expovariate(1 / 3.0) + output * 0.01
    return sorted(requests, key=lambda request: request[0])


def unrelated(count, rate, seed=1):
    """Prompts without reuse and of widely different lengths."""
    rng = random.Random(seed)
    at_s = 0.0
    for _ in range(count):
        at_s += rng.expovariate(rate)
        yield at_s, [rng.randrange(30_000) for _ in range(int(rng.lognormvariate(7, 1)) + 10)], rng.randint(20, 150)


@pytest.fixture(scope="module")
def cached_on_one_worker():
    """Return the cached share if all requests with the hot prefix went to one worker."""
    requests = list(hot_prefix(400, (16, 16)))
    whole_blocks = SYSTEM_TOKENS // 16 * 16
    return (len(requests) - 1) * whole_blocks / sum(len(ids) for _, ids, _ in requests)


HOT = list(itertools.product([(8, 8), (16, 16), (16, 200)], [0, 1, 20]))
BY_DAY = {((8, 8), 0), ((16, 16), 1), ((16, 200), 0), ((16, 200), 20)}


@pytest.mark.parametrize(
    ("output", "primed"),
    [pytest.param(*row, marks=[] if row in BY_DAY else pytest.mark.nightly) for row in HOT],
)
def test_a_hot_prefix_spreads_at_full_reuse(virtual_fleet, cached_on_one_worker, output, primed):
    """With a cold fleet or one worker that holds the prefix already, and with speeds learned or not.

    Answers of few tokens lengthen each other little, so that a copy is made later (the hot prefix price in
    `docs/decisions/the-default-rule.md`).
    """
    fleet = virtual_fleet()
    requests = list(hot_prefix(400 + primed, output))
    fleet.run(requests[:primed], in_flight=1)
    fleet.run(requests[primed:], in_flight=32, start_s=60.0)
    assert len(fleet.results) == 400
    assert max(fleet.shares.values()) <= (1.4 if output[1] < 100 else 1.3) / 4
    assert fleet.cached_share >= cached_on_one_worker - 0.02


def test_a_hot_prefix_spreads_without_events_too(virtual_fleet, cached_on_one_worker):
    fleet = virtual_fleet(events=False)
    fleet.run(hot_prefix(400, (16, 64)), in_flight=32)
    assert max(fleet.shares.values()) <= 1.3 / 4
    assert fleet.cached_share >= cached_on_one_worker - 0.02


@pytest.mark.parametrize("rate", [40, 80])
def test_a_hot_prefix_spreads_when_it_comes_slowly(virtual_fleet, rate):
    fleet = virtual_fleet().run(hot_prefix(300, (16, 200), rate=rate))
    assert max(fleet.shares.values()) <= 1.3 / 4


MIXES = {
    "hot prefix": lambda: hot_prefix(200, (16, 200), rate=20),
    "conversations": lambda: conversations(30, 3.0),
    "long conversations": lambda: conversations(12, 1.5, first=(5_000, 20_000)),
    "no reuse": lambda: unrelated(200, 30.0),
    "one at a time": lambda: unrelated(60, 2.0),
}


@pytest.mark.parametrize("mix", MIXES)
def test_never_worse_than_round_robin(virtual_fleet, mix):
    ours = virtual_fleet("marginal_cost").run(MIXES[mix]())
    theirs = virtual_fleet("round_robin").run(MIXES[mix]())
    assert ours.mean_ttft_s <= 1.05 * theirs.mean_ttft_s
    assert ours.mean_e2e_s <= 1.05 * theirs.mean_e2e_s
    assert ours.cached_share >= theirs.cached_share - 1e-9
    if mix == "conversations":
        assert ours.mean_ttft_s <= 0.6 * theirs.mean_ttft_s and ours.cached_share >= 0.75


def test_a_slow_worker_gets_less(virtual_fleet):
    fleet = virtual_fleet(speeds=[1.0, 1.0, 1.0, 0.33]).run(unrelated(300, 40.0))
    shares = [fleet.shares[f"127.0.0.1:{9000 + index}"] for index in range(4)]
    assert shares[3] < 0.6 * min(shares[:3])


def test_the_growth_of_a_step_is_learned_on_the_way_and_all_load_is_released(virtual_fleet):
    """The engine's profile has 41.4 ns per context token."""
    fleet = virtual_fleet().run(conversations(40, 6.0))
    workers = fleet.core.statistics()["workers"].values()
    for worker in workers:
        assert worker["decode_step_context_ns"] == pytest.approx(41.4, rel=0.5)
        assert (worker["running_requests"], worker["queued_tokens"], worker["kv_tokens"]) == (0, 0, 0)
    assert sum(worker["predicted_cached"]["equal"] for worker in workers) >= 0.9 * len(fleet.results)
