from __future__ import annotations

import asyncio
from collections.abc import Collection

from backends.vllm.control import ProbeError, ProbeFault, WorkerClient
from backends.vllm.probe import quick_probe
from backends.worker import Endpoint

_OPEN_QUESTIONS = 4
"""Most questions that wait for one worker's answer. The oldest is given up for the next one."""
_NEVER_S = 86_400.0
_SLICE_S = 0.25
_TURN_S = 0.05
"""A turn of the event loop that is later was held up by the gateway's own work, or the process was stopped."""


class HealthQuestion:
    """The question to one worker, asked again while earlier ones are still open.

    A late answer shows that the worker lives, so it counts like one in time.
    """

    def __init__(self, client: WorkerClient, endpoint: Endpoint, timeout_s: float) -> None:
        self._client = client
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self._open: list[asyncio.Task[None]] = []

    async def ask(self) -> None:
        """Ask, and wait for the answer to this question or to an earlier one.

        Raises:
            ProbeError: any result but a 200. `ProbeFault.LATE`: no answer has come within the time-out.
        """
        asked = quick_probe(self._client, self._endpoint, timeout_s=_NEVER_S)
        self._open.append(asyncio.create_task(asked, name=f"health of {self._endpoint.authority}"))
        left_s = self._timeout_s
        while left_s > 0:
            left_s -= await attend(self._open, left_s)
            if self._any_answered():
                return
        while len(self._open) >= _OPEN_QUESTIONS:
            self._open.pop(0).cancel()
        raise ProbeError(f"/health gave no answer within {self._timeout_s:g} s", ProbeFault.LATE)

    def _any_answered(self) -> bool:
        ended = [task for task in self._open if task.done()]
        for task in ended:
            self._open.remove(task)
        problems = [task.exception() for task in ended]
        if None in problems:
            self.close()
            return True
        for problem in problems:
            late = isinstance(problem, ProbeError) and problem.fault is ProbeFault.LATE
            if problem is not None and not (late and self._open):  # else others may still be answered
                raise problem
        return False

    def close(self) -> None:
        while self._open:
            self._open.pop().cancel()


async def attend(tasks: Collection[asyncio.Task[None]], limit_s: float) -> float:
    """Wait until one of `tasks` ends, for `limit_s` at most. Return the time for which the event loop could take an
    answer.

    While the process is stopped or the loop is busy, answers wait in their sockets. That is not the worker's time.
    """
    loop = asyncio.get_running_loop()
    began_s, slice_s = loop.time(), min(_SLICE_S, limit_s)
    await asyncio.wait(tasks, timeout=slice_s, return_when=asyncio.FIRST_COMPLETED)
    held_up = loop.time() - began_s > slice_s + _TURN_S
    return slice_s / 4 if held_up else slice_s  # not nothing, so that a loop that is always busy ends the wait, too
