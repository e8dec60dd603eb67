"""The part of the running gateway that the admin API uses, as one protocol."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol

from backends.vllm.operations import WorkerOperation
from router.config.model import Config
from router.control.control import Control
from router.diagnosis.diagnose import Diagnosis
from router.diagnosis.measured import WorkerMeasured
from router.diagnosis.prefixes import SharedPrefix
from router.discovery.discovery import Discovery
from router.gateway.preview import PreviewedRequest
from router.placement.dispatcher import Dispatcher
from router.placement.fleet.fleet import Fleet
from router.replicas.replica import Replica
from router.residency.residency_map import ResidencyMap
from router.telemetry.history import TrafficHistory
from router.tokenization.prompt_identifier import PromptIdentifier
from router.workers.operations import WorkerOutcome
from router.workers.watcher import Watcher


class TakeoverState(StrEnum):
    """How far this process has handed its listening sockets over.

    `OFFERED`: a new process has the sockets and is starting. `DONE`: the new process accepts connections, and this one
    finishes its requests.
    """

    NONE = "none"
    OFFERED = "offered"
    DONE = "done"


class AdminSystem(Protocol):
    """The running gateway, seen by an operator. All calls happen on the gateway's event loop."""

    @property
    def config(self) -> Config: ...

    @property
    def control(self) -> Control:
        """The desired state, and the only way to change it."""

    @property
    def discovery(self) -> Discovery | None:
        """The sources of workers; None in one of several processes, whose supervisor runs them."""

    @property
    def fleet(self) -> Fleet:
        """Endpoints, their state and candidates."""

    @property
    def dispatcher(self) -> Dispatcher:
        """Policy, explanations, decision log, ledger and estimates."""

    @property
    def residency(self) -> ResidencyMap:
        """The cache view of each candidate, and the degree to which it can be trusted."""

    @property
    def watcher(self) -> Watcher:
        """Probes, event subscriptions and self-tests."""

    @property
    def identity(self) -> PromptIdentifier:
        """How each model's prompts are rendered and tokenised."""

    @property
    def replica(self) -> Replica | None:
        """This gateway among those of its fleet; None without Redis."""

    @property
    def accepting(self) -> bool:
        """The public port listens and no shutdown has begun."""

    @property
    def takeover_state(self) -> TakeoverState:
        """How far this process has handed over to another."""

    def in_flight(self) -> Mapping[str, int]:
        """Return requests at each worker, including those of a gateway that this one took over from."""

    def drained_everywhere(self, endpoint_id: str) -> bool:
        """Return whether a gateway that this one took over from also sends no requests to the worker.

        Each kept connection of its clients may still bring one request.
        """

    def limits(self) -> list[dict[str, Any]]:
        """Return the fill of each tenant's and key's limits now; see `RateAccount.statistics`."""

    def now_s(self) -> float:
        """Monotonic seconds, the clock that drives the core."""

    async def request_of(
        self, path: str, headers: Mapping[str, str], body: bytes, key_name: str | None = None
    ) -> PreviewedRequest:
        """Return the request that the gateway would make of these bytes, identified but not dispatched.

        Raises:
            RequestError: the error that the public port would answer.
        """

    async def operate(self, wanted: WorkerOperation, workers: Sequence[str]) -> list[WorkerOutcome]:
        """Carry out an operation on workers, all at once, and let every process follow what has changed there."""

    async def serving(self, model: str) -> Collection[str]:
        """Return the ids of the workers that serve `model`."""

    @property
    def traffic(self) -> TrafficHistory: ...

    def recent_traffic(self) -> Mapping[str, WorkerMeasured]:
        """Return what was measured of each candidate in the last one to two minutes."""

    def hot_prefixes(self, most: int) -> list[SharedPrefix]:
        """Return the shared prefixes that save the most prompt tokens, best first."""

    async def diagnosis(self) -> Diagnosis | None:
        """Return what hurts; None if no process answers."""

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """Return all metrics in the format that the Accept header `accept` asks for, and their content type."""
