"""Faults: drawn from a seed, carried out, and recorded for the judgement."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random

from loadtest.soak.fleet import Admin, Fleet, Worker

_READY_LIMIT_S = 60.0


class Fault(StrEnum):
    KILL = "kill"
    """SIGKILL, and later a new process on the same port."""
    PAUSE = "pause"
    """SIGSTOP for a while: the worker accepts connections and answers nothing."""
    LOST_EVENTS = "lost_events"
    """KV event batches do not arrive. Some losses exceed the worker's replay buffer."""
    DRAIN = "drain"
    """Drained and later undrained through the admin port."""


WEIGHTS = {Fault.KILL: 4, Fault.PAUSE: 3, Fault.LOST_EVENTS: 2, Fault.DRAIN: 2}
DURATION_S = {
    Fault.KILL: (0.1, 3.0),
    Fault.PAUSE: (0.2, 9.0),
    Fault.LOST_EVENTS: (0.0, 0.0),
    Fault.DRAIN: (0.5, 4.0),
}
"""Range of durations, drawn uniformly. Some pauses are shorter than the stream's idle limit, some longer."""
LOST_BATCHES = (1, 400)
AT_ONCE = 2
EVERY_S = 5.0
"""Mean time between faults."""


@dataclass(slots=True)
class Window:
    """A fault on one worker. `end_s` is the time when the worker was ready again, and infinite until then."""

    fault: Fault
    worker: str
    begin_s: float
    end_s: float = float("inf")

    def overlaps(self, begin_s: float, end_s: float) -> bool:
        return self.begin_s <= end_s and begin_s <= self.end_s


@dataclass(slots=True)
class FaultLog:
    """All faults so far, in the order in which they began."""

    windows: list[Window] = field(default_factory=list)

    def on(self, worker: str, begin_s: float, end_s: float, kinds: frozenset[Fault]) -> bool:
        return any(
            each.worker == worker and each.fault in kinds and each.overlaps(begin_s, end_s) for each in self.windows
        )

    def counts(self) -> dict[str, int]:
        return {fault.value: sum(each.fault is fault for each in self.windows) for fault in Fault}


class Breaker:
    """Breaks a random worker every few seconds, at most `AT_ONCE` at a time, until cancelled."""

    def __init__(self, fleet: Fleet, admin: Admin, rng: Random, every_s: float = EVERY_S) -> None:
        self._fleet = fleet
        self._admin = admin
        self._rng = rng
        self._every_s = every_s
        self._broken: dict[Worker, asyncio.Task[None]] = {}
        self.log = FaultLog()
        self.troubles: list[str] = []
        """Workers that did not recover. This is a failure of the gateway, not of a client."""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / self._every_s))
            # Draw before the check, so that the time in which workers recover does not change the later draws.
            worker = self._rng.choice(self._fleet.workers)
            fault = self._rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
            duration_s = self._rng.uniform(*DURATION_S[fault])
            batches = self._rng.randint(*LOST_BATCHES)
            if worker in self._broken or len(self._broken) >= AT_ONCE:
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
