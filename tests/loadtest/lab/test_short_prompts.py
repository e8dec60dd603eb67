"""Short prompts on one worker: vLLM computes those of one queue in one step, so holding them only delays them."""

from array import array
from random import Random
from statistics import fmean

import pytest

from backends.engine.profile import load_profile
from loadtest.sim.sessions import Session
from loadtest.sim.worker import WorkerSpec
from policies.spec import PolicySpec
from tests.support.simulated_conversations import Call
from tests.support.simulation import Setting, simulate

REQUESTS, SHORTEST_TOKENS, LONGEST_TOKENS, ANSWER_TOKENS = 150, 50, 400, 32


def words(rng, count):
    return array("I", (rng.randrange(300, 8_000) for _ in range(count)))


def requests(seed, rate_per_s):
    rng, at_s = Random(seed), 0.0
    for number in range(REQUESTS):
        at_s += rng.expovariate(rate_per_s)
        call = Call(words(rng, rng.randint(SHORTEST_TOKENS, LONGEST_TOKENS)), words(rng, ANSWER_TOKENS))
        yield Session(f"request {number}", at_s, (call,))


def ttft_s(policy, seed, rate_per_s):
    worker = WorkerSpec(load_profile("llama-3.1-8b-h100"), async_scheduling=True)
    played = simulate(Setting(workers=(worker,), policy=policy, seed=seed), requests(seed, rate_per_s))
    assert len(played.outcomes) == REQUESTS
    return fmean(one.ttft_s for one in played.outcomes)


@pytest.mark.parametrize("rate_per_s", [40.0, 60.0])
def test_holds_do_not_delay_short_prompts(rate_per_s):
    ratios = [
        ttft_s(PolicySpec(), seed, rate_per_s) / ttft_s(PolicySpec(hold=False), seed, rate_per_s) for seed in range(4)
    ]
    assert fmean(ratios) <= 1.02, ratios
