"""Play a recording through the engine model: recorded arrivals and lengths, with the engine's own scheduling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from backends.engine.engine import Engine, EngineRequest, EngineRequestState, StepResult
from backends.engine.profile import Profile
from loadtest.fidelity.recording import RecordedRequest, Recording
from loadtest.fidelity.virtual import VirtualWorker, unmatched

_IDS_PER_REQUEST = 1 << 16


@dataclass(frozen=True, slots=True)
class Replay:
    """The model's result: one state per recorded request, and the steps of each rank."""

    states: tuple[EngineRequestState, ...]
    steps: tuple[tuple[StepResult, ...], ...]
    rank_of: tuple[int, ...]

    def modelled(self, recorded: Sequence[RecordedRequest]) -> list[RecordedRequest]:
        return [_with_times(request, state) for request, state in zip(recorded, self.states, strict=True)]


def replay(recording: Recording, profile: Profile, *, async_scheduling: bool = True) -> Replay:
    """Play the recording through one engine per data-parallel rank; each request goes to the least loaded one, as in
    vLLM.

    The recordings hold no text, so every prompt is new to the cache. Each rank runs on its own clock.
    """
    steps: list[list[StepResult]] = [[] for _ in range(recording.ranks)]
    ranks = [VirtualWorker(_engine(recording, profile, async_scheduling), taken.append) for taken in steps]
    states, rank_of = [], []
    for index, request in enumerate(recording.requests):
        for rank in ranks:
            rank.run_until(request.arrived_s)
        chosen = min(range(len(ranks)), key=lambda number: ranks[number].load)
        states.append(ranks[chosen].arrive(_request(index, request), request.arrived_s))
        rank_of.append(chosen)
    for rank in ranks:
        rank.finish()
    return Replay(tuple(states), tuple(map(tuple, steps)), tuple(rank_of))


def _engine(recording: Recording, profile: Profile, async_scheduling: bool) -> Engine:
    return Engine(
        profile,
        sample=unmatched,
        max_num_batched_tokens=recording.max_num_batched_tokens,
        max_num_seqs=recording.max_num_seqs,
        jitter=0.0,
        async_scheduling=async_scheduling,
    )


def _request(index: int, request: RecordedRequest) -> EngineRequest:
    first_id = index * _IDS_PER_REQUEST
    return EngineRequest(request.id, range(first_id, first_id + request.prompt_tokens), request.output_tokens)


def _with_times(request: RecordedRequest, state: EngineRequestState) -> RecordedRequest:
    assert state.first_scheduled_s is not None
    assert state.first_token_s is not None
    assert state.finished_s is not None
    return replace(
        request,
        scheduled_s=state.first_scheduled_s,
        first_token_s=state.first_token_s,
        last_token_s=state.finished_s,
    )
