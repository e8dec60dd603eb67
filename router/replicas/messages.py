"""Messages on the fleet's channel: msgpack arrays, in absolute numbers, so that a lost message heals with the next.

Other replicas' clocks are not known, so times travel as ages in seconds.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct

MOST_MESSAGE_BYTES = 4 << 20
"""A longer message is not read. 4,096 rows take a tenth of it."""
MOST_ROWS = 4_096
MOST_USES = 4_096
MOST_PLACED = 4_096
MOST_BLOCKS = 65_536
MOST_MESSAGE_BLOCKS = 2 * 131_072
"""Blocks of all placements of a message. Further placements are not taken in."""
MOST_STEPS = 1_024

_Amount = Annotated[float, Meta(ge=0, le=1e15)]
_Sum = Annotated[float, Meta(ge=-1e15, le=1e15)]
_Age = Annotated[float, Meta(ge=0, le=1e9)]
Hash = Annotated[int, Meta(ge=0)]
"""64 bits: msgpack has no longer numbers."""
Name = Annotated[str, Meta(min_length=1, max_length=100)]


class Row(Struct, array_like=True, frozen=True):
    """The load that all processes of one replica have reserved on one candidate, as `LoadTotals` has it.

    `key` is the hash of the candidate's id. An age of None: there was none.
    """

    key: Hash
    queued_requests: _Amount = 0.0
    queued_tokens: _Amount = 0.0
    queued_attention: _Amount = 0.0
    running_requests: _Amount = 0.0
    kv_tokens: _Amount = 0.0
    decode_tokens: _Amount = 0.0
    head_age_s: _Age | None = None
    freed_age_s: _Age | None = None
    work: tuple[_Amount, _Amount, _Age, _Age] | None = None


class Placed(Struct, array_like=True, frozen=True):
    """Blocks of a prompt that its sender's model of a worker's cache lacked: those after the first `depth`.

    `steps` and `hashes` are hashes of 8 bytes each, little-endian; `steps` says where in a model the blocks belong
    (`router.residency.approximate.ApproximateCache.placed`). `key` is the hash of the worker's id.
    """

    key: Hash
    block_size: Annotated[int, Meta(ge=1, le=1_000_000)]
    depth: Annotated[int, Meta(ge=0, le=1 << 32)]
    steps: Annotated[bytes, Meta(max_length=8 * MOST_STEPS)]
    hashes: Annotated[bytes, Meta(max_length=8 * MOST_BLOCKS)]


class Used(Struct, array_like=True, frozen=True):
    """What one replica has used of the limits of one account, and what it has left in the buckets.

    `key` is the hash of the account's name. Amounts used are sums since the message with the number `since`; a sum
    falls when a request's estimate was too high. None: there is no such limit, or nothing was used.
    """

    key: Annotated[int, Meta(ge=1)]
    since: Annotated[int, Meta(ge=0)]
    requests: _Sum = 0.0
    tokens: _Sum = 0.0
    running: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    requests_left: _Sum | None = None
    tokens_left: _Sum | None = None


class Uses(Struct, array_like=True, frozen=True):
    """Rows that have changed, or with `whole` those of all accounts that are in use."""

    whole: bool = False
    rows: Annotated[list[Used], Meta(max_length=MOST_USES)] = []


class StateVersion(Struct, array_like=True, frozen=True, order=True):
    """The version of the shared changes that a replica has, and the random name of the change that made it."""

    number: Annotated[int, Meta(ge=0, le=1 << 53)] = 0
    change: Annotated[str, Meta(max_length=32)] = ""


class FleetMessage(Struct, array_like=True, frozen=True):
    """What one process tells the fleet. Process 0 speaks for its replica; the others send placements alone.

    `rows` are `Row`s that have changed, or with `whole` all that are not zero. `placed` are `Placed`s. `use` is
    `Uses`.
    """

    replica: Name
    process: Annotated[int, Meta(ge=0, le=10_000)]
    started_s: float
    seq: Annotated[int, Meta(ge=0)]
    whole: bool
    rows: Raw
    placed: Raw
    state: StateVersion
    use: Raw


_BATCH = msgspec.msgpack.Decoder(FleetMessage)
ROWS = msgspec.msgpack.Decoder(Annotated[list[Row], Meta(max_length=MOST_ROWS)])
PLACED = msgspec.msgpack.Decoder(Annotated[list[Placed], Meta(max_length=MOST_PLACED)])
USES = msgspec.msgpack.Decoder(Uses)
_ENCODER = msgspec.msgpack.Encoder()
NOTHING = Raw(_ENCODER.encode([]))


def packed(values: object) -> Raw:
    return Raw(_ENCODER.encode(values))


def encode(batch: FleetMessage) -> bytes:
    return _ENCODER.encode(batch)


def decode(message: bytes) -> FleetMessage | None:
    """Return a batch; None if the bytes are none."""
    if len(message) > MOST_MESSAGE_BYTES:
        return None
    try:
        return _BATCH.decode(message)
    except (msgspec.MsgspecError, RecursionError):
        return None
