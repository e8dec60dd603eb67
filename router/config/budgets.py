"""Compute the size of each byte budget whose setting is "auto".

All budgets together, times `RSS_PER_BYTE`, fit in half of the memory limit; the other half is for everything else. With
enough memory each budget has its maximum; with less, each has the same share of its maximum. An automatic budget
depends only on the memory limit and the number of processes, so setting one budget does not change the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from router.config.memory import MemoryLimit
from router.config.model import Config, LimitsConfig, Section

RSS_PER_BYTE = 3
"""Resident memory for one byte of a budget, including its copies while it is read and forwarded."""
SHARE = 2
"""The budgets get the memory limit divided by this."""
LEAST_BYTES = 1 << 20
"""Minimum of a budget, however low the limit is."""


@dataclass(frozen=True, slots=True)
class ByteBudget:
    """A setting that bounds memory, for all processes together or for each process."""

    section: str
    name: str
    most_bytes: int
    per_process: bool

    @property
    def path(self) -> str:
        return f"{self.section}.{self.name}"

    def of(self, section: Section) -> int:
        value = getattr(section, self.name)
        return value if isinstance(value, int) else self.most_bytes

    def within(self, config: Config) -> int:
        return self.of(getattr(config, self.section))

    def is_auto(self, config: Config) -> bool:
        """Return whether `config` leaves it to the memory limit."""
        return not isinstance(getattr(getattr(config, self.section), self.name), int)


BODIES = ByteBudget("limits", "max_buffered_body_bytes", 1 << 30, per_process=False)
RESPONSES = ByteBudget("limits", "max_buffered_response_bytes", 1 << 28, per_process=False)
PROMPTS = ByteBudget("residency", "memo_bytes", 1 << 27, per_process=True)
VIEWS = ByteBudget("residency", "approximate_bytes", 1 << 27, per_process=True)
BYTE_BUDGETS = (BODIES, RESPONSES, PROMPTS, VIEWS)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """`config` with every budget as a number, the memory limit behind these numbers, and warnings."""

    config: Config
    limit: MemoryLimit | None
    processes: int
    warnings: tuple[str, ...]

    @property
    def budgets(self) -> dict[str, int]:
        return {budget.path: budget.within(self.config) for budget in BYTE_BUDGETS}

    def to_builtins(self) -> dict[str, Any]:
        """Return the plan for a log line or JSON."""
        return {
            "limit_bytes": self.limit.size_bytes if self.limit is not None else None,
            "source": self.limit.source if self.limit is not None else "unknown",
            "processes": self.processes,
            **{path.rpartition(".")[2]: size_bytes for path, size_bytes in self.budgets.items()},
            "max_body_bytes": self.config.limits.max_body_bytes,
        }

    def lines(self) -> Iterator[str]:
        limit = self.limit
        yield "memory limit " + (f"{_mebibytes(limit.size_bytes)} ({limit.source})" if limit else "unknown")
        for budget in BYTE_BUDGETS:
            each = f" for each of {self.processes} processes" if budget.per_process and self.processes > 1 else ""
            yield f"  {budget.path}: {_mebibytes(budget.within(self.config))}{each}"
        yield f"  limits.max_body_bytes: {_mebibytes(self.config.limits.max_body_bytes)}"


def plan_memory(config: Config, processes: int, limit: MemoryLimit | None) -> MemoryPlan:
    """Give each "auto" budget its share of `limit`, and bound a single body by the budget for bodies."""
    part = _part(limit, processes)
    resolved = config
    for budget in BYTE_BUDGETS:
        if budget.is_auto(config):
            resolved = _with(resolved, budget.section, budget.name, max(LEAST_BYTES, int(budget.most_bytes * part)))
    body_bytes = BODIES.within(resolved)
    if BODIES.is_auto(config):
        body_bytes //= processes  # one body may take at most the whole share of a process
    largest_bytes = min(config.limits.max_body_bytes, body_bytes)
    resolved = _with(resolved, "limits", "max_body_bytes", largest_bytes)
    return MemoryPlan(resolved, limit, processes, tuple(_warnings(config, resolved, limit, processes)))


def _mebibytes(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):,.1f} MiB"


def _part(limit: MemoryLimit | None, processes: int) -> float:
    """Return the share of its maximum that each budget may have."""
    if limit is None:
        return 1.0
    most_bytes = sum(budget.most_bytes * _copies(budget, processes) for budget in BYTE_BUDGETS)
    return min(1.0, _room_bytes(limit) / most_bytes)


def _room_bytes(limit: MemoryLimit) -> int:
    return limit.size_bytes // (SHARE * RSS_PER_BYTE)


def _copies(budget: ByteBudget, processes: int) -> int:
    return processes if budget.per_process else 1


def _with(config: Config, section: str, name: str, value: int) -> Config:
    changed = msgspec.structs.replace(getattr(config, section), **{name: value})
    return msgspec.structs.replace(config, **{section: changed})


def _warnings(config: Config, resolved: Config, limit: MemoryLimit | None, processes: int) -> Iterator[str]:
    asked_bytes, largest_bytes = config.limits.max_body_bytes, resolved.limits.max_body_bytes
    if largest_bytes < asked_bytes != LimitsConfig().max_body_bytes:
        yield (
            f"limits.max_body_bytes is {asked_bytes}, but a body of more than {largest_bytes} bytes does not fit in "
            f"{BODIES.path}; raise that, or the memory limit"
        )
    if limit is None:
        return
    together_bytes, room_bytes = _together_bytes(resolved, processes), _room_bytes(limit)
    given = [budget.path for budget in BYTE_BUDGETS if not budget.is_auto(config)]
    if given and together_bytes > room_bytes:
        yield (
            f"the byte budgets are {together_bytes} bytes together, but a memory limit of {limit.size_bytes} bytes "
            f"({limit.source}) carries {room_bytes}; lower {' or '.join(given)}, or raise the limit"
        )


def _together_bytes(config: Config, processes: int) -> int:
    together_bytes = sum(budget.within(config) * _copies(budget, processes) for budget in BYTE_BUDGETS)
    # every process accepts a whole body, even if its share of the budget is smaller (`child_config`)
    whole_bytes = processes * config.limits.max_body_bytes if processes > 1 else 0
    return together_bytes + max(0, whole_bytes - BODIES.within(config))
