"""One gateway process as its admin port sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from backends.vllm.operations import WorkerOperation
from router.admin.system import TakeoverState, WorkerNow
from router.config.model import Config
from router.control.control import Control
from router.diagnosis.diagnose import Diagnosis
from router.diagnosis.facts import facts_of
from router.diagnosis.measurements import Measurements
from router.diagnosis.split_plan import members
from router.discovery.discovery import Discovery
from router.placement.core import DecisionCore
from router.placement.fleet.fleet import Fleet
from router.process.banner import Readiness, readiness_of
from router.process.control_plane import ControlPlane, ProcessKnows
from router.process.ports import Ports
from router.replicas.replica import Replica
from router.requests.front import Front
from router.residency.residency_map import ResidencyMap
from router.telemetry.exposition import Exposition
from router.telemetry.history import TrafficHistory
from router.telemetry.logs import Level, set_log_level
from router.telemetry.snapshot import Snapshot, page
from router.tokenization.prompt_identifier import PromptIdentifier
from router.workers.operations import WorkerOperations, WorkerOutcome
from router.workers.watcher import Watcher


@dataclass(kw_only=True)
class GatewayView:
    """Satisfies `router.admin.system.ProcessView`, and `router.process.control_plane.Processes`."""

    config: Config
    fleet: Fleet
    residency: ResidencyMap
    core: DecisionCore
    watcher: Watcher
    identity: PromptIdentifier
    measurements: Measurements
    gateway: Front
    operations: WorkerOperations
    instruments: Exposition
    plane: ControlPlane
    ports: Ports
    processes: int = 1

    @property
    def control(self) -> Control:
        return self.plane.control

    @property
    def discovery(self) -> Discovery | None:
        return self.plane.discovery

    @property
    def replica(self) -> Replica | None:
        return self.plane.replica

    @property
    def traffic(self) -> TrafficHistory:
        return self.plane.traffic

    @property
    def accepting(self) -> bool:
        return self.ports.accepting

    @property
    def takeover_state(self) -> TakeoverState:
        return self.ports.takeover_state

    def readiness(self) -> Readiness:
        policy = self.control.state.settings.policy.rule
        return readiness_of(self.fleet, self.residency, self.watcher.statistics(), policy, self.identity)

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def in_flight(self) -> Mapping[str, int]:
        return self.ports.in_flight()

    async def now_at(self, worker_id: str) -> WorkerNow | None:
        """Return a worker's state and requests. One that a gateway before this one may still use is not quiet."""
        endpoint = self.fleet.get(worker_id)
        if endpoint is None:
            return None
        in_flight = self.in_flight().get(worker_id, 0)
        elsewhere = not self.ports.drained_everywhere(worker_id) or self.takeover_state is not TakeoverState.NONE
        return WorkerNow(endpoint.state, endpoint.reason, endpoint.draining, in_flight, not in_flight and not elsewhere)

    async def operate(self, wanted: WorkerOperation, workers: Sequence[str]) -> list[WorkerOutcome]:
        return await self.operations.run(wanted, workers)

    async def serving(self, model: str) -> Collection[str]:
        return self.operations.serving(model)

    async def log_from(self, level: Level) -> Sequence[int]:
        set_log_level(level)
        return ()

    async def metrics(self) -> Snapshot:
        return await self.instruments.snapshot()

    async def exposition(self, accept: str = "") -> tuple[bytes, str]:
        return page(await self.metrics(), accept)

    async def known(self) -> ProcessKnows:
        now_s = self.now_s()
        facts = msgspec.structs.replace(
            facts_of(self.fleet, self.residency, self.identity, self._late()),
            pool=members(self.fleet.endpoints, self.config.handover.connector),
            link=self.core.planner.links["handover"].fleet(now_s),
        )
        return ProcessKnows(self.measurements.measured(now_s), facts)

    def _late(self) -> dict[str, str]:
        """Return why streams of classes were late."""
        late = self.gateway.statistics().get("classes", {}).get("late", {})
        return {f"class {name}": why for name, why in late.items()}

    async def diagnosis(self) -> Diagnosis | None:
        return await self.plane.diagnosis(self)
