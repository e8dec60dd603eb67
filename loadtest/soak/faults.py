"""Faults: drawn from a seed, carried out, and remembered for the judgement."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random

from loadtest.soak.fleet import Admin, Fleet, Worker

_READY_LIMIT_S = 60.0


class Fault(StrEnum):
    """One way to break a worker, or to bother it."""

    KILL = "kill"
    """SIGKILL, and a new process on the same port some time later."""
    PAUSE = "pause"
    """SIGSTOP for a while: it accepts and answers nothing."""
    LOST_EVENTS = "lost_events"
    """KV event batches do not arrive; some more than its replay buffer holds."""
    DRAIN = "drain"
    """Drained and taken back through the admin port."""


WEIGHTS = {Fault.KILL: 4, Fault.PAUSE: 3, Fault.LOST_EVENTS: 2, Fault.DRAIN: 2}
DURATION_S = {
    Fault.KILL: (0.1, 3.0),
    Fault.PAUSE: (0.2, 9.0),
    Fault.LOST_EVENTS: (0.0, 0.0),
    Fault.DRAIN: (0.5, 4.0),
}
"""How long each lasts, drawn evenly: pauses on both sides of the stream's idle limit."""
LOST_BATCHES = (1, 400)


@dataclass(slots=True)
class Window:
    """A fault on one worker. `end_s` is when the worker was ready again, infinite until then."""

    fault: Fault
    worker: str
    begin_s: float
    end_s: float = float("inf")

    def overlaps(self, begin_s: float, end_s: float) -> bool:
        """Whether it was on at some time in between."""
        return self.begin_s <= end_s and begin_s <= self.end_s


@dataclass(slots=True)
class FaultLog:
    """All faults so far, in the order of their begin."""

    windows: list[Window] = field(default_factory=list)

    def on(self, worker: str, begin_s: float, end_s: float, kinds: frozenset[Fault]) -> bool:
        """Whether one of `kinds` was on at `worker` in between."""
        return any(
            each.worker == worker and each.fault in kinds and each.overlaps(begin_s, end_s) for each in self.windows
        )

    def counts(self) -> dict[str, int]:
        """Faults by kind."""
        return {fault.value: sum(each.fault is fault for each in self.windows) for fault in Fault}


class Breaker:
    """Breaks a random worker every few seconds, at most `at_once` at a time, until cancelled; then heals."""

    def __init__(self, fleet: Fleet, admin: Admin, rng: Random, every_s: float, at_once: int) -> None:
        self._fleet = fleet
        self._admin = admin
        self._rng = rng
        self._every_s = every_s
        self._at_once = at_once
        self._broken: dict[Worker, asyncio.Task[None]] = {}
        self.log = FaultLog()
        self.troubles: list[str] = []
        """Workers that did not come back: the gateway's failure, not a client's."""

    async def run(self) -> None:
        """Break until cancelled."""
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / self._every_s))
            # draw in any case, so that how fast workers come back does not change what is drawn
            worker = self._rng.choice(self._fleet.workers)
            fault = self._rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
            duration_s = self._rng.uniform(*DURATION_S[fault])
            batches = self._rng.randint(*LOST_BATCHES)
            if worker in self._broken or len(self._broken) >= self._at_once:
                continue
            task = asyncio.create_task(self._break(worker, fault, duration_s, batches), name=f"{fault} {worker.id}")
            self._broken[worker] = task
            task.add_done_callback(self._healed(worker))

    def _healed(self, worker: Worker) -> Callable[[asyncio.Task[None]], None]:
        def done(task: asyncio.Task[None]) -> None:
            del self._broken[worker]
            if not task.cancelled() and (error := task.exception()) is not None:
                self.troubles.append(f"{task.get_name()}: {type(error).__name__}: {error}")

        return done

    async def heal(self) -> None:
        """Wait until what is broken has come back."""
        while self._broken:
            await asyncio.wait(list(self._broken.values()))

    async def _break(self, worker: Worker, fault: Fault, duration_s: float, batches: int) -> None:
        loop = asyncio.get_running_loop()
        window = Window(fault, worker.id, loop.time())
        self.log.windows.append(window)
        match fault:
            case Fault.KILL:
                await asyncio.to_thread(self._fleet.kill, worker)
                await asyncio.sleep(duration_s)
                await asyncio.to_thread(self._fleet.restart, worker)
            case Fault.PAUSE:
                self._fleet.pause(worker)
                await asyncio.sleep(duration_s)
                self._fleet.resume(worker)
            case Fault.LOST_EVENTS:
                self._fleet.relays.lose(worker.index, batches)
            case Fault.DRAIN:
                await self._admin.drain(worker.id, True)
                await asyncio.sleep(duration_s)
                await self._admin.drain(worker.id, False)
        if not await self._admin.until_ready([worker.id], _READY_LIMIT_S):
            self.troubles.append(f"{worker.id} was not ready {_READY_LIMIT_S:.0f} s after {fault} had ended")
        window.end_s = loop.time()
