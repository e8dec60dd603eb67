"""Errors in workloads."""

from __future__ import annotations

from pathlib import Path


class WorkloadError(Exception):
    """The workload cannot be made; the message says why, and what to do."""


class TraceError(WorkloadError):
    """The trace cannot be read; the message names the file, the row and the fault."""

    @classmethod
    def at_row(cls, path: Path, number: int, problem: str) -> TraceError:
        """Return the error of a row. `number` counts rows from 1, without the header."""
        return cls(f"{path}, row {number}: {problem}")
