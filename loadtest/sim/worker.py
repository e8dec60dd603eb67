"""One engine on virtual time."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from backends.engine.engine import Engine, EngineRequest, EngineRequestState, FinishReason, StepOutput
from backends.engine.events import CacheEvent
from backends.engine.profile import Profile
from backends.worker import LoadReport
from loadtest.sim.answers import Answer, Follow, StepEnds
from loadtest.sim.virtual_time import VirtualTime

_Report = tuple[str, int, FinishReason | None]
"""A request's id, its tokens so far, and the finish reason with the last one."""


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """One worker of a fleet. `speed` 2.0 is twice as fast, and without `num_blocks` the cache is the profile's.

    `async_scheduling` False corresponds to ``--no-async-scheduling``; vLLM switches it on by default since 0.14.
    """

    profile: Profile
    num_blocks: int | None = None
    speed: float = 1.0
    jitter: float = 0.05
    async_scheduling: bool = False


class EngineWorker:
    """Steps its engine while there is work. Tokens reach the caller `response_s` after the end of their step.

    A run of steps that only decode is computed at once, which saves an event per step. The run ends before the first
    step that does more, or with the next call from outside. A request that arrives at the exact end of such a step
    finds the next step begun. With `every_step` the engine goes step by step and reports every token: results are
    equal, but it is slower.

    Callbacks in `on_events` receive each step's cache events at the end of the step.
    """

    def __init__(
        self,
        time: VirtualTime,
        name: str,
        spec: WorkerSpec,
        seed: int,
        response_s: float = 0.0,
        *,
        every_step: bool = False,
    ) -> None:
        self.name = name
        self.on_events: list[Callable[[list[CacheEvent]], None]] = []
        self.engine = Engine(
            spec.profile,
            sample=self._next_token,
            num_blocks=spec.num_blocks,
            seed=seed,
            speed=spec.speed,
            jitter=spec.jitter,
            async_scheduling=spec.async_scheduling,
        )
        self._time = time
        self._response_s = response_s
        self._every_step = every_step
        self._answers: dict[str, Answer] = {}
        self._steps = StepEnds(response_s)
        self._foreseen_from: int | None = None
        """Number of the first step that was computed ahead and not applied to the engine yet."""
        self._plan = 0
        """Version of the look-ahead. An end event that was scheduled under an older version does nothing."""
        self._busy = False
        self._receivers: deque[tuple[EngineRequest, Callable[[int], None]]] = deque()
        """Prompts from other workers that wait for KV space."""

    def submit(self, request: EngineRequest, output_ids: Sequence[int], follow: Follow) -> Answer:
        """Begin a request whose answer will be `output_ids`; a hashed request needs none.

        Raises:
            RequestRefused: the request can never run on this worker.
        """
        self._settle()
        state = self.engine.add(request, self._time.now_s)
        answer = self._answers[request.id] = Answer(state, output_ids, self._steps, follow)
        self._wake()
        return answer

    def abort(self, name: str) -> None:
        """Drop a request if it still runs, and the blocks kept for it; nothing more is reported for it."""
        self._settle()
        self._answers.pop(name, None)
        self._receivers = deque(one for one in self._receivers if one[0].id != name)
        self.engine.abort(name)
        self.let_go(name)

    def receive(self, request: EngineRequest, ready: Callable[[int], None]) -> None:
        """Keep KV space for a request whose prompt's KV cache comes from another worker, as soon as there is some.

        `ready` then gets the prompt's tokens that are cached here already. Next comes `submit`, or `abort`.

        Raises:
            RequestRefused: the request can never run on this worker.
        """
        self.engine.check(request)
        self._receivers.append((request, ready))
        self._make_room()

    def let_go(self, name: str) -> None:
        """Release the blocks that an ended request keeps for another worker, if any."""
        self._settle()
        self.engine.let_go(name)
        self._make_room()
        self._wake()

    def catch_up(self) -> None:
        """Report the tokens that have arrived by now."""
        if not self._steps.look(self._time.now_s):
            return
        arrived = self._steps.arrived
        foreseen = 0 if self._foreseen_from is None else max(0, arrived - self._foreseen_from)
        for answer in self._answers.values():
            if answer.tokens:  # the first token has an event of its own
                state = answer.state
                tokens = answer.made_by(arrived, state.output_tokens + (foreseen if state.blocks else 0))
                if tokens > answer.tokens:
                    answer.tokens = tokens
                    answer.follow(tokens, None)

    def load(self) -> LoadReport:
        """Return the gauges that a scrape would find."""
        engine = self.engine
        preemptions = int(engine.statistics()["preemptions"])
        return LoadReport(0, len(engine.running), engine.waiting_requests, engine.kv_usage, preemptions=preemptions)

    def _make_room(self) -> None:
        while self._receivers:
            request, ready = self._receivers[0]
            self._settle()
            cached_tokens = self.engine.make_room(request)
            if cached_tokens is None:
                return
            self._receivers.popleft()
            ready(cached_tokens)

    def _next_token(self, state: EngineRequestState) -> int:
        return self._answers[state.id].output_ids[state.output_tokens]

    def _wake(self) -> None:
        """Begin a step, unless one is under way or nothing can run. A request may wait for blocks that others keep."""
        if self._busy:
            return
        ends_s = [] if self._every_step else self.engine.look_ahead(self._time.now_s)
        if ends_s:
            self._busy = True
            self._foresee(ends_s)
            return
        result = self.engine.step(self._time.now_s)
        if result is not None and (result.prefills or result.decodes or result.events):
            self._busy = True
            end_s = self._time.now_s + result.duration_s
            self._steps.ends_s.append(end_s)
            self._time.at(end_s, self._step_ended, result.events, self._news(result.outputs))

    def _foresee(self, ends_s: list[float]) -> None:
        first = len(self._steps.ends_s)
        self._steps.ends_s.extend(ends_s)
        self._foreseen_from = first
        for state in self.engine.running:
            self._answers[state.id].comes(state.output_tokens + 1, first)
        self._time.at(ends_s[-1], self._foreseen_ended, self._plan)

    def _settle(self) -> None:
        """Apply the steps of the look-ahead that have begun, and drop the others, which a call may now change."""
        first = self._foreseen_from
        if first is None:
            return
        ends_s = self._steps.ends_s
        begun = bisect_right(ends_s, self._time.now_s, first) + 1  # 1: the step under way has begun and will end
        if begun < len(ends_s):
            del ends_s[begun:]
            self._plan += 1
            self._time.at(ends_s[-1], self._foreseen_ended, self._plan)
        self._foreseen_from = None
        self.engine.skip(len(ends_s) - first)

    def _foreseen_ended(self, plan: int) -> None:
        if plan != self._plan:
            return
        self._settle()
        self._make_room()
        self._busy = False
        self._wake()

    def _news(self, outputs: list[StepOutput]) -> list[_Report]:
        """Note the step of these tokens, and return the answers whose arrival needs an event of its own."""
        step = len(self._steps.ends_s) - 1
        news: list[_Report] = []
        for name, _, finish in outputs:
            answer = self._answers.get(name)
            if answer is None:
                continue
            tokens = answer.state.output_tokens
            answer.comes(tokens, step)
            if tokens == 1 or finish is not None or self._every_step:
                news.append((name, tokens, finish))
        return news

    def _step_ended(self, events: list[CacheEvent], news: list[_Report]) -> None:
        if events:
            for callback in self.on_events:
                callback(events)
        if news:
            self._time.after(self._response_s, self._deliver, news)
        self._make_room()
        self._busy = False
        self._wake()

    def _deliver(self, news: list[_Report]) -> None:
        for name, tokens, finish in news:
            answer = self._answers.get(name)
            if answer is None:
                continue
            answer.tokens = tokens
            if finish is not None:
                del self._answers[name]
            answer.follow(tokens, finish)

    def statistics(self) -> dict[str, int | float]:
        """Return the engine's statistics, with the step that has begun."""
        self._settle()
        return self.engine.statistics()
