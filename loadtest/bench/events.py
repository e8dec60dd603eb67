"""``python -m loadtest events-bench``: does ingesting KV events disturb the requests beside it?

One gateway in front of the stand-in worker, the same closed-loop load in interleaved rounds: with a publisher at
`--blocks-per-s` subscribed, and without. Prints the time to the first body byte and the event loop's lag.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import statistics
import sys
from contextlib import ExitStack
from pathlib import Path

import httpx
import uvloop
from rich.console import Console
from rich.table import Table

from loadtest.bench import measure, proxies

BUCKET = re.compile(r'warmroute_loop_lag_seconds_bucket\{le="([^"]+)"\} (\S+)')


def register(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument("--rounds", type=int, default=3, help="rounds with and without events (default 3)")
    parser.add_argument("--requests", type=int, default=2000, help="requests per round (default 2000)")
    parser.add_argument("--connections", type=int, default=4, help="clients (default 4)")
    parser.add_argument(
        "--blocks-per-s", type=float, default=50_000, help="stored and removed together (default 50000)"
    )


def run(args: argparse.Namespace) -> int:
    """Measure and print; 1 if any request failed."""
    rows: dict[bool, list[tuple[measure.Cost, float]]] = {False: [], True: []}
    for number in range(args.rounds):
        for events in (False, True):
            Console().print(f"round {number + 1}/{args.rounds}: {'with' if events else 'without'} events")
            rows[events].append(_round(args, events))
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


def _round(args: argparse.Namespace, events: bool) -> tuple[measure.Cost, float]:
    with proxies.workplace() as (folder, stack):
        worker = stack.enter_context(proxies.standin(folder))
        flags = _publisher(stack, folder, worker, args.blocks_per_s) if events else []
        admin = proxies.free_port()
        flags += ["--admin-port", str(admin)]
        proxy = stack.enter_context(proxies.warmroute("gateway", flags)(worker, folder))
        warm = (args.requests // 4, args.connections, 2000)
        uvloop.run(measure.requests(proxy.url, proxy.pid, *warm))
        before = _lag_buckets(admin)
        cost = uvloop.run(measure.requests(proxy.url, proxy.pid, args.requests, args.connections, 2000))
        uvloop.run(asyncio.sleep(1.0))
        if events and not _indexed(admin):
            raise RuntimeError("no KV event reached the gateway: the round shows nothing")
        return cost, _p99(before, _lag_buckets(admin))


def _publisher(stack: ExitStack, folder: Path, worker: int, blocks_per_s: float) -> list[str]:
    port = proxies.free_port()
    command = [sys.executable, "-m", "loadtest.bench.publisher", "--port", str(port)]
    stack.enter_context(proxies.process([*command, "--blocks-per-s", str(blocks_per_s)], folder / "publisher.log"))
    config = folder / "events.yaml"
    config.write_text(
        f"workers:\n- url: http://127.0.0.1:{worker}\n  kv_events:\n    endpoint: tcp://127.0.0.1:{port}\n"
        "residency:\n  self_test: false\n"
    )
    return ["--config", str(config)]


def _indexed(admin: int) -> float:
    """Blocks in the gateway's index."""
    page = httpx.get(f"http://127.0.0.1:{admin}/metrics").text
    found = re.search(r"^warmroute_index_hashes (\S+)", page, re.MULTILINE)
    return float(found[1]) if found else 0.0


def _lag_buckets(admin: int) -> dict[float, float]:
    page = httpx.get(f"http://127.0.0.1:{admin}/metrics").text
    return {float(bound): float(count) for bound, count in BUCKET.findall(page)}


def _p99(before: dict[float, float], after: dict[float, float]) -> float:
    """Upper bound of the bucket that holds the 99th percentile of what came between two readings."""
    counts = {bound: after[bound] - before.get(bound, 0.0) for bound in after}
    total = counts[float("inf")]
    return min(bound for bound, count in counts.items() if count >= 0.99 * total)
