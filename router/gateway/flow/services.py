"""The parts that all connections and requests of one gateway share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from router.config.model import HeadersConfig, LimitsConfig, TimeoutsConfig
from router.gateway.drain_state import DrainState
from router.gateway.flow.attempt.attempt import Attempt
from router.gateway.flow.attempt_edges import AttemptEdges
from router.gateway.flow.outbound import OutboundRequest
from router.gateway.flow.request_log import RequestLog
from router.gateway.flow.transitions import Event
from router.gateway.http.client.cors import Cors
from router.gateway.http.send_buffer_limit import SendBufferLimit
from router.gateway.http.upstream.pool import ConnectionPool
from router.gateway.http.write_coalescer import WriteCoalescer
from router.gateway.local import LocalAnswers
from router.placement.tickets import Ticket
from router.requests.body_buffer_limit import BodyBufferLimit
from router.requests.identify.stage import IdentifyStage
from router.requests.layer import Features
from router.requests.metrics import GatewayMetrics
from router.requests.pins import Pins
from router.requests.placing import Placement, PlacementGate
from router.requests.request_head import RequestHead
from router.requests.request_ids import RequestIds
from router.security.callers import Callers
from router.security.instance import Instance
from router.security.keys import ApiKeys
from router.tokenization.prompt_identifier import PromptIdentifier

Follows: TypeAlias = tuple[Event, Attempt | None] | Placement | None
"""What a part tells the driver: the next event with its attempt, the answer to a call for a worker, or nothing."""


class ResponseLines:
    """The gateway's own header lines in responses."""

    def __init__(self, cors: Cors, wanted: HeadersConfig) -> None:
        self._cors = cors
        self._wanted = wanted
        self.cors_enabled = cors.enabled

    def of(self, head: RequestHead, request_id: bytes, ticket: Ticket | None) -> bytes:
        """Return the lines of the response to `head`. They name the ticket's worker if the settings ask for it."""
        lines = b"x-request-id: " + request_id + b"\r\n"
        if self.cors_enabled:
            lines += self._cors.lines(head)
        if ticket is None:
            return lines
        wanted = self._wanted
        if wanted.worker:
            lines += b"x-warmroute-worker: " + ticket.candidate.id.encode("ascii") + b"\r\n"
        cached = ticket.predicted_cached_tokens
        if wanted.predicted_cached_tokens and cached is not None:
            lines += b"x-warmroute-predicted-cached-tokens: %d\r\n" % cached
            lines += b"x-warmroute-residency: " + ticket.residency.value.encode("ascii") + b"\r\n"
        return lines


@dataclass(frozen=True, slots=True)
class GatewayServices:
    """The parts of the gateway that its client connections and their requests share.

    It exists because each of the many connections and requests would otherwise keep and be given some twenty
    references. `keys` is None if clients need none.
    """

    loop: asyncio.AbstractEventLoop
    time: Callable[[], float]
    limits: LimitsConfig
    timeouts: TimeoutsConfig
    max_requests: int
    metrics: GatewayMetrics
    # what a connection uses
    drain: DrainState
    bodies: BodyBufferLimit
    unsent: SendBufferLimit
    outbox: WriteCoalescer
    keys: ApiKeys | None
    callers: Callers
    request_ids: RequestIds
    instance: Instance
    local: LocalAnswers
    # what a request uses
    running: set[Any]
    """The `RequestDriver`s that have not ended."""
    identity: PromptIdentifier
    identifier: IdentifyStage
    pools: ConnectionPool
    placements: PlacementGate
    edges: AttemptEdges
    pins: Pins
    lines: ResponseLines
    log: RequestLog
    features: Features

    def lines_of(self, outbound: OutboundRequest, ticket: Ticket | None) -> bytes:
        """Return the gateway's own header lines in the response, those of layers included."""
        lines = self.lines.of(outbound.head, outbound.id, ticket)
        for layer in outbound.layers:
            lines += layer.response_lines(ticket)
        return lines

    def allow_unsent(self) -> None:
        for connection in list(self.drain.connections):
            connection.allow_unsent(self.unsent.allowance_bytes)
