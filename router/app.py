"""The composition root, which makes the parts of a gateway, starts them in order and stops them in order."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from backends.vllm.operations import WorkerOperation
from policies.registry import build_policy
from policies.view import WorkerId
from router.admin.app import build_admin
from router.admin.http.server import AdminServer
from router.admin.observe.diagnosis import inputs_of
from router.admin.system import TakeoverState, WorkerNow
from router.admin.table import OF_PROCESS
from router.config.budgets import VIEWS
from router.config.memory import memory_limit
from router.config.model import Config
from router.control.control import Control
from router.control.reconciler import Reconciler
from router.control.running_gateway import RunningGateway
from router.control.start import Sources, following
from router.control.state.desired_state import DesiredState, with_live_settings
from router.control.state.routing import ProcessShare, routing_of
from router.diagnosis.diagnose import SERVICE_LEVELS, Diagnosis, levels_of
from router.diagnosis.diagnoser import Diagnoser, Inputs
from router.diagnosis.facts import facts_of
from router.diagnosis.finding import Finding
from router.diagnosis.measurements import Measurements
from router.diagnosis.split_plan import members
from router.discovery.discovery import Discovery
from router.gateway.assembly import GatewayContext
from router.gateway.http.heap_trim import map_large_blocks
from router.gateway.listen.drain import SETTLE_S
from router.gateway.listen.sockets import SocketFile, remove_socket_file, socket_file
from router.gateway.local import Answer
from router.gateway.metrics import GatewayMetrics
from router.gateway.server import PublicServer, address_of
from router.metrics.registry import Registry
from router.placement.decision_log.recorder import Recorder
from router.placement.dispatcher import Dispatcher
from router.placement.fleet.fleet import Fleet
from router.placement.fleet.scaling import Needed, needed
from router.placement.policies.chosen_policy import spec_of
from router.process.banner import Readiness, announce, readiness_of
from router.process.children.child import ChildResources
from router.process.children.private_api import ProcessKnows, private_routes, with_version
from router.process.listeners import ListenAddresses, Listeners, admin_socket, listen_addresses, url_of
from router.process.shared_memory.ledger import Ledger
from router.process.shared_memory.pins import ResponsePins
from router.process.shared_memory.replica_rows import ReplicaLedger
from router.process.takeover.client import TakeoverClient
from router.replicas.fleet_placements import FleetPlacements
from router.replicas.replica import Replica
from router.residency.residency_map import ResidencyMap
from router.security.instance import Instance
from router.security.reload import FileWatch
from router.security.tls import WorkerTls
from router.security.token import guard_of
from router.telemetry import readings
from router.telemetry.decision_log_file import open_decision_log
from router.telemetry.exposition import Exposition, Reading, instruments_of
from router.telemetry.history import TrafficHistory
from router.telemetry.logs import Level, set_log_level
from router.telemetry.loop_lag import LoopLag
from router.telemetry.snapshot import Snapshot
from router.telemetry.trace_exporter import TraceExporter
from router.tokenization.prompt_identifier import PromptIdentifier
from router.workers.operations import WorkerOperations, WorkerOutcome
from router.workers.watch_context import WatchContext, WatchMetrics, WorkerObserver
from router.workers.watcher import SPREAD_S, Watcher

log = logging.getLogger("warmroute.process")

YOUNG_OBJECTS = 10_000
"""New containers between two young collections. One collection takes well under a millisecond."""


class GatewayProcess:
    """One gateway process. `resources` is given to one of several. Satisfies `router.admin.system.ProcessView`.

    `observer` sees what the watch of the workers learns. `answers` are further answers of the public port, by path.
    """

    def __init__(
        self,
        config: Config,
        resources: ChildResources | None = None,
        sources: Sources | None = None,
        *,
        observer: WorkerObserver | None = None,
        answers: Mapping[str, Callable[[], Answer]] | None = None,
    ) -> None:
        self._observer = observer
        self._answers = answers
        self._sources = sources or Sources(config, lambda: config)
        first = self._sources.initial() if resources is None else following(config, resources.state)
        config = with_live_settings(config, first.stored.state.effective)
        self.config = config
        self._resources = resources
        self._share = ProcessShare() if resources is None else ProcessShare(resources.process, resources.processes)
        shared = config.redis.url is not None
        self._replica_ledger = ReplicaLedger() if resources is None and shared else None
        ledger = resources.ledger if resources is not None else None
        if self._replica_ledger is not None:
            ledger = self._replica_ledger.ledger
        self.registry = Registry()
        self.residency = ResidencyMap(VIEWS.of(config.residency))
        self.fleet = Fleet(
            config.health,
            self.residency,
            kv_events=config.residency.kv_events,
            connector=config.handover.connector,
        )
        self._instance = Instance(resources.instance if resources is not None else "")
        self.worker_tls = WorkerTls(config.worker_tls)
        self.identity = PromptIdentifier(config, worker_tls=self.worker_tls)
        self.measurements = self._build_measurements()
        self._decision_log = open_decision_log(config.decision_log)
        self.dispatcher = self._build_dispatcher(ledger)
        self.traffic = TrafficHistory(self._own_traffic)
        self.watcher = self._build_watcher()
        self.operations = WorkerOperations(self.fleet, self.residency, self.watcher)
        self._traces = TraceExporter(config.tracing) if config.tracing.endpoint is not None else None
        self.gateway = self._build_gateway()
        self.running = RunningGateway(
            config,
            self.fleet,
            self.watcher,
            self.gateway,
            self.identity,
            self.dispatcher,
            self.now_s,
            self._share,
            self._policy_failed,
        )
        self.reconciler = Reconciler(self.running)
        self.control = Control(self._sources, first, self._reconcile)
        self._member = self._build_replica() if shared else None
        self.replica = self._member if resources is None else None
        """This gateway in its fleet; None in one of several processes, whose supervisor speaks for all."""
        self.discovery = Discovery(config, self.control, self._in_flight) if resources is None else None
        """The sources of workers; None in one of several processes, whose supervisor runs them."""
        self._files = FileWatch(self.registry.counter("reloads"))
        self.loop_lag = LoopLag(self.registry.histogram("loop_lag_seconds").at())
        self._exposition = self._build_exposition()
        self._diagnoser = Diagnoser(self._diagnosis_inputs, self._share_findings)
        self._admin: AdminServer | None = None
        self._socket_file: SocketFile | None = None
        self._given: Listeners | None = None
        """The listeners that `open` received; None if this process bound its own."""
        self._kept: tuple[Listeners, SocketFile | None, bool] | None = None
        """Duplicates of the listeners that were handed over, and the `_socket_file` and `leave_queue` that go with
        them, for `resume`."""
        self.takeover_client: TakeoverClient | None = None
        """The connection to the gateway that this one took over from."""
        self.leave_queue = False
        """Whether another process holds the listeners, so that the connections in their queues are for that process."""
        self.takeover_state = TakeoverState.NONE
        self.accepting = False
        self.processes = 1
        self._banner: asyncio.Task[None] | None = None

    def _build_measurements(self) -> Measurements:
        levels = self.registry.counter(SERVICE_LEVELS.removeprefix("warmroute_")).values
        config = self.config
        measurements = Measurements(config.diagnosis, lambda: levels_of(levels))
        self.fleet.on_load.append(measurements.load_reported)
        return measurements

    def _build_watcher(self) -> Watcher:
        watcher = Watcher(
            WatchContext(
                self.fleet,
                self.residency,
                self.identity,
                self.config,
                WatchMetrics(self.registry),
                self.worker_tls,
                self.now_s,
                self_test_lock=self._resources.ledger if self._resources is not None else None,
                observer=self._observer,
                via=self._instance.name,
            )
        )
        self.fleet.on_unknown_model.append(lambda model: watcher.look_again())
        self.fleet.on_doubt.append(lambda endpoint: watcher.look_for_process(endpoint.id))
        return watcher

    def _build_replica(self) -> Replica:
        """Return this process in its fleet. One of several sends and hears placements alone."""
        placements = FleetPlacements(self.residency)
        if self._replica_ledger is not None:
            own = self._replica_ledger
            return Replica(
                self.config,
                rows=own.rows,
                use=own.use,
                pins=own.pins,
                control=self.control,
                placements=placements,
            )
        assert self._resources is not None
        number = self._resources.process + 1
        return Replica(self.config, replica=self._resources.replica, process=number, placements=placements)

    def _build_gateway(self) -> PublicServer:
        config = self.config
        shared = replace(
            config,
            routes=self._share.routes(config.routes),
            tenants=self._share.tenants(config.tenants, config.limits.max_body_bytes),
        )
        context = GatewayContext(
            shared,
            self.dispatcher,
            self.fleet,
            self.identity,
            GatewayMetrics(self.registry),
            self.residency if config.residency.relearn == "piggyback" else None,
            self.worker_tls,
            self._answers,
            self._traces,
            self._instance,
        )
        return PublicServer(context)

    def _build_dispatcher(self, ledger: Ledger | None) -> Dispatcher:
        config = self.config
        policy = self._share.seeded(config.policy)
        named, shadows, _ = self._share.built(routing_of(config), config.policy, self._policy_failed)
        dispatcher = Dispatcher(
            self.fleet,
            self.residency,
            build_policy(spec_of(policy), random.Random(policy.seed)),
            spec=spec_of(policy),
            decisions_kept=config.decisions_kept,
            registry=self.registry,
            policy_failed=self._policy_failed,
            retries=config.retries,
            max_requests_per_worker=config.limits.max_requests_per_worker,
            ledger=ledger,
            alone=config.redis.url is None,
            named=named,
            shadows=shadows,
            handover=config.handover,
        )
        dispatcher.traffic = self.measurements
        self.residency.on_settled.append(dispatcher.explained)
        if self._decision_log is not None:
            dispatcher.record(Recorder(self._decision_log, time.time, share=config.decision_log.share))
        return dispatcher

    def _build_exposition(self) -> Exposition:
        limit = memory_limit()
        return Exposition(
            self.registry,
            [
                lambda: readings.fleet_readings(self.fleet),
                lambda: readings.queue_readings(self.dispatcher.views(self.now_s())),
                lambda: readings.link_readings(self.dispatcher.links(self.now_s())),
                lambda: readings.scaling_readings(self.needed()),
                lambda: readings.pinned_readings(
                    self.dispatcher.pinned.statistics(one.id for one in self.fleet.candidates)
                ),
                lambda: readings.residency_readings(self.fleet, self.residency),
                lambda: readings.watch_readings(self.watcher.statistics()),
                lambda: readings.gateway_readings(self.gateway.statistics()),
                lambda: readings.limit_readings(self.gateway.limits()),
                lambda: readings.policy_readings(self.dispatcher.named_statistics()),
                lambda: readings.discovery_readings({} if self.discovery is None else self.discovery.statistics()),
                lambda: readings.control_readings(self.control.unsaved, self.control.set_aside),
                lambda: readings.identity_readings(self.identity.statistics()),
                lambda: readings.setting_readings(self.config, limit),
                lambda: readings.replica_readings(self.replica.statistics() if self.replica is not None else None),
                lambda: readings.trace_readings(self._traces.statistics() if self._traces is not None else {}),
                readings.process_readings,
                self.further_readings,
            ],
        )

    def _policy_failed(self, policy: str, reason: str, first: bool) -> None:
        """Count a failure of a policy. Only the first is logged, because a broken rule fails on every request."""
        self.registry.counter("policy_errors").add(1.0, (policy,))
        if first:
            logging.getLogger("warmroute.policy").warning("policy failed", extra={"policy": policy, "reason": reason})

    def needed(self) -> dict[str, Needed]:
        now_s = self.now_s()
        attained = self.gateway.attainment(now_s)
        return needed(self.fleet.endpoints, self.dispatcher.views(now_s), attained)

    def further_readings(self) -> Iterable[Reading]:
        """Return the readings of parts that not every gateway has."""
        return ()

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
        self.running.start()
        if self.discovery is not None:
            self.discovery.start()
        self.loop_lag.start()
        if self._resources is None:
            self.traffic.start()
            self._diagnoser.start()
        if self._member is not None:
            self._member.start()
        if self._traces is not None:
            self._traces.start()

    async def open(self, listeners: Listeners | None = None) -> None:
        """Serve the public port, on `listeners` if given, and bind the admin port.

        Raises:
            ListenError: an address cannot be bound.
        """
        self._given = listeners
        self._admin = self._admin_server(listeners)
        _tune_memory()
        await self._open_gateway(listeners)
        self.running.opened()
        self.watcher.spread_s = SPREAD_S
        self._files.start()
        self.accepting = True

    async def open_admin(self) -> None:
        """Serve the admin port, after `open`."""
        assert self._admin is not None, "open first"
        await self._admin.start()
        if self._resources is None:
            log.info("admin port listening", extra={"url": url_of(self._admin.address, self.config.admin_tls)})
        if self._share.process == 0:
            address = address_of(self.gateway.listeners[0].getsockname())
            self._banner = asyncio.create_task(announce(self._readiness, address, self.config), name="banner")

    def _readiness(self) -> Readiness:
        policy = self.control.state.settings.policy.rule
        return readiness_of(self.fleet, self.residency, self.watcher.statistics(), policy, self.identity)

    def _end_banner(self) -> None:
        if self._banner is not None:
            self._banner.cancel()

    def _admin_server(self, listeners: Listeners | None) -> AdminServer:
        self._files.add("worker_tls", self.worker_tls)
        if self._resources is not None:
            further = private_routes(
                self.snapshot, self.in_flight, self.known, self.control, self.running.prepare, self.operations
            )
            app = build_admin(self, operations=OF_PROCESS, guarded=False, further=further)
            return AdminServer(with_version(app, self.control), self._resources.admin, self.config)
        tokens, tls = guard_of(self.config, self._files)
        given = listeners.admin if listeners is not None else None
        return AdminServer(build_admin(self, tokens), given or admin_socket(self.config), self.config, tls)

    async def _open_gateway(self, listeners: Listeners | None) -> None:
        if self._resources is not None:
            ledger = self._resources.ledger
            await self.gateway.start(
                self._resources.public,
                accept_order=self._resources.accept_order,
                pins=self._pins(ledger),
                deaths=ledger.deaths(),
                limits=ledger.rate_limits(),
            )
            self.leave_queue = True
            return
        own = self._replica_ledger
        addresses = await self.gateway.start(
            listeners.public if listeners is not None else None,
            pins=self._pins(own.ledger) if own is not None else None,
            limits=own.limits if own is not None else None,
        )
        self.leave_queue = listeners is not None
        if self.config.uds is not None and not (listeners is not None and listeners.manager_owned):
            self._socket_file = socket_file(self.config.uds)
        for address in addresses:
            log.info("public port listening", extra={"url": url_of(address, self.config.tls)})

    def _pins(self, ledger: Ledger) -> ResponsePins:
        return ledger.pins(self._pinnable)

    def _pinnable(self) -> list[WorkerId]:
        """Return what a stored response can be pinned to. The search for one finds an endpoint, not a rank of it."""
        fleet = self.fleet
        return [*(one.id for one in fleet.candidates), *(WorkerId(one.id) for one in fleet.endpoints)]

    def listeners(self) -> Listeners:
        """Return the listening sockets, on which another process may continue to accept."""
        manager_owned = self._given is not None and self._given.manager_owned
        return Listeners(
            self.gateway.listeners, self._admin.listener if self._admin is not None else None, manager_owned
        )

    def listen_addresses(self) -> ListenAddresses:
        return listen_addresses(self.config, self.listeners(), self._given)

    def in_flight(self) -> Mapping[str, int]:
        elsewhere = self.takeover_client.in_flight if self.takeover_client is not None else {}
        return Counter(self.gateway.in_flight()) + Counter(elsewhere)

    async def _in_flight(self) -> Mapping[str, int]:
        return self.in_flight()

    async def operate(self, wanted: WorkerOperation, workers: Sequence[str]) -> list[WorkerOutcome]:
        return await self.operations.run(wanted, workers)

    async def serving(self, model: str) -> Collection[str]:
        return self.operations.serving(model)

    def drained_everywhere(self, endpoint_id: str) -> bool:
        """Return whether a gateway that this one took over from also sends no requests to a drained worker."""
        return self.takeover_client is None or self.takeover_client.drains(endpoint_id)

    async def now_at(self, worker_id: str) -> WorkerNow | None:
        """Return a worker's state and requests. One that a gateway before this one may still use is not quiet."""
        endpoint = self.fleet.get(worker_id)
        if endpoint is None:
            return None
        in_flight = self.in_flight().get(worker_id, 0)
        quiet = self.drained_everywhere(worker_id) and not in_flight and self.takeover_state is TakeoverState.NONE
        return WorkerNow(endpoint.state, endpoint.reason, endpoint.draining, in_flight, quiet)

    async def log_from(self, level: Level) -> Sequence[int]:
        set_log_level(level)
        return ()

    async def release_listeners(self) -> None:
        """Stop accepting and report not ready, because another process accepts. Running requests continue.

        The sockets stay open until `resume` or `let_go`.
        """
        self.accepting = False
        self._end_banner()
        self.takeover_state = TakeoverState.DONE
        try:
            self._kept = self.listeners().duplicates(), self._socket_file, self.leave_queue
        except OSError as error:
            log.warning("the listening sockets cannot be kept", extra={"reason": str(error)})
        self.yield_listeners()
        self.gateway.drain()
        await self.gateway.stop_accepting(leave_queue=True)
        if self._admin is not None:
            await self._admin.stop_accepting(leave_queue=True)

    def yield_listeners(self) -> None:
        """Leave the listeners' queues and the file of a Unix socket to another process."""
        self.leave_queue = True
        self._socket_file = None

    @property
    def can_resume(self) -> bool:
        return self._kept is not None

    async def resume(self) -> None:
        """After `release_listeners`: serve as before, because the process that took over has died.

        Raises:
            OSError: a socket cannot be listened on.
        """
        assert self._kept is not None, "hand over first, and keep the sockets"
        (listeners, self._socket_file, self.leave_queue), self._kept = self._kept, None
        await self.gateway.accept_again(listeners.public)
        if self._admin is not None and listeners.admin is not None:
            self._admin.accept_again(listeners.admin)
        self.takeover_state = TakeoverState.NONE
        self.accepting = True

    def let_go(self) -> None:
        """After `release_listeners`: close the sockets that were kept."""
        if self._kept is not None:
            self._kept[0].close()
            self._kept = None

    def begin_drain(self) -> None:
        """Report not ready. Connections are still accepted, and every further answer closes its own."""
        self.accepting = False
        self.gateway.drain()

    def end_drain(self) -> None:
        """Undo `begin_drain`."""
        self.accepting = True
        self.gateway.end_drain()

    async def aclose(self, drain_s: float | None = None) -> None:
        """Drain and release everything.

        Report not ready, accept for another `timeouts.drain_delay_s`, let streams finish within `drain_s` (default:
        `timeouts.drain_s`), then close. An admin call in progress ends.
        """
        timeouts = self.config.timeouts
        self.let_go()
        self._end_banner()
        if self.discovery is not None:
            await self.discovery.aclose()
        self.control.close()
        self._files.close()
        self.gateway.drain()
        if self.accepting:
            self.accepting = False
            # one of several processes accepts until no new connection can come: see `Supervisor.aclose`
            await asyncio.sleep(timeouts.drain_delay_s + (SETTLE_S if self._resources is not None else 0.0))
        limit_s = timeouts.drain_s if drain_s is None else drain_s
        await self.gateway.aclose(limit_s, leave_queue=self.leave_queue)
        if self._socket_file is not None:
            remove_socket_file(self._socket_file)
        if self._admin is not None:
            await self._admin.aclose(leave_queue=self.leave_queue)
        if self._member is not None:
            await self._member.aclose()
        await self.watcher.aclose()
        await self.loop_lag.aclose()
        if self._traces is not None:
            await self._traces.aclose()
        await self.traffic.aclose()
        await self._diagnoser.aclose()
        await self.identity.aclose()
        if self._decision_log is not None:
            await asyncio.to_thread(self._decision_log.close)
        if self._replica_ledger is not None:
            self._replica_ledger.close()

    async def _reconcile(self, state: DesiredState) -> None:
        await self.running.prepare(state.settings)
        self.reconciler.reconcile(state)

    async def drained(self) -> None:
        await self.gateway.drained()

    def snapshot(self) -> Snapshot:
        return self._exposition.snapshot()

    async def _own_traffic(self) -> Snapshot:
        """Return the counters and histograms, and the requests that wait. A snapshot of all workers takes longer."""
        snapshot, plane = instruments_of(self.registry), self.gateway.statistics()
        snapshot.values["warmroute_queued_requests"] = {(): plane.get("queued", 0)}
        held = plane.get("held_by_route", ())
        snapshot.values["warmroute_held_requests"] = {(route, model): number for route, model, number in held}
        return snapshot

    def known(self) -> ProcessKnows:
        """Return what was measured in the last `diagnosis.window_s`, and what is known of the workers."""
        now_s = self.now_s()
        facts = msgspec.structs.replace(
            facts_of(self.fleet, self.residency, self.identity, {}),
            pool=members(self.fleet.endpoints, self.config.handover.connector),
            link=self.dispatcher.link_speed(now_s),
        )
        return ProcessKnows(self.measurements.measured(now_s), facts)

    async def diagnosis(self) -> Diagnosis | None:
        return await self._diagnoser.diagnosis()

    async def _diagnosis_inputs(self) -> Inputs:
        known, metrics = self.known(), await self._exposition.gathered()
        return inputs_of(self, metrics, known.measured, known.facts)

    def _share_findings(self, findings: Sequence[Finding]) -> None:
        if self.replica is not None:
            self.replica.share(findings)

    async def exposition(self, accept: str = "") -> tuple[bytes, str]:
        return self._exposition.render(accept)


def _tune_memory() -> None:
    """Return large freed blocks to the system, and keep long-lived objects out of garbage collections.

    Requests leave no reference cycles, so a young collection finds little. At the default of 700 objects a collection
    would run every few requests.
    """
    map_large_blocks()
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 20)
