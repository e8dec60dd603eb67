"""Find an engine that hangs behind a server that still answers ``/health``.

vLLM's server and its engine are two processes. If the engine stops, ``/health`` answers 200 until the server notices,
which may never happen, and the gauges of ``/metrics`` keep their last values. So an engine without progress gets a
test request of one token, through the same queue as every request. It hangs if that request waits for `hung_after_s`
while no counter or gauge of ``/metrics`` moves. They change during a long prefill, so a slow engine does not hang.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable

import msgspec

from backends.vllm.control import ProbeError, RefusedError, WorkerClient
from backends.vllm.metrics import MetricsPage
from backends.worker import Endpoint, LoadReport, WorkerFacts
from router.config.model import SidecarConfig

PATH = "/v1/completions"
PAUSE_S = 1.0
"""Least time between two test requests."""

log = logging.getLogger("warmroute.sidecar")


class EngineProgress:
    """The progress of one rank's engine. Pure: times are arguments."""

    def __init__(self) -> None:
        self.moved_s = -math.inf
        self._waiting_since_s: float | None = None
        self._load: LoadReport | None = None

    def moved(self, now_s: float) -> None:
        self.moved_s = now_s

    def load_read(self, load: LoadReport, now_s: float) -> None:
        """Record the engine's gauges and counters; a change is progress."""
        before, self._load = self._load, load
        if before is not None and before != load:
            self.moved(now_s)

    @property
    def busy(self) -> bool:
        """Whether the last report had requests in the engine."""
        return self._load is not None and self._load.running + self._load.waiting > 0

    def tested(self, now_s: float) -> None:
        """Record that a test request was sent. Those before it that got no answer still count."""
        if self._waiting_since_s is None:
            self._waiting_since_s = now_s

    def answered(self, now_s: float) -> None:
        self._waiting_since_s = None
        self.moved(now_s)

    def excused(self) -> None:
        """Record that the test request ended without any word on the engine."""
        self._waiting_since_s = None

    def stuck_s(self, now_s: float) -> float:
        """Return how long a test request has waited without a sign of progress."""
        if self._waiting_since_s is None:
            return 0.0
        return now_s - max(self._waiting_since_s, self.moved_s)


class EngineCheck:
    """Test the engine of every rank of one worker while it makes no progress."""

    def __init__(self, settings: SidecarConfig, client: WorkerClient, now_s: Callable[[], float]) -> None:
        self._settings = settings
        self._client = client
        self._now_s = now_s
        self._ranks: dict[int, EngineProgress] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._endpoint: Endpoint | None = None
        self._facts = WorkerFacts()
        self._untestable: str | None = None

    def learned(self, endpoint: Endpoint, facts: WorkerFacts) -> None:
        """Test the worker at `endpoint`, which reported `facts`."""
        self._endpoint, self._facts = endpoint, facts
        if not self._settings.hung_after_s:
            return
        while len(self._tasks) < facts.ranks:
            rank = len(self._tasks)
            self._ranks[rank] = EngineProgress()
            self._tasks.append(asyncio.get_running_loop().create_task(self._follow(rank), name=f"engine check {rank}"))

    def load_read(self, page: MetricsPage) -> None:
        """Take the worker's gauges and counters."""
        for load in page.loads:
            if (progress := self._ranks.get(load.rank)) is not None:
                progress.load_read(load, self._now_s())

    def fault(self) -> str | None:
        """Return why the worker counts as hung; None if it does not."""
        now_s = self._now_s()
        stuck_s = max((progress.stuck_s(now_s) for progress in self._ranks.values()), default=0.0)
        if not self._settings.hung_after_s or stuck_s < self._settings.hung_after_s:
            return None
        return f"the engine hangs: a request of one token has waited for {stuck_s:.0f} s, and nothing has moved"

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.aclose()

    async def _follow(self, rank: int) -> None:
        progress = self._ranks[rank]
        while True:
            due_s = progress.moved_s + self._settings.test_interval_s
            await asyncio.sleep(max(min(PAUSE_S, self._settings.test_interval_s), due_s - self._now_s()))
            body = self._body()
            if body is not None and self._now_s() >= progress.moved_s + self._settings.test_interval_s:
                await self._test(rank, progress, body)

    def _body(self) -> bytes | None:
        """Return a request shorter than a block, which leaves nothing in the cache; None if it cannot be made."""
        models = [card.id for card in self._facts.models if card.parent is None]
        if not models or self._facts.sleeping or models[0] == self._untestable:
            return None
        return msgspec.json.encode({"model": models[0], "prompt": "a", "max_tokens": 1, "temperature": 0})

    async def _test(self, rank: int, progress: EngineProgress, body: bytes) -> None:
        assert self._endpoint is not None, "a body needs facts"
        headers = {"x-data-parallel-rank": str(rank)} if self._facts.ranks > 1 else {}
        limit_s = self._settings.hung_after_s
        progress.tested(began_s := self._now_s())
        try:
            await self._client.post_json(self._endpoint, PATH, body, headers=headers, timeout_s=limit_s)
        except RefusedError as refusal:
            self._refused(progress, refusal)
        except ProbeError:
            if self._now_s() - began_s < limit_s:  # it broke off: probes say whether the server is there
                progress.excused()
        else:
            progress.answered(self._now_s())

    def _refused(self, progress: EngineProgress, refusal: RefusedError) -> None:
        """A busy server may refuse by itself, without its engine. Any other refusal says nothing on the engine."""
        if refusal.status == 503 and progress.busy:
            return
        progress.excused()
        if refusal.status < 500:
            self._untestable = next(card.id for card in self._facts.models if card.parent is None)
            log.warning("the engine cannot be tested", extra={"reason": refusal.reason})
