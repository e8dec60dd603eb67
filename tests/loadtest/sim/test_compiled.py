import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from backends.engine.profile import load_profile
from loadtest.sim import worker
from loadtest.sim.sessions import sessions_of
from loadtest.sim.worker import WorkerSpec
from policies.spec import PolicySpec
from tests.support.simulated_conversations import planned_in_texts
from tests.support.simulation import Setting, simulate

ROOT = Path(__file__).parents[3]
SOURCE = worker.__file__.endswith(".py")


def digest(policy, async_scheduling):
    """What came of every call, and every worker's figures; the caches are too small."""
    profile = replace(load_profile("llama-3.1-8b-h100"), kv_tokens=40_000)
    fleet = (WorkerSpec(profile, async_scheduling=async_scheduling),) * 3
    plan = planned_in_texts(0, 80, (1_000, 3_000), (40, 240))
    run = simulate(Setting(fleet, PolicySpec(policy)), sessions_of(plan))
    assert sum(figures["evictions"] for figures in run.workers) > 1_000
    said = [(one.id, one.worker, one.ended_s, one.ttft_s, one.cached_tokens, *one.gaps_s()) for one in run.outcomes]
    return hashlib.sha256(repr((said, run.workers)).encode()).hexdigest()


@pytest.mark.skipif(SOURCE, reason="nothing is compiled here")
@pytest.mark.parametrize("policy", ["marginal_cost", "lpwl", "cache_aware"])
@pytest.mark.parametrize("async_scheduling", ["", "async"])
def test_compiled_says_what_the_source_says(policy, async_scheduling):
    command = [sys.executable, "-P", __file__, policy, async_scheduling]
    source = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True, timeout=100
    )
    assert source.stdout.split() == ["source", digest(policy, bool(async_scheduling))]


if __name__ == "__main__":
    print("source" if SOURCE else "compiled", digest(sys.argv[1], bool(sys.argv[2])))
