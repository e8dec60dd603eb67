"""The part of the running gateway that the admin API uses: as a whole, and one of its processes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from backends.vllm.operations import WorkerOperation
from router.config.model import Config
from router.control.control import Control
from router.diagnosis.diagnose import Diagnosis
from router.diagnosis.measurements import Measurements
from router.discovery.discovery import Discovery
from router.placement.core import DecisionCore
from router.placement.fleet.fleet import Fleet
from router.replicas.replica import Replica
from router.requests.front import Front
from router.residency.residency_map import ResidencyMap
from router.telemetry.history import TrafficHistory
from router.telemetry.logs import Level
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


@dataclass(frozen=True, slots=True)
class WorkerNow:
    """One worker while a call waits for it. `quiet`: it has no request, and no process places one."""

    state: str
    reason: str
    draining: bool
    in_flight: int
    quiet: bool


class AdminView(Protocol):
    """The running gateway, seen by an operator: one process, or the supervisor of several.

    All calls happen on its event loop.
    """

    @property
    def config(self) -> Config: ...

    @property
    def processes(self) -> int:
        """The number of processes."""

    @property
    def control(self) -> Control:
        """The desired state, and the only way to change it."""

    @property
    def discovery(self) -> Discovery | None:
        """The sources of workers; None in one of several processes, whose supervisor runs them."""

    @property
    def replica(self) -> Replica | None:
        """This gateway among those of its fleet; None without Redis."""

    @property
    def accepting(self) -> bool:
        """The public port listens and no shutdown has begun."""

    @property
    def takeover_state(self) -> TakeoverState:
        """How far this process has handed over to another."""

    @property
    def traffic(self) -> TrafficHistory: ...

    async def now_at(self, worker_id: str) -> WorkerNow | None:
        """Return a worker's state and requests; None if it has left."""

    async def operate(self, wanted: WorkerOperation, workers: Sequence[str]) -> list[WorkerOutcome]:
        """Carry out an operation on workers, all at once, and let every process follow what has changed there."""

    async def serving(self, model: str) -> Collection[str]:
        """Return the ids of the workers that serve `model`."""

    async def diagnosis(self) -> Diagnosis | None:
        """Return what hurts; None if no process answers."""

    async def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """Return all metrics in the format that the Accept header `accept` asks for, and their content type."""

    async def log_from(self, level: Level) -> Sequence[int]:
        """Log from another level on. Return the processes that did not answer."""


class ProcessView(AdminView, Protocol):
    """One process, which has requests and workers."""

    @property
    def fleet(self) -> Fleet:
        """Endpoints, their state and candidates."""

    @property
    def core(self) -> DecisionCore:
        """Policy, explanations, decision log, ledger and estimates."""

    @property
    def residency(self) -> ResidencyMap:
        """The worker cache of each candidate, and the degree to which it can be trusted."""

    @property
    def watcher(self) -> Watcher:
        """Probes, event subscriptions and self-tests."""

    @property
    def identity(self) -> PromptIdentifier:
        """How each model's prompts are rendered and tokenised."""

    @property
    def measurements(self) -> Measurements: ...

    @property
    def gateway(self) -> Front:
        """The front: previews of requests, and the fill of limits."""

    def in_flight(self) -> Mapping[str, int]:
        """Return requests at each worker, including those of a gateway that this one took over from."""

    def now_s(self) -> float:
        """Monotonic seconds, the clock that drives the core."""
