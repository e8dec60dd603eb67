"""What all watches share, and what they ask of the parts around them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import zmq

from router.config.model import HealthConfig, ResidencyConfig
from router.placement.fleet import Fleet
from router.residency.residency_map import ResidencyMap
from router.security.worker_tls import WorkerTls
from router.workers.event_pump import EventPump
from router.workers.selftest_rendering import PromptIdentifier


class WatchMetrics(Protocol):
    """What the watch tells the metrics."""

    def probed(self, kind: str, ok: bool) -> None:
        """A probe of `kind` quick, full or load ended."""
        ...

    def self_tested(self, verdict: str) -> None:
        """A self-test ended."""
        ...

    def replayed(self, worker: str, outcome: str) -> None:
        """A replay of KV events ended."""
        ...

    def event_iteration(self, duration_s: float) -> None:
        """One turn of the event loop was spent on KV events."""
        ...

    def worker_gone(self, worker: str) -> None:
        """A candidate left for good."""
        ...


class LearningIdentifier(PromptIdentifier, Protocol):
    """`router.tokenization.identity.Identity`, as far as a watch needs it."""

    def learn(
        self,
        model: str,
        root: str | None,
        tokenize_url: str | None,
        parent: str | None = None,
        context_tokens: int | None = None,
    ) -> None:
        """`model` is served from `root` in windows of `context_tokens`, and tokenised at `tokenize_url`; an adapter
        names its base."""
        ...


class SelfTestLock(Protocol):
    """Lets one process at a time test a worker: other requests would upset the counters that some tests read."""

    def alone(self, worker: str) -> AbstractContextManager[bool]:
        """Whether the worker is ours for as long as the block lasts."""
        ...


@dataclass(frozen=True, slots=True)
class WatchContext:
    """What all watches share. `self_test_lock` only where other processes test the same workers."""

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
