"""Measure how fast a large fleet is discovered: ``python -m loadtest.bench.parts.discovery [--workers N]``.

A gateway, with one process and with two, reads its workers from a file. One stand-in worker that listens on every
loopback address is the whole fleet. The command prints the median and the range of the rounds:

  listed_s      from the file's change until GET /admin/v1/workers lists all workers
  reply_s       one such GET with all workers
  gone_s        until a worker that the file no longer names is leaving
  back_s        until it is in the fleet again
  half_ready_s  until half of the workers have had their first probe and are ready
  all_ready_s   until all are
  most_per_s    most workers that became ready within one second; spread evenly over 30 s they would be N / 30

Probes and reads of the load come every 20 s, as the how-to advises for a fleet of this size.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from loadtest.demo.fleet import URL
from loadtest.fleet.process import Process, warmroute

LIMIT_S = 120.0
LOOK_S = 0.02
_PER_BYTE = 250
"""Loopback addresses of one 127.1.N."""


@dataclass(frozen=True, slots=True)
class Discovered:
    """Figures of one gateway: seconds, and workers per second."""

    listed_s: float
    reply_s: float
    gone_s: float
    back_s: float
    half_ready_s: float
    all_ready_s: float
    most_per_s: float


class Fleet:
    """A gateway whose workers are the URLs in a file."""

    def __init__(self, gateway: Process, file: Path) -> None:
        self.pid = gateway.pid
        self.public_url = gateway.wait_for(rf"public port.*{URL}").group(1)
        self.admin_url = gateway.wait_for(rf"admin port.*{URL}").group(1)
        self._admin = httpx.Client(base_url=self.admin_url, timeout=30)
        self._file = file

    def name(self, urls: Sequence[str]) -> float:
        """Write the file, as a whole; return the time."""
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps(urls))
        began_s = time.monotonic()
        new.replace(self._file)
        return began_s

    def listed(self) -> int:
        """Return how many workers the gateway lists."""
        return len(self._admin.get("/admin/v1/workers").raise_for_status().json()["workers"])

    def serves(self, worker: str) -> bool:
        """Whether the gateway has a worker that is not leaving."""
        answer = self._admin.get(f"/admin/v1/workers/{worker}")
        return answer.status_code == 200 and not answer.json()["leaving"]

    def ready(self) -> int:
        """Return how many workers are ready."""
        answer = self._admin.get("/readyz")
        return int(answer.json()["workers_ready"]) if answer.status_code == 200 else 0

    def close(self) -> None:
        """Close the connection."""
        self._admin.close()


@contextmanager
def fleet(processes: int, folder: Path) -> Iterator[Fleet]:
    """Run a gateway that has no workers yet."""
    file = folder / "workers.json"
    file.write_text("[]")
    places = ["--host=127.0.0.1", "--port=0", "--admin-port=0", f"--processes={processes}"]
    often = ["health.probe_interval_s=20", "health.load_interval_s=20"]
    settings = [
        f"discovery.sources.lab.file.path={file}",
        *often,
        "residency.kv_events=false",
        "residency.self_test=false",
    ]
    gateway = Process(warmroute("serve", *places, *(f"--set={each}" for each in settings)), "gateway")
    try:
        one = Fleet(gateway, file)
        until(lambda: one.listed() == 0)
        yield one
        one.close()
    finally:
        gateway.stop()


@contextmanager
def workers(count: int) -> Iterator[list[str]]:
    """Run a stand-in worker, and yield `count` of its URLs."""
    worker = Process([sys.executable, "-P", "-m", "loadtest.bench.standin", "--host=0.0.0.0"], "stand-in")
    try:
        port = worker.wait_for(r"listening on http://[\d.]+:(\d+)")[1]
        yield [f"http://127.1.{number // _PER_BYTE}.{number % _PER_BYTE + 1}:{port}" for number in range(count)]
    finally:
        worker.stop()


def until(condition: Callable[[], bool], since_s: float | None = None) -> float:
    """Return the seconds from `since_s`, or from now, until the condition holds."""
    began_s = time.monotonic() if since_s is None else since_s
    while not condition():
        if time.monotonic() - began_s > LIMIT_S:
            raise TimeoutError(f"not within {LIMIT_S:.0f} s")
        time.sleep(LOOK_S)
    return time.monotonic() - began_s


def measure(processes: int, urls: Sequence[str]) -> Discovered:
    """Discover these workers with a new gateway."""
    with TemporaryDirectory() as folder, fleet(processes, Path(folder)) as one:
        began_s = one.name(urls)
        listed_s = until(lambda: one.listed() == len(urls), began_s)
        curve = ready_over_time(one, len(urls), began_s)
        reply_s = until(lambda: one.listed() == len(urls))
        worker = urls[0].removeprefix("http://")
        gone_s = until(lambda: not one.serves(worker), one.name(urls[1:]))
        back_s = until(lambda: one.serves(worker), one.name(urls))
    half_s = next(at_s for at_s, ready in curve if ready >= len(urls) / 2)
    return Discovered(listed_s, reply_s, gone_s, back_s, half_s, curve[-1][0], most_per_s(curve))


def ready_over_time(one: Fleet, workers: int, began_s: float) -> list[tuple[float, int]]:
    """Return seconds and ready workers, four times a second until all are ready."""
    curve = [(0.0, 0)]
    while curve[-1][1] < workers:
        if curve[-1][0] > LIMIT_S:
            raise TimeoutError(f"{curve[-1][1]} of {workers} workers are ready after {LIMIT_S:.0f} s")
        time.sleep(0.25)
        curve.append((time.monotonic() - began_s, one.ready()))
    return curve


def most_per_s(curve: Sequence[tuple[float, int]]) -> float:
    """Return the most workers that became ready within a second."""
    most = 0.0
    for end_s, ready in curve:
        start_s, before = next(point for point in curve if end_s - point[0] <= 1.0)
        most = max(most, (ready - before) / max(1.0, end_s - start_s))
    return most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    args = parser.parse_args()
    rows: dict[int, list[Discovered]] = {count: [] for count in args.processes}
    with workers(args.workers) as urls:
        for _ in range(args.rounds):
            for count in args.processes:
                rows[count].append(measure(count, urls))
                print(count, rows[count][-1], flush=True)
    print(f"\n{args.workers:,} workers, {args.rounds} rounds")
    for count, found in rows.items():
        print(f"\n{count} process{'es' if count > 1 else ''}")
        for name in asdict(found[0]):
            values = [getattr(each, name) for each in found]
            print(f"{name:>14} {statistics.median(values):6.2f} ({min(values):.2f} - {max(values):.2f})")


if __name__ == "__main__":
    main()
