"""The composition root, which makes the parts of a gateway process, starts them in order and stops them in order."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping

from policies.registry import build_policy
from router.admin.app import build_admin
from router.admin.http.server import AdminServer
from router.admin.table import OF_PROCESS
from router.config.budgets import VIEWS
from router.config.model import Config
from router.control.control import Control
from router.control.reconciler import Reconciler
from router.control.running_gateway import RunningGateway
from router.control.start import Sources, following
from router.control.state.desired_state import DesiredState, with_live_settings
from router.control.state.routing import ProcessShare, routing_of
from router.diagnosis.diagnose import SERVICE_LEVELS, levels_of
from router.diagnosis.measurements import Measurements
from router.discovery.discovery import Discovery
from router.gateway.assembly import GatewayContext
from router.gateway.local import Answer
from router.gateway.server import PublicServer
from router.metrics.registry import Registry
from router.placement.core import DecisionCore
from router.placement.decision_log.recorder import Recorder
from router.placement.fleet.fleet import Fleet
from router.placement.policies.chosen_policy import spec_of
from router.placement.readings import PlacementReadings
from router.process.children.child import ChildResources
from router.process.children.private_api import IN_FLIGHT, KNOWN, METRICS, private_routes, with_version
from router.process.control_plane import ControlPlane
from router.process.front import ListeningFront
from router.process.gateway_view import GatewayView
from router.process.listeners import Listeners, admin_socket
from router.process.ports import Ports
from router.process.shared_memory.ledger import Ledger
from router.process.shared_memory.replica_rows import ReplicaLedger
from router.replicas.fleet_placements import FleetPlacements
from router.replicas.replica import Replica
from router.requests.front import FrontContext
from router.requests.metrics import GatewayMetrics
from router.residency.residency_map import ResidencyMap
from router.security.instance import Instance
from router.security.reload import FileWatch
from router.security.tls import WorkerTls
from router.security.token import guard_of
from router.telemetry.decision_log_file import open_decision_log
from router.telemetry.exposition import Exposition
from router.telemetry.loop_lag import LoopLag
from router.telemetry.readings import ProcessReadings
from router.telemetry.trace_exporter import TraceExporter
from router.tokenization.prompt_identifier import PromptIdentifier
from router.workers.operations import WorkerOperations
from router.workers.watch_context import WatchContext, WatchMetrics, WorkerObserver
from router.workers.watcher import SPREAD_S, Watcher


class GatewayProcess:
    """One gateway process. `resources` is given to one of several.

    `observer` sees what the watch of the workers learns. `answers` are further answers of the public port, by path.
    `front` makes what takes requests in, in place of the HTTP gateway.
    """

    def __init__(
        self,
        config: Config,
        resources: ChildResources | None = None,
        sources: Sources | None = None,
        *,
        observer: WorkerObserver | None = None,
        answers: Mapping[str, Callable[[], Answer]] | None = None,
        front: Callable[[FrontContext], ListeningFront] | None = None,
    ) -> None:
        sources = sources or Sources(config, lambda: config)
        given = None if resources is None else resources.given
        first = sources.initial() if given is None else following(config, given.state)
        self.config = config = with_live_settings(config, first.stored.state.effective)
        self._resources = resources
        self._share = ProcessShare() if given is None else ProcessShare(given.process, given.processes)
        self._replica_ledger = ReplicaLedger() if resources is None and config.redis.url is not None else None
        self._instance = Instance("" if given is None else given.instance)
        self._worker_tls = WorkerTls(config.worker_tls)
        self._decision_log = open_decision_log(config.decision_log)
        self._traces = TraceExporter(config.tracing) if config.tracing.endpoint is not None else None
        self.registry = Registry()
        self.residency = ResidencyMap(VIEWS.of(config.residency))
        self.fleet = Fleet(
            config.health,
            self.residency,
            kv_events=config.residency.kv_events,
            connector=config.handover.connector,
        )
        self.identity = PromptIdentifier(config, worker_tls=self._worker_tls)
        self._measurements = self._build_measurements()
        self.core = self._build_core()
        self.watcher = self._build_watcher(observer)
        self.gateway = self._build_gateway(answers) if front is None else front(self._front_context())
        self.running = RunningGateway(
            config,
            self.fleet,
            self.watcher,
            self.gateway,
            self.identity,
            self.core.policies,
            self.now_s,
            self._share,
            self._policy_failed,
        )
        self._reconciler = Reconciler(self.running)
        self.control = Control(sources, first, self._reconcile)
        self._member = self._build_replica() if config.redis.url is not None else None
        self.ports = Ports(config, self.fleet, self.gateway, resources, self._replica_ledger)
        alone = resources is None
        discovery = Discovery(config, self.control, self._in_flight) if alone else None
        self._plane = ControlPlane(config, self.control, discovery, self._member if alone else None)
        self.view = self._build_view()
        self._files = FileWatch(self.registry.counter("reloads"))
        self._loop_lag = LoopLag(self.registry.histogram("loop_lag_seconds").at())

    def _build_measurements(self) -> Measurements:
        levels = self.registry.counter(SERVICE_LEVELS.removeprefix("warmroute_")).values
        measurements = Measurements(lambda: levels_of(levels))
        self.fleet.on_load.append(measurements.load_reported)
        return measurements

    def _build_core(self) -> DecisionCore:
        config = self.config
        policy = self._share.seeded(config.policy)
        named, shadows, _ = self._share.built(routing_of(config), config.policy, self._policy_failed)
        core = DecisionCore(
            self.fleet,
            self.residency,
            build_policy(spec_of(policy), random.Random(policy.seed)),
            spec=spec_of(policy),
            decisions_kept=config.decisions_kept,
            registry=self.registry,
            policy_failed=self._policy_failed,
            retries=config.retries,
            max_requests_per_worker=config.limits.max_requests_per_worker,
            ledger=self._ledger,
            named=named,
            shadows=shadows,
            handover=config.handover,
            traffic=self._measurements,
        )
        self.residency.on_settled.append(core.tickets.explained)
        if self._decision_log is not None:
            core.record(Recorder(self._decision_log, time.time, share=config.decision_log.share))
        return core

    @property
    def _ledger(self) -> Ledger | None:
        if self._replica_ledger is not None:
            return self._replica_ledger.ledger
        return self._resources.ledger if self._resources is not None else None

    def _build_watcher(self, observer: WorkerObserver | None) -> Watcher:
        watcher = Watcher(
            WatchContext(
                self.fleet,
                self.residency,
                self.identity,
                self.config,
                WatchMetrics(self.registry),
                self._worker_tls,
                self.now_s,
                self_test_lock=self._resources.ledger if self._resources is not None else None,
                observer=observer,
                via=self._instance.name,
            )
        )
        self.fleet.on_unknown_model.append(lambda model: watcher.look_again())
        self.fleet.on_doubt.append(lambda endpoint: watcher.look_for_process(endpoint.id))
        return watcher

    def _front_context(self) -> FrontContext:
        metrics, config = GatewayMetrics(self.registry), self._share.of(self.config)
        return FrontContext(
            config, self.core, self.fleet, self.identity, metrics, self.registry, self._worker_tls, self._instance
        )

    def _build_gateway(self, answers: Mapping[str, Callable[[], Answer]] | None) -> ListeningFront:
        context = GatewayContext(
            self._share.of(self.config),
            self.core,
            self.fleet,
            self.identity,
            GatewayMetrics(self.registry),
            self.residency if self.config.residency.relearn == "piggyback" else None,
            self._worker_tls,
            answers,
            self._traces,
            self._instance,
        )
        return PublicServer(context)

    def _build_replica(self) -> Replica:
        """Return this process in its fleet. One of several sends and hears placements alone."""
        placements = FleetPlacements(self.residency)
        if self._resources is not None:
            given = self._resources.given
            return Replica(self.config, replica=given.replica, process=given.process + 1, placements=placements)
        assert self._replica_ledger is not None, "one process alone has one beside other replicas"
        own = self._replica_ledger
        return Replica(self.config, rows=own.rows, use=own.use, control=self.control, placements=placements)

    def _build_view(self) -> GatewayView:
        placement = PlacementReadings(self.fleet, self.residency, self.core, self.gateway.attainment, self.now_s)
        process = ProcessReadings(self.config)
        member = self._member if self._resources is not None else None
        parts = (placement, self.watcher, self.gateway, self._plane, self.identity, member, self._traces, process)
        return GatewayView(
            config=self.config,
            fleet=self.fleet,
            residency=self.residency,
            core=self.core,
            watcher=self.watcher,
            identity=self.identity,
            measurements=self._measurements,
            gateway=self.gateway,
            operations=WorkerOperations(self.fleet, self.residency, self.watcher),
            instruments=Exposition(self.registry, parts),
            plane=self._plane,
            ports=self.ports,
        )

    def _policy_failed(self, policy: str, reason: str, first: bool) -> None:
        """Count a failure of a policy. Only the first is logged, because a broken rule fails on every request."""
        self.registry.counter("policy_errors").add(1.0, (policy,))
        if first:
            logging.getLogger("warmroute.policy").warning("policy failed", extra={"policy": policy, "reason": reason})

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def start(self, listeners: Listeners | None = None) -> None:
        """Watch the configured workers, then listen.

        Raises:
            ListenError: an address cannot be bound; the message names it and the setting to change.
        """
        self.begin()
        await self.open(listeners)
        await self.open_admin()

    def begin(self) -> None:
        self.watcher.spread_s = min(SPREAD_S, self.config.timeouts.takeover_ready_s / 2)
        for part in (self.running, self._loop_lag, self._member, self._traces):
            if part is not None:
                part.start()
        if self._resources is None:
            self._plane.start(self.view)

    async def open(self, listeners: Listeners | None = None) -> None:
        """Serve the public port, on `listeners` if given, and bind the admin port.

        Raises:
            ListenError: an address cannot be bound.
        """
        admin = self._admin_server(listeners)
        await self.ports.open(admin, listeners)
        self.running.opened()
        self.watcher.spread_s = SPREAD_S
        self._files.start()

    async def open_admin(self) -> None:
        """Serve the admin port, after `open`."""
        await self.ports.open_admin(self.view.readiness)

    def _admin_server(self, listeners: Listeners | None) -> AdminServer:
        self._files.add("worker_tls", self._worker_tls)
        if self._resources is not None:
            reads = {METRICS: self.view.metrics, IN_FLIGHT: self._in_flight, KNOWN: self.view.known}
            further = private_routes(reads, self.control, self.running.prepare, self.view.operations)
            app = build_admin(self.view, operations=OF_PROCESS, guarded=False, further=further)
            return AdminServer(with_version(app, self.control), self._resources.admin, self.config)
        tokens, tls = guard_of(self.config, self._files)
        given = listeners.admin if listeners is not None else None
        return AdminServer(build_admin(self.view, tokens), given or admin_socket(self.config), self.config, tls)

    async def _in_flight(self) -> Mapping[str, int]:
        return self.ports.in_flight()

    async def _reconcile(self, state: DesiredState) -> None:
        await self.running.prepare(state.settings)
        self._reconciler.reconcile(state)

    async def aclose(self, drain_s: float | None = None) -> None:
        """Drain and release everything. Streams may finish within `drain_s` (default: `timeouts.drain_s`)."""
        await self._plane.aclose()
        self._files.close()
        await self.ports.aclose(self.config.timeouts.drain_s if drain_s is None else drain_s)
        for part in (self._member, self.watcher, self._loop_lag, self._traces, self.identity):
            if part is not None:
                await part.aclose()
        if self._decision_log is not None:
            await asyncio.to_thread(self._decision_log.close)
        if self._replica_ledger is not None:
            self._replica_ledger.close()
