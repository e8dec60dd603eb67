"""What a running gateway and its successor say to each other, one JSON message per packet on a Unix socket.

    successor                     running gateway
        connects  ------------------>  checks the user
        <-----------------------------  Offered, with the listening sockets attached (or Refused)
        probes its workers, accepts on
        the public sockets
        Ready  ---------------------->  stops accepting, drains
        <-----------------------------  Draining, then InFlight whenever that changes
        Drained  --------------------->  drains the same workers: kept connections may bring it one more request
        Ending  ---------------------->  gives up its way back: the successor drains, or has a successor itself
        <-----------------------------  end of connection: its process is over

Either may end at any time. Before Ready that leaves the running gateway as it was. After Ready it keeps the listening
sockets open while it drains, and serves again if the successor ends without having said Ending.
"""

from __future__ import annotations

import os
import socket
import struct

import msgspec

from router.process.listeners import ListenAddresses

VERSION = 1
MOST_BYTES = 131_072
MOST_SOCKETS = 64
_CREDENTIALS = struct.Struct("3i")


class TakeoverError(RuntimeError):
    """The running gateway cannot be taken over. The message says why, and what to do."""


class SocketsOffered(msgspec.Struct, frozen=True, tag="offered"):
    """The listening sockets, attached in this order: `public` ones, then the admin one where there is one.

    `drained` are the workers that an operator drains, `ready` counts those that take requests. `resumes`: the gateway
    understands `SuccessorEnding`, which older versions do not.
    """

    version: int
    pid: int
    listen_addresses: ListenAddresses
    public: int
    held: bool
    drained: tuple[str, ...]
    ready: int
    resumes: bool = False


class HandoverRefused(msgspec.Struct, frozen=True, tag="refused"):
    """No."""

    reason: str


class SuccessorReady(msgspec.Struct, frozen=True, tag="ready"):
    """The successor accepts on the public sockets, and on the admin socket after `DrainStarted`. `says_end`: it sends
    `SuccessorEnding` before it ends, which older versions do not."""

    says_end: bool = False


class DrainStarted(msgspec.Struct, frozen=True, tag="draining"):
    """The running gateway no longer accepts. `drained` as of now; `requests` are those it still has at each worker."""

    drained: tuple[str, ...]
    requests: dict[str, int]


class InFlightReport(msgspec.Struct, frozen=True, tag="in_flight"):
    """Requests that the draining gateway still has at each worker, with those of one that it took over from itself.

    `drained` are the workers to which none of them sends anything any more.
    """

    requests: dict[str, int]
    drained: tuple[str, ...]


class DrainedWorkers(msgspec.Struct, frozen=True, tag="drained"):
    """The workers that an operator drains now. No others are drained."""

    workers: tuple[str, ...]


class SuccessorEnding(msgspec.Struct, frozen=True, tag="ending"):
    """The successor drains and ends, or has handed over to a successor of its own. Nobody is to serve in its place."""


Message = (
    SocketsOffered | HandoverRefused | SuccessorReady | DrainStarted | InFlightReport | DrainedWorkers | SuccessorEnding
)


def encode(message: Message) -> bytes:
    """One packet."""
    return msgspec.json.encode(message)


def decode(packet: bytes) -> Message:
    """What a packet says.

    Raises:
        TakeoverError: nothing we understand.
    """
    try:
        message: Message = msgspec.json.decode(packet, type=Message)
    except msgspec.MsgspecError:
        raise TakeoverError("the other side speaks another language: is it another version of warmroute?") from None
    return message


def same_user(connection: socket.socket) -> bool:
    """Whether the process at the other end runs as the same user."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(raw)
    return bool(user == os.geteuid())
