"""Run the engine model in virtual time: requests arrive, and one step follows another."""

from __future__ import annotations

from collections.abc import Callable

from backends.engine.engine import Engine, EngineRequest, EngineRequestState, StepResult

UNMATCHED_ID = 1 << 31
"""Generated tokens count up from this id. No prompt contains them, so no prompt hits their blocks."""


def unmatched(state: EngineRequestState) -> int:
    """Return a next token that no prompt contains."""
    return UNMATCHED_ID + state.output_tokens


class VirtualWorker:
    """One engine on its own virtual clock. `on_step` is called for every step."""

    __slots__ = ("_engine", "_on_step", "now_s")

    def __init__(self, engine: Engine, on_step: Callable[[StepResult], None] = lambda result: None) -> None:
        self._engine = engine
        self._on_step = on_step
        self.now_s = 0.0

    @property
    def load(self) -> int:
        """vLLM's own measure for choosing a data-parallel rank: a waiting request counts as four running ones."""
        statistics = self._engine.statistics()
        return int(4 * statistics["waiting"] + statistics["running"])

    def run_until(self, time_s: float) -> None:
        """Run every step that starts before `time_s`."""
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
        """Run until no request is left."""
        self.run_until(float("inf"))

    def statistics(self) -> dict[str, int | float]:
        return self._engine.statistics()
