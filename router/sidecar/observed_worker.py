"""The sidecar's worker: what its watch learns, and the answers of the public port that are about it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import StrEnum

from backends.vllm.metrics import MetricsPage
from backends.worker import Endpoint, WorkerFacts
from router.gateway.local import Answer
from router.placement.fleet.fleet import Fleet
from router.placement.fleet.health import SERVING
from router.sidecar.engine_check import EngineCheck

_LOOPBACK = re.compile(r"//(?:127\.0\.0\.1|\[::1\]|localhost):")


class SidecarState(StrEnum):
    """State of a sidecar and its worker. Only `READY` takes requests."""

    STARTING = "starting"
    READY = "ready"
    HUNG = "hung"
    UNHEALTHY = "unhealthy"
    ASLEEP = "asleep"
    DRAINING = "draining"


class ObservedWorker:
    """Satisfies `router.workers.watch_context.WorkerObserver`, and answers for the worker."""

    def __init__(self, check: EngineCheck) -> None:
        self._check = check
        self._fleet: Fleet | None = None
        self._draining: Callable[[], bool] = lambda: False
        self.facts: WorkerFacts | None = None
        """What the worker last reported; None until it has answered a probe."""
        self.started_s: float | None = None
        """When the worker's process began, by its metrics; another value is another process."""
        self.on_facts: Callable[[], None] = lambda: None
        """Called when the worker reports other facts than before."""

    def serve(self, fleet: Fleet, draining: Callable[[], bool]) -> None:
        """Answer from the state of `fleet` and of the drain."""
        self._fleet = fleet
        self._draining = draining

    def answers(self) -> Mapping[str, Callable[[], Answer]]:
        """Return the sidecar's answers by path."""
        return {
            "/health": self._readiness,
            "/ping": self._readiness,
            "/readyz": self._readiness,
            "/livez/engine": self._engine,
            "/version": self._version,
            "/kv_event_sources": self._event_sources,
        }

    # observer

    def learned(self, endpoint: Endpoint, facts: WorkerFacts) -> WorkerFacts:
        """Take the facts. The fleet gets those of one rank, because the gateways choose the rank."""
        before, self.facts = self.facts, facts
        if facts != before:
            self.on_facts()
        self._check.learned(endpoint, facts)
        first = {rank: cache for rank, cache in facts.caches.items() if rank == 0}
        return replace(facts, caches=first, event_sources=())

    def load_read(self, page: MetricsPage) -> None:
        self.started_s = page.started_s
        self._check.load_read(page)

    def fault(self) -> str | None:
        return self._check.fault()

    # answers

    @property
    def state(self) -> SidecarState:
        """The state, with the drain before all else."""
        if self._draining():
            return SidecarState.DRAINING
        if self._check.fault() is not None:
            return SidecarState.HUNG
        worker = next((endpoint.state for endpoint in self._fleet.endpoints), None) if self._fleet else None
        if worker in SERVING:
            return SidecarState.READY
        return SidecarState(worker.value) if worker is not None else SidecarState.STARTING

    @property
    def reason(self) -> str:
        """Why the sidecar is in this state."""
        reasons = [endpoint.reason for endpoint in self._fleet.endpoints] if self._fleet else []
        return self._check.fault() or next(iter(reasons), "no worker")

    def _readiness(self) -> Answer:
        state = self.state
        if state is SidecarState.READY:
            return 200, {"status": state.value}
        return 503, {"status": state.value, "reason": self.reason}

    def _version(self) -> Answer:
        return 200, {"version": (self.facts.version if self.facts is not None else None) or "unknown"}

    def _event_sources(self) -> Answer:
        """The engine's own publishers. A loopback host becomes ``*``: a gateway puts the sidecar's host there."""
        sources = self.facts.event_sources if self.facts is not None else ()
        return 200, {
            str(source.rank): {
                "enable_kv_cache_events": True,
                "publisher": "zmq",
                "endpoint": _LOOPBACK.sub("//*:", source.endpoint),
                "replay_endpoint": source.replay_endpoint and _LOOPBACK.sub("//*:", source.replay_endpoint),
                "buffer_steps": source.buffer_steps,
                "hwm": source.hwm,
                "topic": source.topic,
            }
            for source in sources
        }

    def _engine(self) -> Answer:
        fault = self._check.fault()
        return (200, {"status": "alive"}) if fault is None else (503, {"status": "hung", "reason": fault})
