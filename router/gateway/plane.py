"""What all connections of one gateway share."""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Protocol

from policies.view import WorkerId
from router.config.model import Config
from router.gateway.http.access_log import AccessLog
from router.gateway.http.body_buffer_limit import BodyBufferLimit
from router.gateway.http.cors import Cors
from router.gateway.http.heap_trim import HeapTrimmer, trimmer
from router.gateway.http.pipelining import PipelineScheduler
from router.gateway.http.request_head import RequestHead
from router.gateway.http.request_ids import RequestIds
from router.gateway.http.routes import RouteTable
from router.gateway.http.send_buffer_limit import SendBufferLimit
from router.gateway.http.time_slices import TimeSlices
from router.gateway.http.upstream_pool import ConnectionPool
from router.gateway.http.worker_keys import worker_keys
from router.gateway.http.write_coalescer import WriteCoalescer
from router.gateway.listen.connection_limit import AcceptOrder, ConnectionLimit
from router.gateway.losses import Losses
from router.gateway.metrics_protocol import GatewayMetrics
from router.gateway.phases import phase_limits_s
from router.gateway.quarantine import Quarantine
from router.gateway.rewrites.body_rewriter import BodyRewriter, Relearn
from router.gateway.waiting import HoldQueue, WaitingRoom
from router.placement.dispatcher import Dispatcher
from router.placement.fleet import Fleet
from router.placement.query_of_death import QueryOfDeathTracker
from router.placement.tickets import Ticket
from router.security.callers import Callers
from router.security.keys import api_keys
from router.security.worker_tls import WorkerTls
from router.tokenization.identity import Identity

if TYPE_CHECKING:
    from router.gateway.client import ClientConnection
    from router.gateway.exchange import Exchange

PINS = 100_000


class SharedPins(Protocol):
    """Which worker made a stored response, as far as any process of this gateway knows."""

    def learn(self, response_id: str, worker: WorkerId) -> None:
        """`worker` made `response_id`."""

    def worker(self, response_id: str) -> WorkerId | None:
        """Who made `response_id`, if it is still known."""


class Pins:
    """Which worker made a stored response, for the last `limit` of them."""

    def __init__(self, limit: int = PINS) -> None:
        self.shared: SharedPins | None = None
        self._limit = limit
        self._workers: OrderedDict[str, WorkerId] = OrderedDict()

    def learn(self, response_id: str, worker: WorkerId) -> None:
        """`worker` made `response_id`."""
        self._workers[response_id] = worker
        self._workers.move_to_end(response_id)
        if len(self._workers) > self._limit:
            self._workers.popitem(last=False)
        if self.shared is not None:
            self.shared.learn(response_id, worker)

    def worker(self, response_id: str) -> WorkerId | None:
        """Who made `response_id`, if it is still known."""
        worker = self._workers.get(response_id)
        if worker is None and self.shared is not None:
            return self.shared.worker(response_id)
        return worker

    def __len__(self) -> int:
        return len(self._workers)


