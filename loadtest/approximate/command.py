"""``python -m loadtest approximate``: measure how well requests are placed without KV events.

It replays workloads in virtual time through the gateway's dispatcher, over the engine model, once for each view of the
caches. The views are KV events, the gateway's model of each cache, a fixed time to live, an LRU, and no view. The model
plays with and without reports of cached tokens, and the LRU with and without the cache's size. The command prints the
error of the predictions, the TTFT, and the gateway's model compared with the best of each other kind.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import track

from loadtest.approximate import table
from loadtest.approximate.contenders import Contender, contenders
from loadtest.approximate.score import Score, Showing, score
from loadtest.approximate.workloads import NAMES, TRACE_ROWS, Workload, workloads
from loadtest.arguments import positive
from loadtest.lab.flags import policy
from loadtest.lab.policies import parse_policy
from loadtest.sim.run import Setting, simulate
from loadtest.workload.errors import TraceError
from loadtest.workload.schemas.mooncake import read_rows
from policies.registry import policy_names

TRACE = Path("../shared/traces/conversation_trace.jsonl.zst")


def register(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument(
        "--seeds", type=positive, default=8, help="runs per view and workload, seeds 0, 1, ... (default 8)"
    )
    parser.add_argument(
        "--policy",
        type=policy,
        default="marginal_cost",
        metavar="RULE[:key=value...]",
        help=f"policy that decides, of {', '.join(policy_names())} (default marginal_cost)",
    )
    parser.add_argument("--workload", action="append", choices=NAMES, help="play only this workload (repeatable)")
    parser.add_argument("--trace", type=Path, default=TRACE, help=f"a Mooncake trace (default {TRACE}, if it exists)")
    parser.add_argument(
        "--trace-rows", type=positive, default=TRACE_ROWS, help=f"rows of the trace per seed (default {TRACE_ROWS})"
    )
    parser.add_argument("--jobs", type=positive, default=os.cpu_count() or 1, help="processes (default: one per core)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the scores as JSON")


def run(args: argparse.Namespace) -> int:
    """Print a table per workload, and a table that compares the views."""
    console = Console(width=table.WIDTH)
    try:
        chosen = _chosen(args)
    except TraceError as error:
        console.print(f"no trace: {error}; --workload leaves it out", style="red")
        return 2
    if args.workload is None and chosen[-1].name != "trace":
        console.print(f"{TRACE} is not there: the workload made from it is left out")
    showings: dict[str, list[Showing]] = {}
    with ProcessPoolExecutor(args.jobs) as pool:
        for workload in chosen:
            showings[workload.name] = _showings(console, pool, workload, args.policy, range(args.seeds))
            table.print_workload(console, workload, showings[workload.name])
    table.print_comparisons(console, [made for name, shown in showings.items() for made in table.compare(name, shown)])
    if args.json is not None:
        table.write_json(args.json, showings)
    return 0


@dataclass(frozen=True, slots=True)
class Task:
    """One run; must be picklable, because another process runs it."""

    workload: Workload
    contender: Contender
    policy: str
    seed: int

    def run(self) -> Score:
        """Play the workload with the contender's view."""
        contender = self.contender
        setting = Setting(
            self.workload.workers,
            policy=parse_policy(contender.policy or self.policy),
            make_residency=contender.make_residency,
            publishes_events=contender.publishes_events,
            usage_share=contender.usage_share,
            seed=self.seed,
        )
        return score(simulate(setting, self.workload.sessions(self.seed)), self.seed)


def _chosen(args: argparse.Namespace) -> list[Workload]:
    """Return the selected workloads.

    Raises:
        TraceError: the trace was selected and cannot be read.
    """
    wanted: list[str] | None = args.workload
    trace: Path | None = args.trace if args.trace != TRACE or TRACE.exists() or wanted == ["trace"] else None
    listed = workloads(trace, args.trace_rows)
    chosen = [workload for workload in listed if wanted is None or workload.name in wanted]
    for workload in chosen:
        if workload.name == "trace" and trace is not None:
            read_rows(trace)
    return chosen


def _showings(console: Console, pool: Executor, workload: Workload, policy: str, seeds: Sequence[int]) -> list[Showing]:
    listed = contenders(workload.cache_tokens)
    tasks = [Task(workload, contender, policy, seed) for contender in listed for seed in seeds]
    scores = list(track(pool.map(Task.run, tasks), workload.name, len(tasks), console=console, transient=True))
    of = len(seeds)
    return [Showing(one, tuple(scores[at * of : (at + 1) * of])) for at, one in enumerate(listed)]
