"""``warmroute demo --handover``: uploads beside chats, once with each request on one worker, and once with prefill and
decode workers, which the gateway uses where that costs less."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
import msgspec
import uvloop
from rich.console import Console
from rich.table import Table

from backends.simulated.settings import WorkerSettings
from loadtest.demo import fleet
from loadtest.demo.compare import wrappers
from loadtest.demo.run import Setting, bar, failures, wait_until_ready
from loadtest.drive.conversations import play
from loadtest.drive.seen import Seen
from loadtest.report.summary import Row, percentile, summarise
from loadtest.workload.conversations import Conversation, Shape, generate

TOGETHER, BY_COST = "no roles", "with roles"
POLICY = "marginal_cost"
_CHATS_PER_UPLOAD = 4
_WORKERS_PER_PREFILL_WORKER = 4
_ALIKE = 0.05
"""Smaller differences of one run each say nothing."""
_SHOWN = (
    ("chats: TTFT mean, ms", "chats", "ttft_mean_ms"),
    ("chats: TTFT p99, ms", "chats", "ttft_p99_ms"),
    ("chats: TPOT p50, ms", "chats", "tpot_p50_ms"),
    ("chats: TPOT p99, ms", "chats", "tpot_p99_ms"),
    ("uploads: TTFT mean, ms", "uploads", "ttft_mean_ms"),
    ("uploads: TTFT p99, ms", "uploads", "ttft_p99_ms"),
    ("uploads: TPOT p50, ms", "uploads", "tpot_p50_ms"),
)


@dataclass(frozen=True, slots=True)
class Side:
    """One run: what the clients of chats and uploads saw. `gap_p99_ms` is between two tokens of a chat."""

    placement: str
    chats: Row
    uploads: Row
    gap_p99_ms: float
    handed_over: int

    def measures(self) -> Iterator[tuple[str, float]]:
        """Yield what is compared, by name. Less is better."""
        for name, row, field in _SHOWN:
            yield name, getattr(getattr(self, row), field)
        yield "chats: gap between tokens p99, ms", self.gap_p99_ms


def run(args: argparse.Namespace) -> int:
    """Run both sides and print the table; return 0 if no request failed."""
    console = Console()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    setting = Setting(args.workers, args.profile, args.time_scale, args.seed, _chats(args.conversations))
    console.print(f"{setting.title()}, and {_uploads(args.conversations).conversations} uploads of long files")
    roles = _roles(args.workers)
    console.print(f"{TOGETHER}: every worker computes whole requests", highlight=False)
    console.print(
        f"{BY_COST}: {roles.count('prefill')} prefill and {roles.count('decode')} decode workers; two share a request "
        "where that costs less time than one decode worker alone",
        highlight=False,
    )
    try:
        return _compare(console, setting, args)
    except fleet.StartError as error:
        sys.stderr.write(f"warmroute demo: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130


def _chats(conversations: int) -> Shape:
    return Shape(conversations, turns=3, pause_s=1.0, answer_tokens=64, document_chars=(2_000, 6_000))


def _uploads(conversations: int) -> Shape:
    uploads = max(1, conversations // _CHATS_PER_UPLOAD)
    rate_per_s = Shape().starts_per_s / _CHATS_PER_UPLOAD
    return Shape(uploads, turns=1, starts_per_s=rate_per_s, document_chars=(40_000, 90_000), shared_documents=0.0)


def _compare(console: Console, setting: Setting, args: argparse.Namespace) -> int:
    sides, errors = [], []
    for placement in (TOGETHER, BY_COST):
        side, failed = _run(console, setting, placement, wrappers(args))
        sides.append(side)
        errors += failed
    _show(console, sides)
    if args.json:
        _write(args.json, sides)
    for error in errors[:5]:
        console.print(f"[red]failed:[/red] {error}")
    return 1 if errors else 0


def _run(console: Console, setting: Setting, placement: str, flags: Sequence[str]) -> tuple[Side, list[str]]:
    """Start a fleet, play chats and uploads at once, stop the fleet."""
    chats = generate(setting.shape, setting.seed)
    uploads = generate(_uploads(setting.shape.conversations), setting.seed)
    roles = _roles(setting.workers) if placement == BY_COST else ()
    worker_flags, serve_flags = setting.worker_flags(), list(flags)
    if roles:
        worker_flags += ["--kv-connector", "nixl_pull"]
        tokens_per_s = WorkerSettings().kv_transfer_tokens_per_s / setting.time_scale
        serve_flags += ["--set", "handover.connector=nixl_pull"]
        serve_flags += ["--set", f"handover.transfer_tokens_per_s={tokens_per_s:.0f}"]
    with fleet.running(setting.workers, POLICY, worker_flags, serve_flags, roles) as running, bar(console) as progress:
        model = wait_until_ready(running.admin_url, setting.workers)
        task = progress.add_task(placement, total=sum(len(one.turns) for one in (*chats, *uploads)))

        played = _play(running.public_url, model, (chats, uploads), lambda timing: progress.advance(task))
        chatted, uploaded = uvloop.run(played)
        handed_over = _handed_over(running.admin_url) if roles else 0
    gaps_ms = [gap_s * 1e3 for timing in chatted for gap_s in timing.gaps_s]
    rows = summarise("chats", chatted), summarise("uploads", uploaded)
    return Side(placement, *rows, percentile(gaps_ms, 0.99), handed_over), failures([*chatted, *uploaded])


async def _play(
    url: str, model: str, parts: Sequence[Sequence[Conversation]], seen: Callable[[Seen], None]
) -> list[list[Seen]]:
    return await asyncio.gather(*[play(url, model, part, seen) for part in parts])


def _roles(workers: int) -> list[str]:
    prefill = max(1, workers // _WORKERS_PER_PREFILL_WORKER)
    return ["prefill"] * prefill + ["decode"] * (workers - prefill)


def _handed_over(admin_url: str) -> int:
    lines = httpx.get(f"{admin_url}/metrics").text.splitlines()
    counted = [line for line in lines if line.startswith('warmroute_handovers_total{outcome="handed_over"}')]
    return sum(int(float(line.rsplit(" ", 1)[1])) for line in counted)


def _show(console: Console, sides: Sequence[Side]) -> None:
    table = Table(title="uploads beside chats, as the clients saw them", title_justify="left")
    table.add_column("")
    for side in sides:
        table.add_column(side.placement, justify="right")
    table.add_column("ratio", justify="right")
    for name in ("requests", "errors"):
        table.add_row(name, *[f"{getattr(side.chats, name) + getattr(side.uploads, name):,}" for side in sides], "")
    table.add_row("KV handovers", *[f"{side.handed_over:,}" for side in sides], "")
    ratios = {}
    for (name, before), (_, after) in zip(*[side.measures() for side in sides], strict=True):
        ratios[name] = after / before if before else 1.0
        table.add_row(name, f"{before:,.1f}", f"{after:,.1f}", f"{ratios[name]:.2f} x")
    console.print(table)
    for line in verdict(ratios):
        console.print(line, highlight=False)
    console.print("TTFT: time to the first token. TPOT: time for each further token of an answer.", highlight=False)


def verdict(ratios: Mapping[str, float]) -> list[str]:
    """Say in a line each what prefill and decode workers improved, what they made worse, and what stayed alike."""
    better = {name: ratio for name, ratio in ratios.items() if ratio <= 1.0 - _ALIKE}
    worse = {name: ratio for name, ratio in ratios.items() if ratio >= 1.0 + _ALIKE}
    alike = {name: ratio for name, ratio in ratios.items() if name not in better and name not in worse}
    return [
        f"Shorter with prefill and decode workers: {_listed(better)}.",
        f"Longer with them: {_listed(worse)}.",
        f"Alike, within {_ALIKE:.0%}, which one run cannot tell apart: {_listed(alike)}.",
    ]


def _listed(ratios: Mapping[str, float]) -> str:
    return ", ".join(f"{name.removesuffix(', ms')} ({ratio:.2f} x)" for name, ratio in ratios.items()) or "nothing"


def _write(path: Path, sides: Sequence[Side]) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode({"sides": [asdict(side) for side in sides]}), indent=2))
