from dataclasses import replace
from functools import partial

import pytest

from loadtest.sim.sessions import sessions_of
from loadtest.sim.worker import EngineWorker
from tests.support import simulation as run_module
from tests.support.simulated_conversations import Shape, conversations, planned_in_texts, small_workers
from tests.support.simulation import Setting, simulate

BUSY = Shape(
    sessions=24,
    starts_per_s=10.0,
    prefixes=5,
    prefix_tokens=(500, 3_000),
    turns=(1, 3),
    pause_s=0.5,
    answer_tokens=(40, 900),
    leaving_share=0.2,
    leaving_s=3.0,
)


def in_texts(seed):
    return list(sessions_of(planned_in_texts(seed, 24, (500, 3_000), (1, 900)), leaves_after_s=6.0))


@pytest.fixture
def run_both(monkeypatch):
    def run(setting, sessions):
        skipped = simulate(setting, sessions)
        with monkeypatch.context() as patch:
            patch.setattr(run_module, "EngineWorker", partial(EngineWorker, every_step=True))
            return skipped, simulate(setting, sessions)

    return run


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("drawn", [partial(conversations, BUSY), in_texts])
@pytest.mark.parametrize("events", [True, False])
def test_runs_are_equal_to_the_bit(run_both, drawn, events, async_scheduling):
    spec = replace(small_workers()[0], num_blocks=700, async_scheduling=async_scheduling)
    setting = Setting((spec, replace(spec, speed=1.2)), publishes_events=events, seed=3)
    skipped, stepped = run_both(setting, drawn(3))
    assert skipped == stepped
    assert [one.token_times_s() for one in skipped.outcomes] == [one.token_times_s() for one in stepped.outcomes]
    assert [len(one.token_times_s()) for one in skipped.outcomes] == [one.output_tokens for one in skipped.outcomes]
    assert sum(worker["preemptions"] for worker in skipped.workers) > 0, "caches are to be too small"
    assert any(one.ending == "left" and one.output_tokens for one in skipped.outcomes)
