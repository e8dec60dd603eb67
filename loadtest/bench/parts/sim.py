"""Measure how much faster than real time the simulator is: ``python -m loadtest.bench.parts.sim TRACE``.

It plays a whole trace at the trace's rate and block size through the gateway's core and eight modelled workers, on one
core. KV events, load reads and decisions are part of it. The figure is CPU time. A fixed loop of plain Python runs
between the parts of each run. Its time shows how fast the core was, so that runs can be compared.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import random
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import loadtest
from backends.engine import engine
from backends.engine.profile import load_profile
from loadtest.sim.clients import Clients
from loadtest.sim.gateway import Delays, SimulatedGateway
from loadtest.sim.sessions import sessions_of
from loadtest.sim.virtual_time import VirtualTime
from loadtest.sim.worker import EngineWorker, WorkerSpec
from loadtest.workload.plan import Plan
from loadtest.workload.source import Trace
from policies.registry import build_policy
from policies.spec import PolicySpec
from router.residency.residency_map import ResidencyMap

ROOT = Path(loadtest.__file__).parents[1]
PARTS = 40
CASES = (
    ("llama-3.1-70b-4xh100", "lpwl"),
    ("llama-3.1-70b-4xh100", "marginal_cost"),
    ("llama-3.1-8b-h100", "lpwl"),
    ("llama-3.1-8b-h100", "marginal_cost"),
)
SHARES = {
    "backends/engine": "engine",
    "loadtest/sim": "clock, clients, exchanges",
    "loadtest/bench": "reference loop",
    "loadtest/workload": "block hashes of prompts",
    "router/residency": "residency and KV events",
    "backends/": "KV events on the wire",
    "router/": "dispatcher",
    "policies/": "policy",
}


@dataclass
class Played:
    """Figures of one run."""

    cpu_s: float
    reference_s: float
    calls: int
    steps: int
    evictions: int


def reference() -> float:
    """Return the CPU seconds of a fixed loop, which show how fast the core is at the moment."""
    begun_s, total = time.process_time(), 0.0
    kept: dict[int, int] = {}
    for number in range(150_000):
        kept[number & 1023] = number
        total += number * 0.5
    return time.process_time() - begun_s


def play(plan: Plan, spec: WorkerSpec, workers: int, policy: str, seed: int, every_step: bool) -> Played:
    """Play the plan from its first call to its last token."""
    gc.collect()
    gc.disable()  # as one `VirtualTime.run` does; here there is one run per part
    begun_s = time.process_time()
    virtual, delays = VirtualTime(), Delays()
    fleet = [
        EngineWorker(virtual, f"worker-{number}", spec, seed + number, delays.response_s, every_step=every_step)
        for number in range(workers)
    ]
    chosen = PolicySpec(policy)
    rule = build_policy(chosen, random.Random(seed))
    gateway = SimulatedGateway(virtual, fleet, ResidencyMap(), rule, chosen, delays=delays)
    clients = Clients(virtual, gateway, fleet, delays.request_s)
    for session in sessions_of(plan):
        clients.play(session)
    cpu_s, reference_s = time.process_time() - begun_s, 0.0
    for part in range(1, PARTS + 1):
        begun_s = time.process_time()
        virtual.run(plan.duration_s * part / PARTS if part < PARTS else float("inf"))
        cpu_s += time.process_time() - begun_s
        reference_s += reference() / PARTS
    gc.enable()
    figures = [worker.statistics() for worker in fleet]
    steps, evictions = (int(sum(one[name] for one in figures)) for name in ("steps", "evictions"))
    return Played(cpu_s, reference_s, len(clients.outcomes), steps, evictions)


def shares(profile: cProfile.Profile) -> Counter[str]:
    """Return seconds by part of the project. Time in built-in functions counts for their caller."""
    found: Counter[str] = Counter()
    stats: dict[Any, Any] = pstats.Stats(profile).stats  # type: ignore[attr-defined]  # typeshed leaves it out
    for (file, _, _), (_, _, own_s, _, callers) in stats.items():
        if file == "~":
            for (caller, _, _), figures in callers.items():
                found[part_of(caller)] += figures[2]
        else:
            found[part_of(file)] += own_s
    return found


def part_of(file: str) -> str:
    try:
        inside = Path(file).relative_to(ROOT).as_posix()
    except ValueError:
        return "libraries"
    return next((part for folder, part in SHARES.items() if inside.startswith(folder)), "libraries")


def main() -> None:
    """Print one line per profile and policy, the best of the rounds; then the distribution of time over parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path, metavar="TRACE", help="Mooncake's conversation_trace.jsonl[.gz|.zst]")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--async-scheduling", action="store_true", help="schedule asynchronously, as vLLM does by default"
    )
    parser.add_argument("--every-step", action="store_true", help="play every step, for comparison")
    asked = parser.parse_args()
    plan = Trace.of(asked.trace).whole()
    print(
        f"{plan.name}: {plan.calls} calls in {plan.duration_s:.0f} s, {asked.workers} workers, blocks of"
        f" {plan.block_tokens} tokens; CPU time, dispatcher included"
    )

    def run(profile: str, policy: str, seed: int) -> Played:
        spec = WorkerSpec(
            replace(load_profile(profile), block_size=plan.block_tokens), async_scheduling=asked.async_scheduling
        )
        return play(plan, spec, asked.workers, policy, seed, asked.every_step)

    for profile, policy in CASES:
        best = min((run(profile, policy, seed) for seed in range(asked.rounds)), key=lambda one: one.cpu_s)
        print(
            f"  {profile:21} {policy:14} {best.cpu_s:6.2f} s  {plan.duration_s / best.cpu_s:5.0f} x real time"
            f"  {best.cpu_s / best.calls * 1e6:4.0f} us a call  {best.steps:,} steps  {best.evictions:,} evictions"
            f"  reference loop {best.reference_s * 1e3:.1f} ms",
            flush=True,
        )
    if not str(engine.__file__).endswith(".py"):
        return  # compiled: a profiler does not see its functions
    profiled = cProfile.Profile()
    profiled.runcall(run, *CASES[1], 0)
    found = shares(profiled)
    print(f"where it goes ({', '.join(CASES[1])}; a profiler overstates code that makes many calls):")
    for part, seconds in found.most_common():
        print(f"  {seconds / found.total():4.0%}  {part}")


if __name__ == "__main__":
    main()