class Plane:
    """The gateway's parts and its open connections."""

    def __init__(
        self,
        config: Config,
        dispatcher: Dispatcher,
        fleet: Fleet,
        identity: Identity,
        metrics: GatewayMetrics,
        loop: asyncio.AbstractEventLoop,
        relearn: Relearn | None = None,
        worker_tls: WorkerTls | None = None,
        accept_order: AcceptOrder | None = None,
    ) -> None:
        self.config = config
        self.dispatcher = dispatcher
        self.fleet = fleet
        self.identity = identity
        self.metrics = metrics
        self.loop = loop
        self.time = loop.time
        self.phase_limits_s = phase_limits_s(config.timeouts)
        self.max_requests = config.limits.max_concurrent_requests or sys.maxsize
        self.paths = RouteTable(config.extra_paths)
        self.outbox = WriteCoalescer(loop)
        self.pipelines = PipelineScheduler(loop)
        tls = worker_tls or WorkerTls(config.worker_tls)
        self.pools = ConnectionPool(
            loop,
            self.outbox,
            config.timeouts.upstream_idle_s,
            config.limits.max_header_bytes,
            config.timeouts.upstream_head_s,
            tls.context_for,
        )
        self.waiting = WaitingRoom(fleet, loop, config.limits.max_queued_requests)
        self.hold_queue = HoldQueue(dispatcher, fleet, loop, config.limits.max_held_requests)
        self.rewrites = BodyRewriter(config, fleet, relearn)
        self.pins = Pins()
        self.request_ids = RequestIds()
        self.cors = Cors(config.cors)
        self.access = AccessLog(config.access_log, config.trusted_proxies)
        self.keys = api_keys(config.auth)
        self.callers = Callers(config)
        self.worker_keys = worker_keys(config, guarded=self.keys is not None)
        self.scheme = b"http" if config.tls.cert_file is None else b"https"
        self.slices = TimeSlices()
        self.heap = HeapTrimmer(loop, trimmer())
        self.bodies = BodyBufferLimit(config.limits, self.heap.freed)
        identity.charge_to(self.bodies)
        self.unsent = SendBufferLimit(config.limits)
        self.places = ConnectionLimit(config.limits.max_connections, loop.time, accept_order)
        """The sockets accepted, those without a connection yet included."""
        self.connections: set[ClientConnection] = set()
        self.exchanges: set[Exchange] = set()
        self.losses = Losses(fleet, loop, self.exchanges)
        query_of_death = QueryOfDeathTracker(config.retries.query_of_death_s)
        self.quarantine = Quarantine(query_of_death, fleet, loop, self.exchanges, metrics, self.waiting.changed)
        self.pools.on_refusal = self.quarantine.refused
        self.client_idle_s = config.timeouts.client_idle_s
        """How long a client's connection may be idle; less once no new ones are accepted."""
        self.draining = False
        """From now on every answer tells its client to close the connection."""
        self.closing = False
        """The time is up: no connection may go on, whatever its client was told."""
        self.accepts = True
        """New connections may come."""
        self.empty = asyncio.Event()
        """Set when no connection is open, once no new ones are accepted."""

    def drain(self) -> None:
        """Readiness off. Connections stay open until they have said so in an answer."""
        self.draining = True

    def accepts_no_more(self) -> None:
        """The listeners are closed: idle connections need not be kept for as long as before."""
        self.accepts = False
        idle_s, self.client_idle_s = self.client_idle_s, min(self.client_idle_s, self.config.timeouts.drain_idle_s)
        for connection in self.connections:
            connection.shorten_idle(idle_s - self.client_idle_s)
        if not self.connections:
            self.empty.set()

    def accepts_again(self) -> None:
        """After `accepts_no_more`: as before `drain`. Connections that have been told to close still do."""
        self.draining = False
        self.accepts = True
        self.empty.clear()
        idle_s, self.client_idle_s = self.client_idle_s, self.config.timeouts.client_idle_s
        for connection in self.connections:
            connection.shorten_idle(idle_s - self.client_idle_s)

    def ended(self, exchange: Exchange) -> None:
        """`exchange` is over."""
        self.exchanges.discard(exchange)

    def allow_unsent(self) -> None:
        """What each connection may leave unsent has changed."""
        for connection in list(self.connections):
            connection.allow_unsent(self.unsent.allowance_bytes)

    def joined(self, connection: ClientConnection) -> None:
        """A connection is there."""
        self.connections.add(connection)
        self.places.opened(connection)
        self.empty.clear()

    def left(self, connection: ClientConnection) -> None:
        """A connection has closed."""
        self.connections.discard(connection)
        self.places.left(connection)
        if not self.accepts and not self.connections:
            self.empty.set()

    @property
    def ready(self) -> bool:
        """Whether a request would find a worker."""
        return not self.draining and self.fleet.serving > 0

    def head_lines(self, head: RequestHead, request_id: bytes, ticket: Ticket | None) -> bytes:
        """Our own header lines of the response to `head`, naming the ticket's worker where that is wanted."""
        lines = b"x-request-id: " + request_id + b"\r\n" + self.cors.lines(head)
        if ticket is None:
            return lines
        wanted = self.config.headers
        if wanted.worker:
            lines += b"x-warmroute-worker: " + ticket.candidate.id.encode("ascii") + b"\r\n"
        cached = ticket.predicted_cached_tokens
        if wanted.predicted_cached_tokens and cached is not None:
            lines += b"x-warmroute-predicted-cached-tokens: %d\r\n" % cached
            lines += b"x-warmroute-residency: " + ticket.residency.value.encode("ascii") + b"\r\n"
        return lines

    def statistics(self) -> dict[str, Any]:
        """Gauges: connections, requests in progress and waiting, pools."""
        return {
            "connections": self.places.open,
            "connections_refused": self.places.refused,
            "connections_evicted": self.places.evicted,
            "streams": len(self.exchanges),
            "queued": len(self.waiting),
            "held": len(self.hold_queue),
            "buffered_body_bytes": self.bodies.used_bytes,
            "buffered_response_bytes": self.unsent.used_bytes,
            "slow_readers_cut": self.unsent.cut,
            "bodies_refused": self.bodies.refused,
            "heap_trims": self.heap.trims,
            "stored_responses": len(self.pins),
            "quarantine": self.quarantine.statistics(),
            "rewrites": self.rewrites.statistics(),
            "pools": self.pools.statistics(),
            "tenants": self.callers.statistics(),
            "api_keys": self.keys.statistics() if self.keys is not None else None,
        }
