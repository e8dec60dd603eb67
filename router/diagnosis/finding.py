"""The result of a check: a finding with its evidence, or why there is none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec

from router.diagnosis.condition import RANK, Severity

Cell = str | float | int | None


class Pressure(StrEnum):
    """The pressure points that the diagnosis knows."""

    PREFILL_QUEUEING = "prefill_queueing"
    DECODE_SCHEDULING = "decode_scheduling"
    KV_CAPACITY = "kv_capacity"
    PHASE_INTERFERENCE = "phase_interference"
    PREFIX_REUSE = "prefix_reuse"
    WORKER_ROLES = "worker_roles"


class Evidence(msgspec.Struct, frozen=True):
    """A table of measurements. Times are in seconds, shares from 0 to 1."""

    caption: str
    columns: list[str]
    rows: list[list[Cell]]


class Finding(msgspec.Struct, frozen=True):
    """Something that hurts.

    `check` names what has found it, and `which` the workers, models or callers that it is about: none means the whole
    gateway or fleet. `since` is in ISO 8601. `detail` says what clients notice, with the numbers that crossed their
    thresholds, and `why` the reasons as far as they are known.
    """

    check: str
    severity: Severity
    symptom: str
    detail: str
    evidence: list[Evidence]
    to_try: list[str]
    since: str | None = None
    which: list[str] = []
    why: list[str] = []


class Unsure(msgspec.Struct, frozen=True):
    """A check that has seen too little to say anything."""

    check: Pressure
    needs: str


Checked = Finding | Unsure | None
"""None: nothing wrong."""


def table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Evidence:
    """Return a table with numbers rounded for reading."""
    return Evidence(caption, list(columns), [[_rounded(cell) for cell in row] for row in rows])


def _rounded(cell: Cell) -> Cell:
    return float(f"{cell:.4g}") if isinstance(cell, float) else cell


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings by severity, outages first, and by time within one severity."""
    return sorted(findings, key=lambda one: (RANK[one.severity], one.since or ""))
