"""One request's entry in metrics and access log."""

from __future__ import annotations

from router.gateway.http.request_head import RequestHead
from router.gateway.plane import Plane
from router.gateway.relay import Relay


class Books:
    """When a request came, who answered it first and when, and how it ended. Settled exactly once.

    `arrived_s` is when the request's last byte came, `worker` the last one tried.
    """

    __slots__ = (
        "_body_bytes",
        "_head",
        "_key_name",
        "_plane",
        "_request_id",
        "_route",
        "_ttft_s",
        "arrived_s",
        "peer",
        "worker",
    )

    def __init__(
        self,
        plane: Plane,
        route: str,
        head: RequestHead,
        request_id: bytes,
        peer: str,
        body_bytes: int,
        key_name: str | None = None,
    ) -> None:
        self._plane = plane
        self._route = route
        self._head = head
        self._request_id = request_id
        self._body_bytes = body_bytes
        self._ttft_s: float | None = None
        self.arrived_s = plane.time()
        self.peer = peer
        self._key_name = key_name
        self.worker = ""

    def first_event(self, now_s: float) -> None:
        """The first real event, or body byte, came."""
        self._ttft_s = now_s - self.arrived_s
        self._plane.metrics.first_event(self._route, self._ttft_s)

    def settle(self, status: int, relay: Relay) -> None:
        """The request is over."""
        plane = self._plane
        duration_s = plane.time() - self.arrived_s
        plane.metrics.request_ended(self._route, status, duration_s)
        plane.metrics.relayed(self._body_bytes, relay.response_bytes)
        if plane.access.enabled:
            plane.access.write(
                self._head,
                self.peer,
                status=status,
                bytes=relay.response_bytes,
                ttft_s=None if self._ttft_s is None else round(self._ttft_s, 6),
                duration_s=round(duration_s, 6),
                worker=self.worker or None,
                request_id=self._request_id.decode("latin-1"),
                **({} if self._key_name is None else {"key_name": self._key_name}),
            )
