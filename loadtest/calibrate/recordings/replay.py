"""Play a recording through the engine model: recorded arrivals and lengths, with the engine's own scheduling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from backends.engine.engine import Engine, EngineRequest, EngineRequestState, StepResult
from backends.engine.profile import Profile
from loadtest.calibrate.recordings.recording import RecordedRequest, Recording

_IDS_PER_REQUEST = 1 << 16
UNMATCHED_ID = 1 << 31
"""Generated tokens count up from this id. No prompt contains them, so no prompt hits their blocks."""


def unmatched(state: EngineRequestState) -> int:
    """Return a next token that no prompt contains."""
    return UNMATCHED_ID + state.output_tokens


class VirtualWorker:
    """One engine on its own virtual clock. `on_step` is called for every step."""

    __slots__ = ("_engine", "_on_step", "now_s")

    def __init__(self, engine: Engine, on_step: Callable[[StepResult], None]) -> None:
        self._engine = engine
        self._on_step = on_step
        self.now_s = 0.0

    def run_until(self, time_s: float) -> None:
        while self._engine.has_work and self.now_s < time_s:
            result = self._engine.step(self.now_s)
            assert result is not None
            self._on_step(result)
            self.now_s += result.duration_s

    def arrive(self, request: EngineRequest, time_s: float) -> EngineRequestState:
        """Add a request. If a step runs, the engine sees the request when that step ends."""
        self.run_until(time_s)
        self.now_s = max(self.now_s, time_s)
        return self._engine.add(request, time_s)

    def finish(self) -> None:
        self.run_until(float("inf"))

    def statistics(self) -> dict[str, int | float]:
        return self._engine.statistics()


@dataclass(frozen=True, slots=True)
class Replay:
    """The model's result: the recorded requests with the model's times, and the steps."""

    requests: tuple[RecordedRequest, ...]
    steps: tuple[StepResult, ...]


def replay(recording: Recording, profile: Profile) -> Replay:
    """Play the recording. It holds no text, so every prompt is new to the cache."""
    engine = Engine(
        profile,
        sample=unmatched,
        max_num_batched_tokens=recording.max_num_batched_tokens,
        max_num_seqs=recording.max_num_seqs,
        jitter=0.0,
        async_scheduling=True,
    )
    steps: list[StepResult] = []
    worker = VirtualWorker(engine, steps.append)
    states = []
    for index, one in enumerate(recording.requests):
        prompt = range(index * _IDS_PER_REQUEST, index * _IDS_PER_REQUEST + one.prompt_tokens)
        states.append(worker.arrive(EngineRequest(one.id, prompt, one.output_tokens), one.arrived_s))
    worker.finish()
    return Replay(tuple(map(_with_times, recording.requests, states)), tuple(steps))


def _with_times(request: RecordedRequest, state: EngineRequestState) -> RecordedRequest:
    scheduled_s, first_s, last_s = state.first_scheduled_s, state.first_token_s, state.finished_s
    assert scheduled_s is not None and first_s is not None and last_s is not None
    return replace(request, scheduled_s=scheduled_s, first_token_s=first_s, last_token_s=last_s)
