"""The engine model compared with vLLM, briefly: `python -m loadtest fidelity` is the whole comparison.

Only the cached tokens have a limit here, because times depend on the load of the machine.
"""

import pytest
from rich.console import Console

from backends.engine.profile import load_profile
from backends.simulated.settings import shipped_model_dir
from loadtest.fidelity.comparison import CACHED_BAR
from loadtest.fidelity.differences import Cause
from loadtest.fidelity.prompts import prompt_ids
from loadtest.fidelity.run import compare, server_to_compare
from loadtest.fidelity.scenarios import high, one_at_a_time, pressure

PROFILE = load_profile("llama-3.1-8b-h100")
CACHE_TOKENS = 32_768
TIME_SCALE = 2.0
SCENARIOS = (one_at_a_time(0, 11), high(0, 16), pressure(0, 24))


@pytest.mark.nightly
@pytest.mark.parametrize("ahead", [True, False], ids=["async scheduling", "no async scheduling"])
async def test_the_same_arrivals_find_the_same_tokens_cached(vllm, executable, ahead):
    worker = server_to_compare(executable, PROFILE, CACHE_TOKENS, TIME_SCALE, async_scheduling=ahead)
    server = vllm(*worker.flags, kv_gib=worker.clock.kv_gib, time_scale=worker.clock.time_scale)
    work = [(scenario, prompt_ids(scenario, shipped_model_dir())) for scenario in SCENARIOS]
    alone, *loaded = await compare(server.url, server.worker, work, Console(quiet=True))
    assert alone.cached.differences == ()
    assert alone.evictions[0] == alone.evictions[1] > 1_000
    for one in loaded:
        assert one.cached.served > 10_000
        assert one.cached.causes[Cause.OTHER] == 0
    assert loaded[-1].preemptions[1] > 0
    # The limit is for all loaded scenarios together. Each has so few requests that one is more than 1 %.
    modelled, served = (sum(getattr(one.cached, side) for one in loaded) for side in ("modelled", "served"))
    assert modelled == pytest.approx(served, rel=CACHED_BAR)
