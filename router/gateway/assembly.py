"""Build the parts of one gateway and connect them. Only `server.PublicServer` holds all of them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from backends.vllm.control import WorkerClient
from backends.worker import Endpoint
from router.config.model import Config, LimitsConfig, ModelConfig, RouteConfig, TenantConfig
from router.config.on_request import OnRequest
from router.gateway.drain_state import DrainState
from router.gateway.features import features
from router.gateway.flow.attempt_edges import AttemptEdges
from router.gateway.flow.driver import RequestDriver
from router.gateway.flow.request_log import RequestLog
from router.gateway.flow.service_levels import ServiceLevels
from router.gateway.flow.services import GatewayServices, ResponseLines
from router.gateway.http.client.access_log import AccessLog
from router.gateway.http.client.cors import Cors
from router.gateway.http.send_buffer_limit import SendBufferLimit
from router.gateway.http.upstream.pool import ConnectionPool
from router.gateway.http.write_coalescer import WriteCoalescer
from router.gateway.layers.handover.kv_plans import KvPlans
from router.gateway.layers.handover.kv_pull import Pulls
from router.gateway.layers.handover.pairs import Handovers
from router.gateway.layers.trace.layer import TraceSink
from router.gateway.listen.connection_limit import AcceptOrder, ConnectionLimit
from router.gateway.local import Answer, LocalAnswers
from router.placement.core import DecisionCore
from router.placement.fleet.fleet import Fleet
from router.placement.fleet.query_of_death import QueryOfDeathTracker
from router.placement.policies.traffic_routes import TrafficRoutes
from router.requests.body_buffer_limit import BodyBufferLimit
from router.requests.identify.model_choice import ModelChoice
from router.requests.identify.stage import IdentifyStage, Salter
from router.requests.layers.relearn.layer import Relearn
from router.requests.metrics import GatewayMetrics
from router.requests.model_names import ModelNames
from router.requests.pins import Pins
from router.requests.placing import PlacementGate
from router.requests.preview import Preview
from router.requests.queues.gone_workers import GoneWorkers
from router.requests.queues.hold import HoldQueue
from router.requests.queues.lost_workers import LostWorkers
from router.requests.queues.no_worker import NoWorkerQueue
from router.requests.queues.quarantine import Quarantine
from router.requests.request_ids import RequestIds
from router.requests.response_search import ResponseSearch
from router.requests.routes import RouteTable
from router.requests.time_slices import TimeSlices
from router.requests.worker_keys import worker_keys
from router.security.callers import Callers
from router.security.instance import Instance
from router.security.keys import api_keys
from router.security.tls import WorkerTls
from router.tokenization.prompt_identifier import PromptIdentifier


@dataclass(frozen=True)
class GatewayContext:
    """The parts of the process that the gateway uses and does not own.

    It exists because `PublicServer` is made before it starts, and makes its own parts from them when it does.
    `relearn` is None if cached tokens are not relearned from responses. `answers` are further answers without a worker,
    by path. `traces` is None while traces are off.
    """

    config: Config
    core: DecisionCore
    fleet: Fleet
    identity: PromptIdentifier
    metrics: GatewayMetrics
    relearn: Relearn | None = None
    worker_tls: WorkerTls | None = None
    answers: Mapping[str, Callable[[], Answer]] | None = None
    traces: TraceSink | None = None
    instance: Instance = field(default_factory=Instance)


class Assembly:
    """The parts of a started gateway."""

    def __init__(
        self, context: GatewayContext, loop: asyncio.AbstractEventLoop, accept_order: AcceptOrder | None = None
    ) -> None:
        config, fleet, metrics = context.config, context.fleet, context.metrics
        limits, timeouts = config.limits, config.timeouts
        self.loop = loop
        self._fleet = fleet
        self.running: set[RequestDriver] = set()
        self.keys = api_keys(config.auth)
        self.callers = Callers(config)
        self.worker_keys = worker_keys(config, guarded=self.keys is not None)
        places = ConnectionLimit(limits.max_connections, loop.time, accept_order)
        self.drain = DrainState(places, timeouts.client_idle_s, timeouts.drain_idle_s)
        self.bodies = BodyBufferLimit(limits)
        context.identity.charge_to(self.bodies)
        self.unsent = SendBufferLimit(limits)
        self.outbox = WriteCoalescer(loop)
        context.core.defer_notes_with(self.outbox.note_after)
        self.pools = ConnectionPool(
            loop,
            self.outbox,
            timeouts.upstream_idle_s,
            limits.max_header_bytes,
            (context.worker_tls or WorkerTls(config.worker_tls)).context_for,
            metrics.redials,
            self.worker_keys,
            b"http" if config.tls.cert_file is None else b"https",
            context.instance.via,
        )
        self.queue = NoWorkerQueue(fleet, loop, limits.max_queued_requests)
        self.traffic_routes = TrafficRoutes(config.routes)
        self.service_levels = ServiceLevels(config)
        self.hold_queue = HoldQueue(context.core.tickets, fleet, loop, limits.max_queued_requests)
        self.lost_workers = LostWorkers(fleet, loop, self.running)
        fleet.on_evidence.append(self._note_reads)
        query_of_death = QueryOfDeathTracker(config.retries.query_of_death_s)
        self.quarantine = Quarantine(
            query_of_death, fleet, loop, self.running, metrics.worker_deaths, self.queue.changed
        )
        self.gone_workers = GoneWorkers(fleet, loop, self.running, config.health.probe_interval_s)
        self.pools.on_refusal = self._refused
        self.salter = Salter()
        self.features = features(config, context.core.tickets, fleet, loop, context.relearn, context.traces)
        self.pins = Pins()
        self.slices = TimeSlices()
        paths, cors, request_ids = RouteTable(config.extra_paths), Cors(config.cors_origins), RequestIds()
        self.request_ids = request_ids
        access = AccessLog(config.access_log, config.trusted_proxies)
        self.names = ModelNames(config.models)
        fleet.resolve(OnRequest(config.models))
        self.models = ModelChoice(self.names, fleet, context.identity, self.pins)
        self.search = ResponseSearch(fleet, self.pins, self.worker_keys, _worker_client(context), loop)
        identifier = IdentifyStage(
            context.identity,
            fleet,
            metrics.identify,
            loop,
            paths,
            self.pins,
            self.slices,
            self.salter,
            self.traffic_routes,
            self.models,
            self.search,
        )
        self.preview = Preview(identifier, paths, self.callers, self.keys, request_ids, loop.time, self.models)
        self.handovers = (
            Handovers(config.handover, context.core, fleet, loop, metrics, timeouts.connect_s)
            if config.handover.connector
            else None
        )
        local = LocalAnswers(metrics, paths, cors, access, request_ids, fleet, self.drain, self.names, context.answers)
        self.services = self._services(context, identifier, cors, access, local)

    def _services(
        self, context: GatewayContext, identifier: IdentifyStage, cors: Cors, access: AccessLog, local: LocalAnswers
    ) -> GatewayServices:
        config, metrics, core = context.config, context.metrics, context.core
        gate = PlacementGate(
            core.dispatcher,
            core.tickets,
            self.quarantine,
            self.queue,
            self.hold_queue,
            metrics,
            context.fleet,
            config.timeouts.queue_s,
            self.features,
            self.models,
            self._kv_plans(context),
        )
        return GatewayServices(
            loop=self.loop,
            time=self.loop.time,
            limits=config.limits,
            timeouts=config.timeouts,
            max_requests=config.limits.max_concurrent_requests or sys.maxsize,
            metrics=metrics,
            drain=self.drain,
            bodies=self.bodies,
            unsent=self.unsent,
            outbox=self.outbox,
            keys=self.keys,
            callers=self.callers,
            request_ids=self.request_ids,
            instance=context.instance,
            local=local,
            running=self.running,
            identity=context.identity,
            identifier=identifier,
            pools=self.pools,
            placements=gate,
            edges=AttemptEdges(gate, core.dispatcher, core.tickets, self.quarantine, context.fleet, metrics),
            pins=self.pins,
            lines=ResponseLines(cors, config.headers),
            features=self.features,
            log=RequestLog(metrics, access, self.loop.time, self.service_levels, context.fleet),
        )

    def _kv_plans(self, context: GatewayContext) -> KvPlans | None:
        config = context.config.handover
        pulls = Pulls(config, context.core, context.metrics.pulls) if config.pulls else None
        return (
            None if self.handovers is None and pulls is None else KvPlans(context.core.planner, self.handovers, pulls)
        )

    def _refused(self, endpoint: Endpoint) -> None:
        self.quarantine.refused(endpoint)
        self._fleet.refused(endpoint.authority, self.loop.time())

    def _note_reads(self) -> None:
        for request in self.running:
            request.note_read()

    def use_routes(self, routes: Sequence[RouteConfig]) -> None:
        self.traffic_routes.adopt(routes)
        self.features.adopt(routes)
        self.service_levels.adopt(routes)

    def use_models(self, models: Mapping[str, ModelConfig]) -> None:
        """Use other names and service levels of models. Requests in the queue may have a ready fallback now."""
        self.names.adopt(models)
        self._fleet.resolve(OnRequest(models))
        self.service_levels.adopt_models(models)
        self.queue.changed()

    def use_callers(self, tenants: Mapping[str, TenantConfig], limits: LimitsConfig) -> None:
        """Use other tenants, and other limits of tenants and keys. Open connections look up their callers again."""
        self.callers.adopt(tenants, limits)
        if self.keys is not None:
            self.keys.generation += 1

    def close(self) -> None:
        """Unsubscribe from the fleet and the tickets, and close the connections to workers."""
        if self._note_reads in self._fleet.on_evidence:
            self._fleet.on_evidence.remove(self._note_reads)
        self.search.close()
        self.lost_workers.close()
        self.gone_workers.close()
        self.quarantine.close()
        self.features.close()
        self.queue.close()
        self.hold_queue.close()
        if self.handovers is not None:
            self.handovers.close()
        self.pools.close()

    def limits(self) -> list[dict[str, Any]]:
        return self.callers.limits(self.keys.names if self.keys is not None else None, self.loop.time())

    def statistics(self) -> dict[str, Any]:
        places = self.drain.places
        return {
            "connections": places.open,
            "connections_refused": places.refused,
            "connections_evicted": places.evicted,
            "streams": len(self.running),
            "queued": len(self.queue),
            "held": len(self.hold_queue),
            "held_by_route": self.hold_queue.by_route(),
            **self.features.statistics(),
            "buffered_body_bytes": self.bodies.used_bytes,
            "buffered_response_bytes": self.unsent.used_bytes,
            "slow_readers_cut": self.unsent.cut,
            "bodies_refused": self.bodies.refused,
            "quarantine": self.quarantine.statistics(),
            "rewrites": {"salted": self.salter.salted, "model": self.models.renamed},
            "pools": self.pools.statistics(),
            "tenants": self.callers.statistics(),
            "api_keys": self.keys.statistics() if self.keys is not None else None,
        }


def _worker_client(context: GatewayContext) -> WorkerClient:
    tls = context.worker_tls or WorkerTls(context.config.worker_tls)
    return WorkerClient(tls=tls.context_for, via=context.instance.name)
