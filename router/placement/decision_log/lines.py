"""The lines of a decision log. Each is one JSON object; binary values are base64."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec
import numpy as np

from backends.foreign_json import json_decoder
from policies.spec import PolicySpec
from policies.view import (
    Columns,
    FleetView,
    LifecycleEventKind,
    RequestView,
    Residency,
    Roster,
    RunningShare,
    WorkerId,
    WorkerView,
)

VERSION = 3


class PolicyLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """A policy at a snapshot: its name in the settings, its spec, and its pickled state (None: it has no such form)."""

    name: str
    spec: PolicySpec
    state: bytes | None = None


class SnapshotLine(msgspec.Struct, frozen=True, tag="snapshot"):
    """The start of a period without a gap. Prompts and rosters of earlier lines are not referred to after it.

    `at_s` is the gateway's monotonic clock, as in all lines; `wall_s` is the Unix time of the same moment.
    """

    version: int
    at_s: float
    wall_s: float
    policies: tuple[PolicyLine, ...]


class RosterLine(msgspec.Struct, frozen=True, tag="roster"):
    """The ids, labels and weights of a large fleet. Without weights, all are 1."""

    number: int
    ids: tuple[WorkerId, ...]
    labels: tuple[Mapping[str, str], ...]
    weights: tuple[float, ...] = ()


class ColumnsLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """The facts of a large fleet: each array as its float64 values, in the order of a roster."""

    roster: int
    arrays: dict[str, bytes]
    residency: tuple[Residency, ...]
    learned: bool
    cached_tokens_by_tier: dict[int, dict[str, int]] = {}


class PromptLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """The block hashes of a prompt: the first `kept` of decision `base`, then `added` as unsigned 64-bit values."""

    base: int = 0
    kept: int = 0
    added: bytes = b""


class DecisionLine(msgspec.Struct, tag="decision", omit_defaults=True):
    """One decision: what the policy saw, and what it chose. `request` has no hashes; `prompt` has them.

    `shares` are the running shares that the policy asked for: worker, blocks, and the answer. `reserved`: the load was
    reserved at the same time on the chosen worker, and no `EventLine` says so.
    """

    number: int
    policy: str
    now_s: float
    request: RequestView
    prompt: PromptLine
    choice: WorkerId
    hold_s: float = 0.0
    workers: tuple[WorkerView, ...] = ()
    columns: ColumnsLine | None = None
    shares: tuple[tuple[WorkerId, int, float], ...] = ()
    reserved: bool = False


class EventLine(msgspec.Struct, frozen=True, tag="event", omit_defaults=True):
    """One lifecycle event of a request. `decision` is the decision that a reservation carries out, unless that has it
    in its own line (`DecisionLine.reserved`)."""

    kind: LifecycleEventKind
    request_id: str
    model: str
    worker: WorkerId
    now_s: float
    cached_tokens: int | None = None
    decision: int = 0
    output_tokens: int | None = None


Line: TypeAlias = SnapshotLine | RosterLine | DecisionLine | EventLine
_DECODER = json_decoder(Line)
_encode = msgspec.json.Encoder().encode


def encode(line: Line) -> bytes:
    return _encode(line) + b"\n"


def decode(text: bytes) -> Line:
    """Return the line of `text`.

    Raises:
        msgspec.DecodeError: it is no line of a decision log.
    """
    line: Line = _DECODER.decode(text)
    return line


def bare(request: RequestView) -> RequestView:
    return msgspec.structs.replace(request, block_hashes=())


def packed(hashes: Sequence[int]) -> bytes:
    """Return hashes as unsigned 64-bit values, lowest byte first."""
    values = array("Q", hashes)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def unpacked(hashes: bytes) -> tuple[int, ...]:
    return tuple(np.frombuffer(hashes, "<u8").tolist())


def columns_line(columns: Columns, roster: int) -> ColumnsLine:
    arrays = {fact: array.astype("<f8").tobytes() for fact, array in columns.arrays.items()}
    tiers = {place: dict(found) for place, found in columns.cached_tokens_by_tier.items()}
    return ColumnsLine(roster, arrays, tuple(columns.residency), columns.learned, tiers)


def fleet_of(line: DecisionLine, rosters: Mapping[int, Roster], share: RunningShare) -> FleetView:
    found = line.columns
    if found is None:
        return FleetView(line.now_s, line.workers, running_share=share)
    arrays = {fact: np.frombuffer(value, "<f8").copy() for fact, value in found.arrays.items()}
    columns = Columns(arrays, found.residency, found.learned, found.cached_tokens_by_tier)
    return FleetView(line.now_s, None, rosters[found.roster], columns, share)
