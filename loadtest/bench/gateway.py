"""``python -m loadtest gateway-bench``: the gateway's CPU cost beside nginx, in one run.

Every figure is CPU time of the proxy's process tree. Rounds are interleaved (each proxy once per round) and the
ratio to nginx is taken within a round, so a machine that slows down slows both sides. A run with a failed request
does not count and says so.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec
import uvloop
from rich.console import Console
from rich.table import Table

from loadtest.bench import measure, proxies
from loadtest.bench.measure import Cost


@dataclass(slots=True)
class Results:
    """All rounds' costs, by measure and proxy."""

    costs: dict[str, dict[str, list[Cost]]] = field(default_factory=dict)

    def add(self, what: str, proxy: str, cost: Cost) -> None:
        self.costs.setdefault(what, {}).setdefault(proxy, []).append(cost)


def register(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default 5)")
    parser.add_argument("--requests", type=int, default=3000, help="requests per round and proxy (default 3000)")
    parser.add_argument("--connections", type=int, default=32, help="clients in the request measure (default 32)")
    parser.add_argument("--streams", type=int, default=200, help="concurrent streams at 50 tokens/s (default 200)")
    parser.add_argument("--tokens", type=int, default=250, help="tokens per stream (default 250)")
    parser.add_argument(
        "--body-chars", type=int, default=2000, help="characters of shared system prompt (default 2000)"
    )
    parser.add_argument("--json", type=Path, help="write every round's figures here")


def run(args: argparse.Namespace) -> int:
    """Measure, print the table, return the exit code (1 if any request failed)."""
    console = Console()
    results = Results()
    with proxies.workplace() as (folder, stack):
        worker = stack.enter_context(proxies.standin(folder))
        starts = proxies.available()
        running = [stack.enter_context(start(worker, folder)) for start in starts.values()]
        if "nginx" not in starts:
            console.print("nginx is not installed: no ratios")
        for number in range(args.rounds):
            for proxy in running:
                console.print(f"round {number + 1}/{args.rounds}: {proxy.name}")
                uvloop.run(_round(args, proxy, results))
    _print(console, results)
    if args.json:
        plain = {
            what: {name: [asdict(c) for c in costs] for name, costs in rows.items()}
            for what, rows in results.costs.items()
        }
        args.json.write_bytes(msgspec.json.format(msgspec.json.encode(plain), indent=2))
    failed = sum(cost.errors for rows in results.costs.values() for costs in rows.values() for cost in costs)
    if failed:
        console.print(f"[red]{failed} requests failed: these figures do not count")
    return 1 if failed else 0


async def _round(args: argparse.Namespace, proxy: proxies.Proxy, results: Results) -> None:
    await measure.requests(proxy.url, proxy.pid, args.connections * 4, args.connections, args.body_chars)
    cost = await measure.requests(proxy.url, proxy.pid, args.requests, args.connections, args.body_chars)
    results.add("CPU us per request", proxy.name, cost)
    cost = await measure.streams(proxy.url, proxy.pid, args.streams, args.tokens, args.body_chars)
    results.add("CPU us per streamed token", proxy.name, cost)
    await asyncio.sleep(0.2)


def _print(console: Console, results: Results) -> None:
    for what, rows in results.costs.items():
        table = Table(title=what, title_justify="left")
        for heading in ("proxy", "median", "min - max", "x nginx", "min - max", "first byte p50 / p99 ms"):
            table.add_column(heading, justify="left" if heading == "proxy" else "right")
        for name, costs in rows.items():
            table.add_row(name, *_cells(costs, rows.get("nginx")))
        console.print(table)


def _cells(costs: list[Cost], base: list[Cost] | None) -> list[str]:
    values = [cost.cpu_us for cost in costs]
    cells = [f"{statistics.median(values):.1f}", f"{min(values):.1f} - {max(values):.1f}"]
    if base and all(cost.cpu_us for cost in base):
        ratios = [cost.cpu_us / other.cpu_us for cost, other in zip(costs, base, strict=True)]
        cells += [f"{statistics.median(ratios):.2f}", f"{min(ratios):.2f} - {max(ratios):.2f}"]
    else:
        cells += ["-", "-"]
    p50, p99 = (statistics.median(cost.first_byte_ms[place] for cost in costs) for place in (0, 1))
    return [*cells, f"{p50:.1f} / {p99:.1f}"]
