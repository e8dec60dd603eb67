"""The engine model's side: a scenario in virtual time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from backends.engine.engine import Engine, EngineRequest, EngineRequestState, StepResult
from backends.engine.events import BlocksCached, BlocksEvicted
from backends.engine.profile import Profile
from loadtest.fidelity.outcome import BlockHistory, Outcome, Played
from loadtest.fidelity.scenarios import Scenario
from loadtest.fidelity.virtual import VirtualWorker, unmatched


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Settings of the modelled server."""

    profile: Profile
    num_blocks: int
    async_scheduling: bool

    def engine(self) -> Engine:
        """Return a new engine with an empty cache."""
        return Engine(
            self.profile,
            sample=unmatched,
            num_blocks=self.num_blocks,
            jitter=0.0,
            async_scheduling=self.async_scheduling,
        )


def play(scenario: Scenario, prompts: Mapping[str, Sequence[int]], settings: EngineSettings) -> Played:
    """Run `scenario` through a new engine."""
    history = BlockHistory()
    worker = VirtualWorker(settings.engine(), lambda result: _note(result, history))
    states = []
    for arrival in scenario.arrivals:
        if scenario.one_at_a_time:
            worker.finish()
        arrived_s = worker.now_s if scenario.one_at_a_time else arrival.at_s
        request = EngineRequest(arrival.id, prompts[arrival.id], arrival.answer_tokens)
        states.append(worker.arrive(request, arrived_s))
    worker.finish()
    return Played(tuple(map(_outcome, states)), history, int(worker.statistics()["preemptions"]))


def _note(result: StepResult, history: BlockHistory) -> None:
    end_s = result.started_s + result.duration_s
    for event in result.events:
        if isinstance(event, BlocksCached):
            for block_hash in event.hashes:
                history.stored(block_hash, end_s)
        elif isinstance(event, BlocksEvicted):
            for block_hash in event.hashes:
                history.removed(block_hash, end_s)


def _outcome(state: EngineRequestState) -> Outcome:
    assert state.cached_tokens is not None
    assert state.first_token_s is not None
    assert state.finished_s is not None
    return Outcome(
        id=state.id,
        prompt_tokens=state.prompt_tokens,
        cached_tokens=state.cached_tokens,
        output_tokens=state.output_tokens,
        arrived_s=state.arrived_s,
        first_token_s=state.first_token_s,
        last_token_s=state.finished_s,
    )
