"""Build the parts of one gateway and connect them. Only `server.Gateway` holds all of them."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from router.config.model import Config
from router.gateway.client_services import ClientServices
from router.gateway.drain_state import DrainState
from router.gateway.flow.attempt import AttemptServices
from router.gateway.flow.deadlines import Limits
from router.gateway.flow.forwarding import ForwardedRequest
from router.gateway.flow.identify import Identifier
from router.gateway.flow.placements import Placements
from router.gateway.flow.request_log import LogSinks
from router.gateway.flow.services import RequestServices, ResponseLines
from router.gateway.http.access_log import AccessLog
from router.gateway.http.body_buffer_limit import BodyBufferLimit
from router.gateway.http.cors import Cors
from router.gateway.http.heap_trim import HeapTrimmer, trimmer
from router.gateway.http.request_ids import RequestIds
from router.gateway.http.routes import RouteTable
from router.gateway.http.send_buffer_limit import SendBufferLimit
from router.gateway.http.time_slices import TimeSlices
from router.gateway.http.upstream_pool import ConnectionPool
from router.gateway.http.worker_keys import worker_keys
from router.gateway.http.write_coalescer import WriteCoalescer
from router.gateway.listen.connection_limit import AcceptOrder, ConnectionLimit
from router.gateway.local import LocalAnswers
from router.gateway.metrics_protocol import GatewayMetrics
from router.gateway.pins import Pins
from router.gateway.preview import Preview
from router.gateway.quarantine import Quarantine
from router.gateway.queues.hold import HoldQueue
from router.gateway.queues.lost_workers import LostWorkers
from router.gateway.queues.no_worker import NoWorkerQueue
from router.gateway.rewrites.body_rewriter import BodyRewriter, Relearn
from router.placement.dispatcher import Dispatcher
from router.placement.fleet import Fleet
from router.placement.query_of_death import QueryOfDeathTracker
from router.security.callers import Callers
from router.security.keys import api_keys
from router.security.worker_tls import WorkerTls
from router.tokenization.identity import Identity


class Assembly:
    """The parts of a started gateway."""

    def __init__(
        self,
        config: Config,
        dispatcher: Dispatcher,
        fleet: Fleet,
        identity: Identity,
        metrics: GatewayMetrics,
        loop: asyncio.AbstractEventLoop,
        relearn: Relearn | None,
        worker_tls: WorkerTls | None,
        accept_order: AcceptOrder | None,
    ) -> None:
        limits, timeouts = config.limits, config.timeouts
        self.loop = loop
        self.running: set[ForwardedRequest] = set()
        places = ConnectionLimit(limits.max_connections, loop.time, accept_order)
        self.drain = DrainState(places, timeouts.client_idle_s, timeouts.drain_idle_s)
        self.heap = HeapTrimmer(loop, trimmer())
        self.bodies = BodyBufferLimit(limits, self.heap.freed)
        identity.charge_to(self.bodies)
        self.unsent = SendBufferLimit(limits)
        self.keys = api_keys(config.auth)
        self.callers = Callers(config)
        self.worker_keys = worker_keys(config, guarded=self.keys is not None)
        outbox = WriteCoalescer(loop)
        self.pools = _pools(config, loop, outbox, worker_tls)
        self.queue = NoWorkerQueue(fleet, loop, limits.max_queued_requests)
        self.hold_queue = HoldQueue(dispatcher, fleet, loop, limits.max_held_requests)
        self.lost_workers = LostWorkers(fleet, loop, self.running)
        query_of_death = QueryOfDeathTracker(config.retries.query_of_death_s)
        self.quarantine = Quarantine(query_of_death, fleet, loop, self.running, metrics, self.queue.changed)
        self.pools.on_refusal = self.quarantine.refused
        self.rewriter = BodyRewriter(config, fleet, relearn)
        self.pins = Pins()
        self.slices = TimeSlices()
        paths, cors, request_ids = RouteTable(config.extra_paths), Cors(config.cors), RequestIds()
        access = AccessLog(config.access_log, config.trusted_proxies)
        identifier = Identifier(identity, fleet, metrics, loop, paths, self.pins, self.slices, self.rewriter)
        self.preview = Preview(identifier, paths, self.callers, self.keys, request_ids, loop.time)
        placements = Placements(
            dispatcher, self.quarantine, self.queue, self.hold_queue, metrics, fleet, timeouts.queue_s
        )
        log = LogSinks(metrics, access, loop.time)
        requests = self._request_services(config, metrics, identity, identifier, placements, cors, log)
        self.clients = ClientServices(
            loop=loop,
            limits=limits,
            timeouts=timeouts,
            metrics=metrics,
            drain=self.drain,
            bodies=self.bodies,
            unsent=self.unsent,
            outbox=outbox,
            keys=self.keys,
            callers=self.callers,
            request_ids=request_ids,
            local=LocalAnswers(metrics, paths, cors, access, request_ids, fleet, self.drain),
            requests=requests,
            running=self.running,
        )

    def _request_services(
        self,
        config: Config,
        metrics: GatewayMetrics,
        identity: Identity,
        identifier: Identifier,
        placements: Placements,
        cors: Cors,
        log: LogSinks,
    ) -> RequestServices:
        scheme = b"http" if config.tls.cert_file is None else b"https"
        return RequestServices(
            loop=self.loop,
            limits=Limits(config.timeouts, config.limits.max_concurrent_requests or sys.maxsize),
            metrics=metrics,
            identity=identity,
            identifier=identifier,
            attempts=AttemptServices(self.loop, metrics, self.pools, self.worker_keys, scheme),
            placements=placements,
            pins=self.pins,
            lines=ResponseLines(cors, config.headers),
            log=log,
        )

    def close(self) -> None:
        """Unsubscribe from the fleet and the dispatcher, and close the connections to workers."""
        self.lost_workers.close()
        self.quarantine.close()
        self.rewriter.close()
        self.queue.close()
        self.hold_queue.close()
        self.pools.close()
        self.heap.close()

    def statistics(self) -> dict[str, Any]:
        """Return gauges of connections, requests in progress and waiting, buffers and pools."""
        places = self.drain.places
        return {
            "connections": places.open,
            "connections_refused": places.refused,
            "connections_evicted": places.evicted,
            "streams": len(self.running),
            "queued": len(self.queue),
            "held": len(self.hold_queue),
            "buffered_body_bytes": self.bodies.used_bytes,
            "buffered_response_bytes": self.unsent.used_bytes,
            "slow_readers_cut": self.unsent.cut,
            "bodies_refused": self.bodies.refused,
            "heap_trims": self.heap.trims,
            "stored_responses": len(self.pins),
            "quarantine": self.quarantine.statistics(),
            "rewrites": self.rewriter.statistics(),
            "pools": self.pools.statistics(),
            "tenants": self.callers.statistics(),
            "api_keys": self.keys.statistics() if self.keys is not None else None,
        }


def _pools(
    config: Config, loop: asyncio.AbstractEventLoop, outbox: WriteCoalescer, worker_tls: WorkerTls | None
) -> ConnectionPool:
    return ConnectionPool(
        loop,
        outbox,
        config.timeouts.upstream_idle_s,
        config.limits.max_header_bytes,
        config.timeouts.upstream_head_s,
        (worker_tls or WorkerTls(config.worker_tls)).context_for,
    )
