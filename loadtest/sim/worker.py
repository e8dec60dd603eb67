"""One engine on virtual time."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass

from backends.engine.engine import Engine, EngineRequest, FinishReason, RequestState, StepOutput, StepResult
from backends.engine.events import CacheEvent
from backends.engine.profile import Profile
from backends.worker import LoadReport
from loadtest.sim.virtual_time import VirtualTime

Follow = Callable[[int, FinishReason | None], None]
"""Told of each token that reaches the asker: tokens so far, and the reason if it was the last."""


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """One worker of a fleet. None and the defaults are the profile's own; `speed` 2.0 is twice as fast."""

    profile: Profile
    num_blocks: int | None = None
    max_num_seqs: int | None = None
    speed: float = 1.0
    jitter: float = 0.05


class EngineWorker:
    """Steps its engine while there is work; tokens reach whoever asked for them `response_s` after their step's end.

    `on_events` hears at each step's end of what changed in the cache.
    """

    __slots__ = ("_asked", "_busy", "_response_s", "_time", "engine", "name", "on_events")

    def __init__(self, time: VirtualTime, name: str, spec: WorkerSpec, seed: int, response_s: float = 0.0) -> None:
        self.name = name
        self.on_events: list[Callable[[list[CacheEvent]], None]] = []
        self.engine = Engine(
            spec.profile,
            sample=self._next_token,
            num_blocks=spec.num_blocks,
            max_num_seqs=spec.max_num_seqs,
            seed=seed,
            speed=spec.speed,
            jitter=spec.jitter,
        )
        self._time = time
        self._response_s = response_s
        self._asked: dict[str, _Asked] = {}
        self._busy = False

    def submit(self, name: str, prompt_ids: array[int], output_ids: array[int], follow: Follow) -> RequestState:
        """Begin a request that will be answered with `output_ids`.

        Raises:
            RequestRefused: it can never run here.
        """
        state = self.engine.add(EngineRequest(name, prompt_ids, len(output_ids)), self._time.now_s)
        self._asked[name] = _Asked(output_ids, follow)
        self._wake()
        return state

    def abort(self, name: str) -> None:
        """Drop a request, if it is still here; nobody hears of it again."""
        self._asked.pop(name, None)
        self.engine.abort(name)

    def load(self) -> LoadReport:
        """Its gauges, as a scrape would find them."""
        figures = self.engine.statistics()
        return LoadReport(0, int(figures["running"]), int(figures["waiting"]), figures["kv_usage"])

    def _next_token(self, state: RequestState) -> int:
        return self._asked[state.id].output_ids[state.output_tokens]

    def _wake(self) -> None:
        if self._busy:
            return
        result = self.engine.step(self._time.now_s)
        if result is not None:
            self._busy = True
            self._time.after(result.duration_s, self._step_ended, result)

    def _step_ended(self, result: StepResult) -> None:
        if result.events:
            for callback in self.on_events:
                callback(result.events)
        self._time.after(self._response_s, self._deliver, result.outputs)
        self._busy = False
        self._wake()

    def _deliver(self, outputs: list[StepOutput]) -> None:
        for name, _, finish in outputs:
            asked = self._asked.get(name)
            if asked is None:
                continue
            asked.tokens += 1
            if finish is not None:
                del self._asked[name]
            asked.follow(asked.tokens, finish)

    def statistics(self) -> dict[str, int | float]:
        """The engine's."""
        return self.engine.statistics()


class _Asked:
    """A request whose asker still listens: what to answer, and how much of it has arrived."""

    __slots__ = ("follow", "output_ids", "tokens")

    def __init__(self, output_ids: array[int], follow: Follow) -> None:
        self.output_ids = output_ids
        self.follow = follow
        self.tokens = 0
