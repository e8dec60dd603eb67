"""Messages between the process that ingests KV events and the processes that follow it, over a Unix socket.

A frame is its length in 4 bytes and a MessagePack array of messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from router.residency.changes import ViewChange

_LENGTH_BYTES = 4


class Follow(Struct, array_like=True, tag="follow"):
    """Follow a worker's publisher as `channel`, the follower's own number. The fields of the publisher are those of
    `KvEventSource`."""

    channel: int
    worker: str
    block_size: int
    capacity_blocks: int | None
    rank: int
    endpoint: str
    replay_endpoint: str | None
    topic: str
    buffer_steps: int
    hwm: int


class Unfollow(Struct, array_like=True, tag="unfollow"):
    """Follow no more."""

    channel: int


class Configure(Struct, array_like=True, tag="configure"):
    """Facts from a probe (`ViewIngester.configure`)."""

    channel: int
    block_size: int | None
    capacity_blocks: int | None


class Prove(Struct, array_like=True, tag="prove"):
    """Prove the view again with a replay (`Subscriber.relearn`)."""

    channel: int


class Relearned(Struct, array_like=True, tag="relearned"):
    """No block is missing here any more after a loss."""

    channel: int


class Learn(Struct, array_like=True, tag="learn"):
    """A response's report (`ViewIngester.learn`); `chain` has packed 64-bit hashes."""

    channel: int
    chain: bytes
    hits: int
    departures: int
    orphans: int


class Thin(Struct, array_like=True, tag="thin"):
    """One copy of each block remains (`ViewIngester.thin`); packed 64-bit hashes."""

    channel: int
    hashes: bytes


class AskedAgain(Struct, array_like=True, tag="asked"):
    """A request asked for its cached blocks (`ViewIngester.asked`)."""

    channel: int
    block: int


class Recomputes(Struct, array_like=True, tag="recomputes"):
    """A request that reads no cache was placed."""

    channel: int
    ticket_id: int
    block: int


class Released(Struct, array_like=True, tag="released"):
    """A request that reads no cache is over."""

    channel: int
    ticket_id: int


ToIngester = Follow | Unfollow | Configure | Prove | Relearned | Learn | Thin | AskedAgain | Recomputes | Released


class Hello(Struct, array_like=True, tag="hello"):
    """The first message: the id of the process that ingests."""

    pid: int


class Table(Struct, array_like=True, tag="table"):
    """The file with the table of a medium (None: the GPU), in place of an earlier one (`SharedBlocks`)."""

    medium: str | None
    path: str
    places: int
    words: int


class Following(Struct, array_like=True, tag="following"):
    """The number of the publisher that `channel` follows. Its whole state comes next."""

    channel: int
    publisher: int


class Figures(Struct, array_like=True, tag="figures"):
    """Counters of a publisher's view and of its link, and the distinct blocks of all views."""

    publisher: int
    view: dict[str, int]
    link: dict[str, Any]
    blocks: int


class ReplayEnded(Struct, array_like=True, tag="replayed"):
    """A replay has ended (`SubscriberMetrics.replayed`)."""

    publisher: int
    outcome: str


ToFollower = Hello | Table | Following | ViewChange | Figures | ReplayEnded

_ENCODER = msgspec.msgpack.Encoder()


def frame_of(messages: Sequence[Struct]) -> bytes:
    body = _ENCODER.encode(messages)
    return len(body).to_bytes(_LENGTH_BYTES) + body


class FrameSplitter:
    """Split received bytes into the bodies of frames."""

    def __init__(self) -> None:
        self._received = bytearray()

    def bodies(self, data: bytes) -> Iterator[bytes]:
        """Yield the bodies that are complete with `data`."""
        received = self._received
        received += data
        start = 0
        while len(received) - start >= _LENGTH_BYTES:
            end = start + _LENGTH_BYTES + int.from_bytes(received[start : start + _LENGTH_BYTES])
            if len(received) < end:
                break
            yield bytes(received[start + _LENGTH_BYTES : end])
            start = end
        del received[:start]


TO_INGESTER: msgspec.msgpack.Decoder[list[ToIngester]] = msgspec.msgpack.Decoder(list[ToIngester])
TO_FOLLOWER: msgspec.msgpack.Decoder[list[ToFollower]] = msgspec.msgpack.Decoder(list[ToFollower])
