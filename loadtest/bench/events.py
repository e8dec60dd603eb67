"""``python -m loadtest events-bench``: measure how KV events disturb the requests beside them.

One gateway runs in front of the stand-in worker. Rounds of the same closed-loop load alternate: with a publisher of
`--blocks-per-s`, and without. The command prints the time to the first body byte and the event loop's lag.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import re
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import uvloop
from rich.console import Console
from rich.table import Table

from loadtest.bench.bodies import plain_requests
from loadtest.bench.loops import ClosedLoop
from loadtest.bench.proxies.entrant import Place, Proxy, running, standin
from loadtest.bench.proxies.warmroute import starter
from loadtest.fleet.cpu import tree_cpu_s
from loadtest.fleet.ports import free_ports
from loadtest.report.summary import percentile

BODY_CHARS = 2000
BUCKET = re.compile(r'warmroute_loop_lag_seconds_bucket\{le="([^"]+)"\} (\S+)')


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU microseconds of the gateway per request, and p50 and p99 of the time to the first body byte."""

    cpu_us: float
    errors: int
    first_byte_ms: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Load:
    """The requests of a round, and the gateway: its processes, and its program (default: this tree's)."""

    requests: int
    connections: int
    processes: int = 1
    program: Sequence[str] | None = None


def register(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument("--rounds", type=int, default=3, help="rounds with and without events (default 3)")
    parser.add_argument("--requests", type=int, default=2000, help="requests per round (default 2000)")
    parser.add_argument("--connections", type=int, default=4, help="clients (default 4)")
    parser.add_argument(
        "--blocks-per-s", type=float, default=50_000, help="blocks stored and removed per second (default 50000)"
    )
    parser.add_argument("--processes", type=int, default=1, help="processes of the gateway (default 1)")


def run(args: argparse.Namespace) -> int:
    """Measure and print; return 1 if any request failed."""
    load = Load(args.requests, args.connections, args.processes)
    rows: dict[bool, list[tuple[Cost, float]]] = {False: [], True: []}
    for number in range(args.rounds):
        for events in (False, True):
            Console().print(f"round {number + 1}/{args.rounds}: {'with' if events else 'without'} events")
            rows[events].append(beside(load, args.blocks_per_s if events else 0.0))
    table = Table(title=f"{args.connections} clients, medians of {args.rounds} rounds", title_justify="left")
    for heading in ("KV events", "first byte p50, ms", "p99, ms", "loop lag p99 below, ms", "CPU us per request"):
        table.add_column(heading, justify="right")
    for events, results in rows.items():
        costs = [cost for cost, _ in results]
        table.add_row(
            f"{args.blocks_per_s:,.0f} blocks/s" if events else "none",
            f"{statistics.median(cost.first_byte_ms[0] for cost in costs):.2f}",
            f"{statistics.median(cost.first_byte_ms[1] for cost in costs):.2f}",
            f"{statistics.median(lag for _, lag in results) * 1e3:.1f}",
            f"{statistics.median(cost.cpu_us for cost in costs):.0f}",
        )
    Console().print(table)
    return 1 if any(cost.errors for results in rows.values() for cost, _ in results) else 0


def beside(load: Load, blocks_per_s: float) -> tuple[Cost, float]:
    """Start a gateway beside KV events at this rate (0: none); return its cost, and its loop's lag (p99, seconds).

    Raises:
        RuntimeError: no KV event reached the gateway.
        StartError: a process did not start.
    """
    with tempfile.TemporaryDirectory(prefix="warmroute-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        place = Place(stack.enter_context(standin(folder)), folder)
        flags = _publisher(stack, place, blocks_per_s) if blocks_per_s else []
        admin = free_ports(1)
        flags += ["--admin-port", str(admin), "--processes", str(load.processes)]
        proxy = stack.enter_context(starter("gateway", flags, load.program)(place))
        uvloop.run(_cost(proxy, load.requests // 4, load.connections))
        before = _lag_buckets(admin)
        cost = uvloop.run(_cost(proxy, load.requests, load.connections))
        uvloop.run(asyncio.sleep(1.0))
        if blocks_per_s and not _indexed(admin):
            raise RuntimeError("no KV event reached the gateway: the round shows nothing")
        return cost, _p99(before, _lag_buckets(admin))


async def _cost(proxy: Proxy, count: int, connections: int) -> Cost:
    requests = itertools.islice(itertools.cycle(plain_requests(proxy.url, BODY_CHARS)), count)
    loop = ClosedLoop(proxy.url, requests)
    before_s = tree_cpu_s(proxy.pid)
    await loop.start(connections)
    await loop.drain()
    spent_s = tree_cpu_s(proxy.pid) - before_s
    first = (percentile(loop.tally.first_byte_s, 0.5) * 1e3, percentile(loop.tally.first_byte_s, 0.99) * 1e3)
    return Cost(spent_s / count * 1e6, loop.tally.errors, first)


def _publisher(stack: ExitStack, place: Place, blocks_per_s: float) -> list[str]:
    port = free_ports(1)
    command = [sys.executable, "-m", "loadtest.bench.publisher", "--port", str(port)]
    stack.enter_context(running("publisher", [*command, "--blocks-per-s", str(blocks_per_s)], port, place.folder))
    config = place.folder / "events.yaml"
    config.write_text(
        f"workers:\n- url: {place.worker_url}\n  kv_events:\n    endpoint: tcp://127.0.0.1:{port}\n"
        "residency:\n  self_test: false\n"
    )
    return ["--config", str(config)]


def _indexed(admin: int) -> float:
    """Return the number of blocks in the gateway's index."""
    page = httpx.get(f"http://127.0.0.1:{admin}/metrics").text
    found = re.search(r"^warmroute_index_hashes (\S+)", page, re.MULTILINE)
    return float(found[1]) if found else 0.0


def _lag_buckets(admin: int) -> dict[float, float]:
    page = httpx.get(f"http://127.0.0.1:{admin}/metrics").text
    return {float(bound): float(count) for bound, count in BUCKET.findall(page)}


def _p99(before: dict[float, float], after: dict[float, float]) -> float:
    """Return the upper bound of the bucket that holds the 99th percentile of the samples between two readings."""
    counts = {bound: after[bound] - before.get(bound, 0.0) for bound in after}
    total = counts[float("inf")]
    return min(bound for bound, count in counts.items() if count >= 0.99 * total)
