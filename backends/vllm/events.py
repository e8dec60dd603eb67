"""Decode the KV events that a vLLM publisher sends over ZMQ. Pure: no sockets.

Two shapes are in use: events as positional arrays (vLLM <= 0.23) and as maps with a ``type`` key (>= 0.24, vllm#42892).
The batch around them is an array in both. Typed decoders read either shape at once. Batches that they refuse are read
again field by field, so that an unknown event or one odd field never loses the rest of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec
from msgspec import Struct

SEQ_BYTES = 8
END_SEQ = b"\xff" * SEQ_BYTES
MAX_ODD_EVENTS = 8_192
"""Events of a batch that is read field by field, which takes up to 10 us each. vLLM sends some for each request of a
step."""


class WireError(ValueError):
    """Frames or a payload that no known publisher sends."""


class BlockStored(Struct, gc=False, tag_field="type", tag="BlockStored"):
    """Blocks that became cached: one chain, following `parent_block_hash` (None: the start of a prompt).

    `token_ids` has ``len(block_hashes) * block_size`` ids, or none in a slower tier: some connectors name its blocks by
    hashes alone. `extra_keys` runs parallel to the blocks (untagged LoRA name, ``[multimodal id, offset]`` pairs, salt;
    None for none). `medium` is "GPU", "CPU", "STORAGE" or None (GPU).
    `origin` is proposed in vllm#51699: "REUSED" announces a block again without a new copy.
    """

    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: Any = None
    session_id: Any = None
    lookahead_token_ids: list[list[int] | None] | None = None
    origin: str | None = None


class BlockRemoved(Struct, gc=False, tag_field="type", tag="BlockRemoved"):
    """One physical copy of each of `block_hashes` left `medium`."""

    block_hashes: list[int | bytes]
    medium: str | None = None
    group_idx: int | None = None
    locality: str | None = None
    ownership: Any = None


class AllBlocksCleared(Struct, gc=False, tag_field="type", tag="AllBlocksCleared"):
    """The worker's own pool (GPU) was reset."""


class _StoredRow(BlockStored, gc=False, array_like=True, tag="BlockStored"):
    """`BlockStored` as a positional array."""


class _RemovedRow(BlockRemoved, gc=False, array_like=True, tag="BlockRemoved"):
    """`BlockRemoved` as a positional array."""


class _ClearedRow(AllBlocksCleared, gc=False, array_like=True, tag="AllBlocksCleared"):
    """`AllBlocksCleared` as a positional array."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(Struct, gc=False):
    """One engine step's events.

    `ts` is the worker's wall clock in seconds, `rank` its data-parallel rank (None: not given). `unknown` counts events
    of unknown types, `malformed` events of a known type that could not be read, so that information is missing.
    `skipped_blocks` counts the blocks of events about slower tiers that could not be read: nothing is missing of the
    GPU's.
    """

    ts: float
    events: Sequence[Event]
    rank: int | None = None
    unknown: int = 0
    malformed: int = 0
    skipped_blocks: int = 0


class _MapBatch(Struct, array_like=True, gc=False):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    rank: int | None = None


class _RowBatch(Struct, array_like=True, gc=False):
    ts: float
    events: list[_StoredRow | _RemovedRow | _ClearedRow]
    rank: int | None = None


def _decoder(kind: type[_MapBatch] | type[_RowBatch]) -> Callable[[bytes], _MapBatch | _RowBatch]:
    return msgspec.msgpack.Decoder(kind).decode


_TYPED = (_decoder(_MapBatch), _decoder(_RowBatch))


def decode_batch(payload: bytes) -> EventBatch:
    """Decode one batch of either shape.

    Raises:
        WireError: the payload is not MessagePack, or not a batch.
    """
    for decode in _TYPED:
        try:
            batch = decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        return EventBatch(batch.ts, batch.events, batch.rank)
    return _decode_tolerantly(payload)


def _decode_tolerantly(payload: bytes) -> EventBatch:
    try:
        values = msgspec.msgpack.decode(payload, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise WireError(f"not MessagePack: {error}") from None
    if not isinstance(values, list) or len(values) < 2 or not isinstance(values[1], list):
        raise WireError("not an event batch: expected [timestamp, [events], rank]")
    if len(values[1]) > MAX_ODD_EVENTS:
        raise WireError(f"{len(values[1])} events, some in an unknown form; at most {MAX_ODD_EVENTS} are read")
    batch = EventBatch(_number(values[0]), events := [], _integer(values[2]) if len(values) > 2 else None)
    for value in values[1]:
        kind, fields = _fields(value)
        if kind is None:
            batch.unknown += 1
            continue
        event = _build(kind, fields)
        if event is None and _is_below(fields):
            batch.skipped_blocks += _blocks(fields)
        elif event is None:
            batch.malformed += 1
        else:
            events.append(event)
    return batch


_KINDS: Mapping[str, type[Event]] = {kind.__name__: kind for kind in (BlockStored, BlockRemoved, AllBlocksCleared)}


def _fields(value: object) -> tuple[type[Event] | None, dict[str, Any]]:
    """Return an event's type and its fields by name, in either shape; type None if unknown."""
    if isinstance(value, dict):
        name = value.get("type")
        kind = _KINDS.get(name) if isinstance(name, str) else None
        return kind, {key: item for key, item in value.items() if isinstance(key, str)}
    if isinstance(value, list) and value and isinstance(value[0], str):
        kind = _KINDS.get(value[0])
        return kind, dict(zip(kind.__struct_fields__, value[1:], strict=False)) if kind else {}
    return None, {}


