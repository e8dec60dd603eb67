"""The parts that all watches share, and the protocols that they need."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final, Protocol

import zmq

from backends.vllm.metrics import MetricsPage
from backends.worker import Endpoint, WorkerFacts
from router.config.model import Config
from router.metrics.registry import Registry
from router.placement.fleet.fleet import Fleet
from router.residency.residency_map import ResidencyMap
from router.security.tls import WorkerTls
from router.tokenization.prompt_identifier import PromptIdentifier
from router.workers.event_pump import EventPump


class WatchMetrics:
    """The counters of the watches, and `registry`, which drops the series of workers that have left."""

    def __init__(self, registry: Registry) -> None:
        self.registry: Final = registry
        self.probes: Final = registry.counter("probes")
        self.late_probes: Final = registry.counter("late_probes")
        self.self_tests: Final = registry.counter("self_tests")
        self.event_replays: Final = registry.counter("event_replays")


class SelfTestLock(Protocol):
    """Let one process at a time test a worker, because other requests move the counters that some tests read."""

    def alone(self, worker: str) -> AbstractContextManager[bool]:
        """Lock the worker for the length of the block. The value is False if another process has it."""


class WorkerObserver(Protocol):
    """See what the watch of a worker learns, and say whether its engine hangs: `router.sidecar`."""

    def learned(self, endpoint: Endpoint, facts: WorkerFacts) -> WorkerFacts:
        """Take the facts of a full probe; return those that the fleet gets."""

    def load_read(self, page: MetricsPage) -> None: ...

    def fault(self) -> str | None:
        """Return why the worker may get no requests although it answers probes; None if it may."""


@dataclass(frozen=True, slots=True)
class WatchContext:
    """The parts that all watches share. `self_test_lock` is set if other processes test the same workers, and
    `observer` if the only worker is one's own."""

    fleet: Fleet
    residency: ResidencyMap
    identity: PromptIdentifier
    config: Config
    metrics: WatchMetrics
    worker_tls: WorkerTls
    clock: Callable[[], float] = time.monotonic
    self_test_lock: SelfTestLock | None = None
    observer: WorkerObserver | None = None
    via: str = ""
    """The name of this gateway, which probes carry."""
    zmq_context: zmq.Context[zmq.Socket[bytes]] = field(default_factory=lambda: zmq.Context(io_threads=1))
    pump: EventPump = field(default_factory=EventPump)
