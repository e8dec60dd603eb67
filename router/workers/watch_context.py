"""The parts that all watches share, and the protocols that they need."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import zmq

from backends.vllm.metrics import MetricsPage
from backends.worker import Endpoint, WorkerFacts
from router.config.model import HealthConfig, ResidencyConfig
from router.placement.fleet.fleet import Fleet
from router.placement.fleet.lateness import LateVerdict
from router.residency.residency_map import ResidencyMap
from router.security.worker_tls import WorkerTls
from router.workers.event_pump import EventPump
from router.workers.selftest_rendering import SelftestIdentifier


class WatchMetrics(Protocol):
    def probed(self, kind: str, ok: bool) -> None:
        """Count a probe; `kind` is quick, full or load."""

    def probed_late(self, verdict: LateVerdict) -> None: ...
    def self_tested(self, verdict: str) -> None: ...
    def replayed(self, worker: str, outcome: str) -> None: ...

    def worker_gone(self, worker: str) -> None:
        """Drop the series of a candidate that has left."""


class LearningIdentifier(SelftestIdentifier, Protocol):
    """Identify prompts, and learn which models the workers serve:
    `router.tokenization.prompt_identifier.PromptIdentifier`."""

    def learn(
        self,
        model: str,
        root: str | None,
        tokenize_url: str | None,
        parent: str | None = None,
        context_tokens: int | None = None,
    ) -> None:
        """Record that `model` is served from `root` in a window of `context_tokens` and tokenised at `tokenize_url`.

        An adapter names its base model as `parent`.
        """


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
    identity: LearningIdentifier
    health: HealthConfig
    settings: ResidencyConfig
    metrics: WatchMetrics
    zmq_context: zmq.Context[zmq.Socket[bytes]]
    pump: EventPump
    clock: Callable[[], float]
    worker_tls: WorkerTls
    self_test_lock: SelfTestLock | None = None
    observer: WorkerObserver | None = None
    asks_connector: bool = False
    """Ask each worker for its KV connector."""
    via: str = ""
    """The name of this gateway, which probes carry."""