_SPECS = {kind: msgspec.structs.fields(kind) for kind in _KINDS.values()}
_IDENTITY = frozenset({"medium", "lora_name", "lora_id", "extra_keys", "group_idx", "kv_cache_spec_kind"})
"""Optional fields whose absence would give an event another meaning."""


def _build(kind: type[Event], fields: dict[str, Any]) -> Event | None:
    """Return the event without optional fields of the wrong type; None if a required one is missing or wrong."""
    taken: dict[str, Any] = {}
    for spec in _SPECS[kind]:
        if spec.name not in fields:
            if spec.required:
                return None
            continue
        try:
            taken[spec.name] = msgspec.convert(fields[spec.name], spec.type)
        except msgspec.ValidationError:
            if spec.required:
                return None
            if spec.name in _IDENTITY and fields[spec.name] is not None:
                return None
    return kind(**taken)


def _is_below(fields: Mapping[str, Any]) -> bool:
    medium = fields.get("medium")
    return fields.get("locality") == "REMOTE" or (isinstance(medium, str) and medium != "GPU")


def _blocks(fields: Mapping[str, Any]) -> int:
    hashes = fields.get("block_hashes")
    return len(hashes) if isinstance(hashes, list) else 1


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def split_frames(frames: Sequence[bytes]) -> tuple[int, bytes]:
    """Return sequence number and payload of one published message: ``[topic, seq, payload]``.

    Raises:
        WireError: other frames.
    """
    if len(frames) != 3 or len(frames[1]) != SEQ_BYTES:
        raise WireError(f"expected [topic, 8-byte sequence number, payload], got {len(frames)} frames")
    return int.from_bytes(frames[1], "big"), bytes(frames[2])


def replay_request(start_seq: int) -> list[bytes]:
    """Return frames that ask a publisher's ROUTER socket (from a DEALER) for its batches from `start_seq` on."""
    return [b"", start_seq.to_bytes(SEQ_BYTES, "big")]


class ReplayEnd(Enum):
    END = "end"


@dataclass(frozen=True, slots=True)
class ReplayedBatch:
    seq: int
    payload: bytes


def parse_replay(frames: Sequence[bytes]) -> ReplayedBatch | ReplayEnd:
    """Parse one replay reply: ``[b"", seq, payload]`` (vLLM <= 0.25) or ``[b"", topic, seq, payload]`` (>= 0.26).

    Raises:
        WireError: other frames.
    """
    if len(frames) not in (3, 4) or len(frames[-2]) != SEQ_BYTES:
        raise WireError(f"expected [empty, (topic,) 8-byte sequence number, payload], got {len(frames)} frames")
    seq = bytes(frames[-2])
    return ReplayEnd.END if seq == END_SEQ else ReplayedBatch(int.from_bytes(seq, "big"), bytes(frames[-1]))
