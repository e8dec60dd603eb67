"""Messages between a running gateway and its successor: one JSON message per packet on a Unix socket.

::

    successor                      running gateway
        connects  ------------------>  checks the user
        <-----------------------------  SocketsOffered, with the listening sockets attached (or TakeoverRefused)
        probes its workers, accepts on
        the public sockets
        SuccessorReady  ------------->  stops accepting, drains
        <-----------------------------  DrainStarted, then InFlightReport whenever that changes
        DrainedWorkers  ------------->  drains the same workers: kept connections may bring one more request
        SuccessorEnding  ------------>  will not serve again: the successor drains, or has a successor itself
        <-----------------------------  end of connection: the process has ended

Either process may end at any time. Before SuccessorReady, the running gateway continues as before. After it, the
running gateway keeps the listening sockets open while it drains. It serves again if the successor ends without
SuccessorEnding.
"""

from __future__ import annotations

import logging
import os
import socket
import struct

import msgspec

from backends.foreign_json import read_json
from router.control.state_file import Stored
from router.control.state_file import decode as decode_state
from router.control.state_file import encode as encode_state
from router.process.listeners import ListenAddresses

log = logging.getLogger("warmroute.process")

VERSION = 2
CARRIED = ("listening sockets", "desired state with its revisions", "drained workers")
"""What a gateway hands over, for people."""
LEFT = ("worker caches", "learned speeds", "stored responses' workers", "decisions", "use of rate limits")
"""What a successor learns again, for people."""
MOST_BYTES = 131_072
MOST_SOCKETS = 64
_CREDENTIALS = struct.Struct("3i")


class TakeoverError(RuntimeError):
    """The running gateway cannot be replaced. The message gives the reason and the remedy."""


class SocketsOffered(msgspec.Struct, frozen=True, tag="offered"):
    """The listening sockets, attached in this order: `public` of them, then the admin socket if there is one.

    A file with the desired state comes last (`HandedState`). `ready` counts the workers that take requests.
    """

    version: int
    pid: int
    listen_addresses: ListenAddresses
    public: int
    manager_owned: bool
    ready: int


class TakeoverRefused(msgspec.Struct, frozen=True, tag="refused"):
    reason: str


class SuccessorReady(msgspec.Struct, frozen=True, tag="ready"):
    """The successor accepts on the public sockets, and on the admin socket after `DrainStarted`. It sends
    `SuccessorEnding` before it ends.
    """


class DrainStarted(msgspec.Struct, frozen=True, tag="draining"):
    """The running gateway no longer accepts. `requests` counts its requests at each worker."""

    requests: dict[str, int]


class InFlightReport(msgspec.Struct, frozen=True, tag="in_flight"):
    """Requests at each worker of the draining gateway, and of the gateways that it took over from.

    `drained` are the workers to which none of these gateways sends requests any more.
    """

    requests: dict[str, int]
    drained: tuple[str, ...]


class DrainedWorkers(msgspec.Struct, frozen=True, tag="drained"):
    workers: tuple[str, ...]


class SuccessorEnding(msgspec.Struct, frozen=True, tag="ending"):
    """The successor drains and ends, or has handed over to its own successor. The gateway must not serve again."""


Message = (
    SocketsOffered | TakeoverRefused | SuccessorReady | DrainStarted | InFlightReport | DrainedWorkers | SuccessorEnding
)


def encode(message: Message) -> bytes:
    return msgspec.json.encode(message)


def decode(packet: bytes) -> Message:
    """Return the message of a packet.

    Raises:
        TakeoverError: the packet is not a known message.
    """
    try:
        message: Message = read_json(packet, Message)
    except msgspec.MsgspecError:
        raise TakeoverError("the other side speaks another language: is it another version of warmroute?") from None
    return message


def same_user(connection: socket.socket) -> bool:
    """Return whether the process at the other end runs as the same user."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(raw)
    return bool(user == os.geteuid())


class HandedState:
    """The desired state on its way to a successor: a file without a name, whose descriptor both processes hold.

    A packet is too small for the state of a large fleet with its history. The running gateway writes the file when it
    offers its sockets, and again when it has stopped making changes. This object owns the descriptor.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self.descriptor = os.memfd_create("warmroute-state") if descriptor is None else descriptor

    def write(self, stored: Stored) -> None:
        """Replace what the file holds."""
        text = encode_state(stored)
        os.ftruncate(self.descriptor, 0)
        written = 0
        while written < len(text):
            written += os.pwrite(self.descriptor, text[written:], written)

    def read(self) -> Stored:
        """Return what the file holds.

        Raises:
            ValueError: it was written by another version, or not to its end.
        """
        decoded = decode_state(os.pread(self.descriptor, os.fstat(self.descriptor).st_size, 0))
        if decoded.ignored:
            log.warning("a part of the handed state is ignored", extra={"reason": decoded.ignored})
        return decoded.stored

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
