"""A front as `Ports` opens, drains and closes it."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Protocol

from router.limits.table import RateTable
from router.placement.fleet.query_of_death import Deaths
from router.process.children.accept_balancer import LeastConnections
from router.requests.front import Front
from router.requests.pins import SharedPins


class ListeningFront(Front, Protocol):
    """`router.gateway.server.PublicServer` and `router.picker.server.PickerServer`."""

    async def start(
        self,
        listeners: Sequence[socket.socket] | None = None,
        *,
        accept_order: LeastConnections | None = None,
        pins: SharedPins | None = None,
        deaths: Deaths | None = None,
        limits: RateTable | None = None,
    ) -> list[str]:
        """Listen on `listeners`, or on the configured address. Return the addresses.

        Raises:
            ListenError: an address is not available.
        """

    @property
    def listeners(self) -> tuple[socket.socket, ...]:
        """The listening sockets that another process can be given; empty if there are none."""

    def drain(self) -> None:
        """Report not ready. New requests are still taken."""

    def end_drain(self) -> None:
        """Undo `drain`."""

    async def stop_accepting(self, *, leave_queue: bool | None = None) -> None: ...
    async def accept_again(self, listeners: Sequence[socket.socket]) -> None: ...

    async def drained(self) -> None:
        """Wait, after `stop_accepting`, until no request is in progress."""

    async def aclose(self, drain_s: float, *, leave_queue: bool | None = None) -> None:
        """Take no further requests, and close after those in progress have had `drain_s` to end."""
