"""Build the parts of one gateway and connect them. Only `server.PublicServer` holds all of them."""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from backends.vllm.control import WorkerClient
from backends.worker import Endpoint
from router.config.model import Config, LimitsConfig, ModelConfig, RouteConfig, TenantConfig
from router.gateway.drain_state import DrainState
from router.gateway.features import features
from router.gateway.flow.attempt_edges import AttemptEdges
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
from router.requests.body_buffer_limit import BodyBufferLimit
from router.requests.identify.stage import IdentifyStage
from router.requests.layers.classes.layer import RequestClasses
from router.requests.layers.relearn.layer import Relearn
from router.requests.metrics import GatewayMetrics
from router.requests.placing import PlacementGate
from router.requests.preview import Preview
from router.requests.queues.in_progress import InProgress
from router.requests.request_ids import RequestIds
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
        config, fleet, metrics, core = context.config, context.fleet, context.metrics, context.core
        limits, timeouts = config.limits, config.timeouts
        self.loop = loop
        self._fleet = fleet
        # clients
        self.keys = api_keys(config.auth)
        self.callers = Callers(config)
        places = ConnectionLimit(limits.max_connections, loop.time, accept_order)
        self.drain = DrainState(places, timeouts.client_idle_s, timeouts.drain_idle_s)
        self.bodies = BodyBufferLimit(limits)
        context.identity.charge_to(self.bodies)
        self.unsent = SendBufferLimit(limits)
        self.outbox = WriteCoalescer(loop)
        core.defer_notes_with(self.outbox.note_after)
        # workers
        self.worker_keys = worker_keys(config, guarded=self.keys is not None)
        tls = (context.worker_tls or WorkerTls(config.worker_tls)).context_for
        self.pools = self._pools(context, tls)
        self.pools.on_refusal = self._refused
        # requests
        client = WorkerClient(tls=tls, via=context.instance.name)
        self.identifier = IdentifyStage(
            config, context.identity, fleet, metrics.identify, loop, self.worker_keys, client
        )
        self.requests = InProgress(config, fleet, core.tickets, loop, metrics.worker_deaths)
        fleet.on_evidence.append(self._note_reads)
        self.service_levels = ServiceLevels(config)
        running = self.requests.running
        enforced = config.classes and config.admission == "enforce"
        self.classes = RequestClasses(config, core, fleet, loop, running) if enforced else None
        self.features = features(
            config,
            core,
            fleet,
            loop,
            context.relearn,
            context.traces,
            self.classes,
            metrics,
            running,
        )
        self.handovers = (
            Handovers(config.handover, core, fleet, loop, metrics, timeouts.connect_s)
            if config.handover.connector
            else None
        )
        self.services = self._services(context)
        self.preview = Preview(
            self.identifier, self.callers, self.keys, self.services.request_ids, loop.time, self.classes, self.features
        )

    def _pools(self, context: GatewayContext, tls: Callable[[Endpoint], ssl.SSLContext | None]) -> ConnectionPool:
        config = context.config
        return ConnectionPool(
            self.loop,
            self.outbox,
            config.timeouts.upstream_idle_s,
            config.limits.max_header_bytes,
            tls,
            context.metrics.redials,
            self.worker_keys,
            b"http" if config.tls.cert_file is None else b"https",
            context.instance.via,
        )

    def _gate(self, context: GatewayContext) -> PlacementGate:
        core, requests = context.core, self.requests
        return PlacementGate(
            core.dispatcher,
            core.tickets,
            requests.quarantine,
            requests.no_worker,
            requests.hold,
            context.metrics,
            context.fleet,
            context.config.timeouts.queue_s,
            self.features,
            self.identifier.models,
            self._kv_plans(context),
            self.classes,
        )

    def _services(self, context: GatewayContext) -> GatewayServices:
        config, metrics, core, fleet = context.config, context.metrics, context.core, context.fleet
        known, cors, ids = self.identifier, Cors(config.cors_origins), RequestIds()
        access = AccessLog(config.access_log, config.trusted_proxies)
        local = LocalAnswers(metrics, known.paths, cors, access, ids, fleet, self.drain, known.names, context.answers)
        gate, quarantine = self._gate(context), self.requests.quarantine
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
            request_ids=ids,
            instance=context.instance,
            local=local,
            running=self.requests.running,
            identity=context.identity,
            identifier=known,
            pools=self.pools,
            placements=gate,
            edges=AttemptEdges(gate, core.dispatcher, core.tickets, quarantine, fleet, metrics),
            pins=known.pins,
            lines=ResponseLines(cors, config.headers),
            features=self.features,
            log=RequestLog(metrics, access, self.loop.time, self.service_levels, fleet),
        )

    def _kv_plans(self, context: GatewayContext) -> KvPlans | None:
        config = context.config.handover
        pulls = Pulls(config, context.core, context.metrics.pulls) if config.pulls else None
        return (
            None if self.handovers is None and pulls is None else KvPlans(context.core.planner, self.handovers, pulls)
        )

    def _refused(self, endpoint: Endpoint) -> None:
        self.requests.quarantine.refused(endpoint)
        self._fleet.refused(endpoint.authority, self.loop.time())

    def _note_reads(self) -> None:
        for request in self.requests.running:
            request.note_read()

    def use_routes(self, routes: Sequence[RouteConfig]) -> None:
        self.identifier.routes.adopt(routes)
        self.features.adopt(routes)
        self.service_levels.adopt(routes)

    def use_models(self, models: Mapping[str, ModelConfig]) -> None:
        """Use other names and service levels of models. Requests in the queue may have a ready fallback now."""
        self.identifier.use_models(models)
        self.service_levels.adopt_models(models)
        self.requests.no_worker.changed()

    def use_callers(self, tenants: Mapping[str, TenantConfig], limits: LimitsConfig) -> None:
        """Use other tenants, and other limits of tenants and keys."""
        self.callers.adopt(tenants, limits)

    def close(self) -> None:
        """Unsubscribe from the fleet and the tickets, and close the connections to workers."""
        if self._note_reads in self._fleet.on_evidence:
            self._fleet.on_evidence.remove(self._note_reads)
        self.identifier.search.close()
        self.requests.close()
        self.features.close()
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
            **self.requests.statistics(),
            **self.features.statistics(),
            "buffered_body_bytes": self.bodies.used_bytes,
            "buffered_response_bytes": self.unsent.used_bytes,
            "slow_readers_cut": self.unsent.cut,
            "bodies_refused": self.bodies.refused,
            "rewrites": self.identifier.statistics(),
            "pools": self.pools.statistics(),
            "tenants": self.callers.statistics(),
            "api_keys": self.keys.statistics() if self.keys is not None else None,
        }
