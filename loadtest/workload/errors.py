"""Errors of workloads."""

from __future__ import annotations

from pathlib import Path


class WorkloadError(Exception):
    """The workload cannot be made; the message says why and what to do."""


class TraceError(WorkloadError):
    """The trace cannot be read; the message says which file, which row, and what is wrong with it."""

    @classmethod
    def at_row(cls, path: Path, number: int, problem: str) -> TraceError:
        """`number` counts rows from 1, a header not among them."""
        return cls(f"{path}, row {number}: {problem}")
