"""The exchange alone: processes that publish and apply decisions, without HTTP, and the CPU time that it takes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import msgspec

from loadtest.fleet.process import Process, StartError, uninterrupted
from loadtest.fleet.redis import redis_server
from loadtest.peers.cpu import machine_cpu_s, tree_cpu_s
from loadtest.replicas.exchanger import Report

WORKERS = 16
_END_LIMIT_S = 30.0


@dataclass(frozen=True, slots=True)
class Plan:
    """`replicas` processes make `decisions_per_s` together, for `seconds` in each of `rounds`.

    Each round is played once for each of `new_blocks`, the blocks that each decision places on the model of a cache.
    """

    replicas: int = 8
    decisions_per_s: float = 2_000.0
    new_blocks: tuple[int, ...] = (0, 16)
    seconds: float = 5.0
    rounds: int = 3

    @property
    def steps(self) -> int:
        """The number of measurements."""
        return self.rounds * len(self.new_blocks)


@dataclass(frozen=True, slots=True)
class Cost:
    """One measurement. CPU is in shares of one core; `alone` is that of the same processes without Redis.

    `busy` is the share of the machine's CPU time that any program used. `missed` counts messages and placements that
    were lost or not taken in. `wrong` counts the workers on which a replica's sum of the others' load was not theirs,
    at the end.
    """

    new_blocks: int
    redis: float
    replicas: tuple[float, ...]
    alone: tuple[float, ...]
    busy: float
    decisions_per_s: float
    messages_per_s: float
    missed: int
    wrong: int
    lag_ms: float

    @property
    def replica(self) -> float:
        """The mean over the replicas."""
        return sum(self.replicas) / len(self.replicas)

    @property
    def added(self) -> float:
        """What the exchange adds to one replica."""
        return self.replica - sum(self.alone) / len(self.alone)


def measure(plan: Plan, progress: Callable[[], None]) -> list[Cost]:
    """Measure all rounds. `progress` is called after each measurement.

    Raises:
        StartError: a process did not start or end as it should.
    """
    costs = []
    for _ in range(plan.rounds):
        for new_blocks in plan.new_blocks:
            costs.append(_once(plan, new_blocks))
            progress()
    return costs


def _once(plan: Plan, new_blocks: int) -> Cost:
    with _replicas(plan, new_blocks, None) as processes:
        alone, _ = _watched(plan, [process.pid for process in processes])
        _reports(processes)
    with redis_server() as redis, _replicas(plan, new_blocks, redis.url) as processes:
        pids = [process.pid for process in processes]
        (server, *replicas), busy = _watched(plan, [redis.process.pid, *pids])
        reports = _reports(processes)
    return Cost(
        new_blocks=new_blocks,
        redis=server,
        replicas=tuple(replicas),
        alone=tuple(alone),
        busy=busy,
        decisions_per_s=sum(report.decisions_per_s for report in reports),
        messages_per_s=sum(report.sent_per_s for report in reports),
        missed=sum(report.missed + report.malformed + report.unplaced for report in reports),
        wrong=wrong_sums(reports),
        lag_ms=max(report.lag_ms for report in reports),
    )


def wrong_sums(reports: Sequence[Report]) -> int:
    """Count the workers of all replicas on which the others' load is not what the others report."""
    total = [sum(column) for column in zip(*(report.own for report in reports), strict=True)]
    return sum(
        seen != all_ - own
        for report in reports
        for seen, all_, own in zip(report.others, total, report.own, strict=True)
    )


@contextmanager
def _replicas(plan: Plan, new_blocks: int, url: str | None) -> Iterator[list[Process]]:
    """Run the processes, and yield them once each hears all others."""
    flags = ["--replicas", str(plan.replicas), "--workers", str(WORKERS)]
    flags += ["--rate-per-s", str(plan.decisions_per_s / plan.replicas), "--new-blocks", str(new_blocks)]
    flags += ["--url", url] if url is not None else []
    with ExitStack() as stack:
        processes = []
        for number in range(plan.replicas):
            command = [sys.executable, "-P", "-m", "loadtest.replicas.exchanger", *flags, "--seed", str(number)]
            with uninterrupted():
                processes.append(Process(command, f"replica {number}"))
                stack.callback(processes[-1].stop)
        for process in processes:
            process.wait_for("^ready$")
        yield processes


def _watched(plan: Plan, pids: Sequence[int]) -> tuple[list[float], float]:
    """Return the shares of a core that the processes used, and the share of the machine that all programs used."""
    before, (busy_s, all_s), began_s = [tree_cpu_s(pid) for pid in pids], machine_cpu_s(), time.monotonic()
    time.sleep(plan.seconds)
    after, (busy_after_s, all_after_s) = [tree_cpu_s(pid) for pid in pids], machine_cpu_s()
    took_s = time.monotonic() - began_s
    shares = [(now - then) / took_s for now, then in zip(after, before, strict=True)]
    return shares, (busy_after_s - busy_s) / max(1e-9, all_after_s - all_s)


def _reports(processes: Sequence[Process]) -> list[Report]:
    """End the processes and return what they report."""
    for process in processes:
        process.terminate()
    reports = [
        msgspec.json.decode(process.wait_for(r"^\{.*\}$", _END_LIMIT_S).group(0), type=Report) for process in processes
    ]
    for process in processes:
        if code := process.wait(_END_LIMIT_S):
            raise StartError(f"{process.name} ended with code {code}:\n{process.tail()}")
    return reports
