"""The result of a check: a finding with its evidence, or why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

Cell = str | float | int | None


class Pressure(StrEnum):
    """The pressure points that the diagnosis knows."""

    PREFILL_QUEUEING = "prefill_queueing"
    DECODE_SCHEDULING = "decode_scheduling"
    KV_CAPACITY = "kv_capacity"
    PHASE_INTERFERENCE = "phase_interference"
    PREFIX_REUSE = "prefix_reuse"


class Evidence(msgspec.Struct, frozen=True):
    """A table of measurements. Times are in seconds, shares from 0 to 1."""

    caption: str
    columns: list[str]
    rows: list[list[Cell]]


class Finding(msgspec.Struct, frozen=True):
    """Something that hurts: the pressure point, the symptom in one line, the numbers that crossed their thresholds,
    tables of evidence, and what to try."""

    pressure: Pressure
    symptom: str
    detail: str
    evidence: list[Evidence]
    to_try: list[str]


class Unsure(msgspec.Struct, frozen=True):
    """A check that has seen too little to say anything."""

    pressure: Pressure
    needs: str


Checked = Finding | Unsure | None
"""None: nothing wrong."""


def table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Evidence:
    """Return a table with numbers rounded for reading."""
    return Evidence(caption, list(columns), [[_rounded(cell) for cell in row] for row in rows])


def _rounded(cell: Cell) -> Cell:
    return float(f"{cell:.4g}") if isinstance(cell, float) else cell
