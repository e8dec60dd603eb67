"""What the admin API needs of the running gateway, as one protocol that the composition root satisfies."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Protocol

from router.config.model import Config, WorkerConfig
from router.placement.dispatcher import Dispatcher
from router.placement.fleet import Fleet, FleetEndpoint
from router.placement.lifecycle_events import Request
from router.residency.residency_map import ResidencyMap
from router.tokenization.identity import Identity


class HandoverState(StrEnum):
    """How far this process has handed its listening sockets over.

    `OFFERED`: a new process has the sockets and is starting. `DONE`: the new process accepts connections, and this one
    finishes its requests.
    """

    NONE = "none"
    OFFERED = "offered"
    DONE = "done"


class Watching(Protocol):
    """`router.workers.watcher.Watcher`, as far as the admin API reads it."""

    def statistics(self) -> dict[str, Any]:
        """Per endpoint: restarts seen, self-tests and event subscriptions of its candidates."""
        ...


class AdminSystem(Protocol):
    """The running gateway, seen by an operator. All calls happen on the gateway's event loop."""

    @property
    def config(self) -> Config:
        """The effective settings the process was started with."""
        ...

    @property
    def fleet(self) -> Fleet:
        """Endpoints, their state and candidates."""
        ...

    @property
    def dispatcher(self) -> Dispatcher:
        """Policy, explanations, decision log, ledger and estimates."""
        ...

    @property
    def residency(self) -> ResidencyMap:
        """What each candidate's cache holds, and how far that is known."""
        ...

    @property
    def watcher(self) -> Watching:
        """Probes, event subscriptions and self-tests."""
        ...

    @property
    def identity(self) -> Identity:
        """How each model's prompts are rendered and tokenised."""
        ...

    @property
    def accepting(self) -> bool:
        """The public port listens and no shutdown has begun."""
        ...

    @property
    def handover_state(self) -> HandoverState:
        """How far this process has handed over to another."""
        ...

    def in_flight(self) -> Mapping[str, int]:
        """Requests at each worker now, by endpoint; those of a gateway whose place this one took included."""
        ...

    def drained_everywhere(self, endpoint_id: str) -> bool:
        """Whether a gateway whose place this one took sends a drained worker nothing either: the connections that its
        clients keep may bring it one more request each."""
        ...

    def now_s(self) -> float:
        """Monotonic seconds, the clock that drives the core."""
        ...

    async def add_worker(self, worker: WorkerConfig) -> FleetEndpoint:
        """Add an endpoint to the fleet and begin to watch it.

        Raises:
            ValueError: `worker.url` is not a worker URL.
            KeyError: an endpoint with that id is in the fleet already.
        """
        ...

    async def remove_worker(self, endpoint_id: str) -> None:
        """Forget an endpoint; started answers on it run to their end, other requests move where they can.

        Raises:
            KeyError: no such endpoint.
        """
        ...

    async def request_of(
        self, path: str, headers: Mapping[str, str], body: bytes, key_name: str | None = None
    ) -> Request:
        """The request the gateway would make of these bytes, identified but not dispatched.

        Raises:
            RequestError: as the public port would answer.
        """
        ...

    def exposition(self) -> tuple[bytes, str]:
        """All metrics in Prometheus text format, and their content type."""
        ...
