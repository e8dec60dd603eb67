"""``warmroute demo --handover``: uploads beside chats, once with each request on one worker, and once with prefill and
decode workers, which the gateway uses where that costs less."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import msgspec
from rich.console import Console
from rich.table import Table

from backends.simulated.settings import WorkerSettings
from loadtest.demo.run import Setting, played, show_errors, wrappers
from loadtest.drive.seen import Seen
from loadtest.report.summary import Row, percentile, summarise
from loadtest.workload.conversations import Shape, generate

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


def compare(args: argparse.Namespace) -> int:
    """Run both sides and print the table; return 0 if no request failed."""
    console = Console()
    setting = Setting.of(args, _chats(args.conversations))
    console.print(f"{setting.title()}, and {_uploads(args.conversations).conversations} uploads of long files")
    roles = _roles(args.workers)
    console.print(f"{TOGETHER}: every worker computes whole requests", highlight=False)
    console.print(
        f"{BY_COST}: {roles.count('prefill')} prefill and {roles.count('decode')} decode workers; two share a request "
        "where that costs less time than one decode worker alone",
        highlight=False,
    )
    sides = []
    everything: list[Seen] = []
    for placement in (TOGETHER, BY_COST):
        side, seen = _side(console, setting, placement, wrappers(args))
        sides.append(side)
        everything += seen
    _show(console, sides)
    if args.json:
        document = msgspec.json.encode({"sides": [asdict(side) for side in sides]})
        args.json.write_bytes(msgspec.json.format(document, indent=2))
    return show_errors(console, everything)


def _chats(conversations: int) -> Shape:
    return Shape(conversations, turns=3, pause_s=1.0, answer_tokens=64, document_chars=(2_000, 6_000))


def _uploads(conversations: int) -> Shape:
    uploads = max(1, conversations // _CHATS_PER_UPLOAD)
    rate_per_s = Shape().starts_per_s / _CHATS_PER_UPLOAD
    return Shape(uploads, turns=1, starts_per_s=rate_per_s, document_chars=(40_000, 90_000), shared_documents=0.0)


def _side(console: Console, setting: Setting, placement: str, flags: list[str]) -> tuple[Side, list[Seen]]:
    parts = [generate(shape, setting.seed) for shape in (setting.shape, _uploads(setting.shape.conversations))]
    roles, worker_flags = [], []
    if placement == BY_COST:
        roles, worker_flags = _roles(setting.workers), ["--kv-connector", "nixl_pull"]
        tokens_per_s = WorkerSettings().kv_transfer_tokens_per_s / setting.time_scale
        flags = [*flags, "--set", "handover.connector=nixl_pull"]
        flags += ["--set", f"handover.transfer_tokens_per_s={tokens_per_s:.0f}"]
    found, handed_over = played(console, setting, placement, POLICY, parts, worker_flags, flags, roles)
    chats, uploads = found
    gaps_ms = [gap_s * 1e3 for seen in chats for gap_s in seen.gaps_s]
    rows = summarise("chats", chats), summarise("uploads", uploads)
    return Side(placement, *rows, percentile(gaps_ms, 0.99), handed_over), [*chats, *uploads]


def _roles(workers: int) -> list[str]:
    prefill = max(1, workers // _WORKERS_PER_PREFILL_WORKER)
    return ["prefill"] * prefill + ["decode"] * (workers - prefill)


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
