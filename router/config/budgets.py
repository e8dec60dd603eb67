"""What each byte budget gets of the memory limit where its setting is "auto".

All budgets together, at `RSS_PER_BYTE` times, fit in half of the limit; the other half is for everything else. With
plenty of memory each budget has its most; with less, each has the same part of its most. So what a budget gets depends
on the limit and the number of processes only, and a budget that is set leaves the others as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from router.config.memory import MemoryLimit
from router.config.model import Config, LimitsConfig, Section

RSS_PER_BYTE = 3
"""Resident memory that one byte of a budget may cost, with what is made of it while it is read and forwarded."""
SHARE = 2
"""One part in so many of the memory limit is for the budgets."""
LEAST_BYTES = 1 << 20
"""No budget gets less, however low the limit is."""


@dataclass(frozen=True, slots=True)
class ByteBudget:
    """A setting that bounds memory: for all processes together, or for each of them."""

    section: str
    name: str
    most_bytes: int
    per_process: bool

    @property
    def path(self) -> str:
        """The setting's name in full."""
        return f"{self.section}.{self.name}"

    def of(self, section: Section) -> int:
        """What it is in its section; one that is still "auto" is its most."""
        value = getattr(section, self.name)
        return value if isinstance(value, int) else self.most_bytes

    def within(self, config: Config) -> int:
        """What it is in `config`."""
        return self.of(getattr(config, self.section))

    def is_auto(self, config: Config) -> bool:
        """Whether `config` leaves it to the memory limit."""
        return not isinstance(getattr(getattr(config, self.section), self.name), int)


BODIES = ByteBudget("limits", "max_buffered_body_bytes", 1 << 30, per_process=False)
RESPONSES = ByteBudget("limits", "max_buffered_response_bytes", 1 << 28, per_process=False)
PROMPTS = ByteBudget("residency", "memo_bytes", 1 << 27, per_process=True)
VIEWS = ByteBudget("residency", "approximate_bytes", 1 << 27, per_process=True)
BYTE_BUDGETS = (BODIES, RESPONSES, PROMPTS, VIEWS)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """`config` with every budget as a number, where these numbers come from, and what is doubtful about them."""

    config: Config
    limit: MemoryLimit | None
    processes: int
    warnings: tuple[str, ...]

    @property
    def budgets(self) -> dict[str, int]:
        """Bytes by setting."""
        return {budget.path: budget.within(self.config) for budget in BYTE_BUDGETS}

    def to_builtins(self) -> dict[str, Any]:
        """For a log line or JSON."""
        return {
            "limit_bytes": self.limit.size_bytes if self.limit is not None else None,
            "source": self.limit.source if self.limit is not None else "unknown",
            "processes": self.processes,
            **{path.rpartition(".")[2]: size_bytes for path, size_bytes in self.budgets.items()},
            "max_body_bytes": self.config.limits.max_body_bytes,
        }

    def lines(self) -> Iterator[str]:
        """For people."""
        limit = self.limit
        yield "memory limit " + (f"{_mebibytes(limit.size_bytes)} ({limit.source})" if limit else "unknown")
        for budget in BYTE_BUDGETS:
            each = f" for each of {self.processes} processes" if budget.per_process and self.processes > 1 else ""
            yield f"  {budget.path}: {_mebibytes(budget.within(self.config))}{each}"
        yield f"  limits.max_body_bytes: {_mebibytes(self.config.limits.max_body_bytes)}"


def plan_memory(config: Config, processes: int, limit: MemoryLimit | None) -> MemoryPlan:
    """Give each budget that is "auto" its part of `limit`, and bound a single body by the budget for bodies."""
    part = _part(limit, processes)
    resolved = config
    for budget in BYTE_BUDGETS:
        if budget.is_auto(config):
            resolved = _with(resolved, budget.section, budget.name, max(LEAST_BYTES, int(budget.most_bytes * part)))
    body_bytes = BODIES.within(resolved)
    if BODIES.is_auto(config):
        body_bytes //= processes  # each has its share, and no more than all of that for one body
    largest_bytes = min(config.limits.max_body_bytes, body_bytes)
    resolved = _with(resolved, "limits", "max_body_bytes", largest_bytes)
    return MemoryPlan(resolved, limit, processes, tuple(_warnings(config, resolved, limit, processes)))


def _mebibytes(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):,.1f} MiB"


def _part(limit: MemoryLimit | None, processes: int) -> float:
    """What part of its most each budget may have."""
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
    # every process takes a whole body, even where its share of the budget is smaller (`child_config`)
    whole_bytes = processes * config.limits.max_body_bytes if processes > 1 else 0
    return together_bytes + max(0, whole_bytes - BODIES.within(config))
