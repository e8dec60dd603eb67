"""Measurements of the gateway from outside: memory, descriptors, tasks, and the ledger at rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import linear_regression
from typing import Any

import psutil

AT_REST = (
    "warmroute_active_requests",
    "warmroute_queued_requests",
    "warmroute_held_requests",
    "warmroute_class_waiting_requests",
    "warmroute_buffered_bytes",
    "warmroute_client_connections",
)
"""Metrics that are 0 without clients."""
RESERVED = ("queued_requests", "queued_tokens", "running_requests", "kv_tokens")


@dataclass(frozen=True, slots=True)
class Rest:
    descriptors: int
    tasks: int


@dataclass(frozen=True, slots=True)
class Sample:
    at_s: float
    rss_bytes: int


class Gauges:
    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self.samples: list[Sample] = []

    def sample(self, now_s: float) -> None:
        self.samples.append(Sample(now_s, self.rss_bytes))

    @property
    def rss_bytes(self) -> int:
        return int(self._process.memory_info().rss)

    @property
    def descriptors(self) -> int:
        return self._process.num_fds()

    @property
    def peak_rss_bytes(self) -> int:
        status = Path("/proc", str(self._process.pid), "status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1_024


def growth_bytes(samples: Sequence[Sample]) -> float:
    """Return the growth of memory over the second half of the samples, by least squares; 0 for fewer than two."""
    half = samples[len(samples) // 2 :]
    if len(half) < 2:
        return 0.0
    slope, _ = linear_regression([each.at_s for each in half], [each.rss_bytes for each in half])
    return slope * (half[-1].at_s - half[0].at_s)


def left_over(workers: Sequence[Mapping[str, Any]], metrics: Mapping[str, float]) -> list[str]:
    """Return reservations and connections that remain, in words; empty at rest."""
    found = [f"{name} is {metrics.get(name, 0):.0f}" for name in AT_REST if metrics.get(name, 0)]
    for worker in workers:
        for candidate in worker["candidates"]:
            load = candidate["load"]
            found += [f"{candidate['id']} has {field} {load[field]}" for field in RESERVED if load[field]]
    return found
