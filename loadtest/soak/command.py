"""``python -m loadtest soak``: serve traffic while workers fail, a client attacks, or gateways and workers restart.

--scenario faults (the default) starts embedded workers and a gateway, finds the highest rate that they serve, and plays
conversations at half of it for --minutes. Every few seconds a worker is killed, stalled, drained, or loses its KV
events. Each error that a client sees must have the documented shape and follow from a fault of its worker.

--scenario attack adds a hostile client instead of faults, and plays the others at a quarter of the highest rate. In
both, the exit code is 0 if there is no other error, memory stays flat, and no reservation, descriptor or task is left.

--scenario restarts has closed-loop clients that accept no error. Half of --restarts replace the gateway by a process
that takes its listening sockets. The others drain, stop, start and undrain one worker after the other. The exit code is
1 if a request failed or is still in flight at the end. Nothing is retried.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from loadtest.arguments import above_zero, positive, size_bytes, writable
from loadtest.fleet.memory_group import NoMemoryGroup
from loadtest.fleet.process import exit_code
from loadtest.soak.fleet import FleetShape
from loadtest.soak.report import print_verdict, write_json
from loadtest.soak.run import Setting, soak

CLASSES: Mapping[str, Any] = {
    "classes": {
        "interactive": {"share": 1.0, "floor": 0.3, "slo": {"ttft": 2.0, "tpot": 0.2}},
        "default": {"share": 1.0},
        "batch": {"share": 0.0, "starvation_s": 5.0},
    },
    "auth": {"allow": ["priority"]},
}
"""Without a longest wait, so that an error still needs a fault that explains it."""
SCENARIOS = ("faults", "attack", "restarts")


def register(parser: argparse.ArgumentParser) -> None:
    for flag, of, default, what in (
        ("--minutes", above_zero, 30.0, "length of a soak with faults or an attack"),
        ("--calibrate-s", above_zero, 15.0, "seconds to find the highest rate"),
        ("--restarts", positive, 100, "restarts of gateways and workers together"),
        ("--clients", positive, 12, "clients beside restarts"),
        ("--workers", positive, FleetShape().workers, "number of workers"),
        ("--seed", int, 0, "seed of text, clients and faults"),
    ):
        parser.add_argument(flag, type=of, default=default, metavar="N", help=f"{what} (default %(default)s)")
    parser.add_argument("--scenario", choices=SCENARIOS, default="faults", help="what happens (default %(default)s)")
    parser.add_argument(
        "--classes", action="store_true", help="requests of three classes and five tenants wait in the gateway in turns"
    )
    parser.add_argument(
        "--memory-limit", type=size_bytes, metavar="SIZE", help="limit of the gateway, set by a cgroup, as in 1GiB"
    )
    parser.add_argument("--json", type=writable, metavar="FILE", help="write all measurements")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep the output of workers and gateway")


def run(args: argparse.Namespace) -> int:
    """Soak; return 0 if no problem was found."""
    restarts = args.scenario == "restarts"
    if restarts and args.workers == 1:
        sys.stderr.write("loadtest soak: restarts need --workers 2 or more: one serves while another restarts\n")
        return 2
    if args.logs is not None:
        args.logs.mkdir(parents=True, exist_ok=True)
    fleet = FleetShape(
        workers=args.workers,
        time_scale=1.0 if restarts else FleetShape().time_scale,
        seed=args.seed,
        logs=args.logs,
        memory_limit_bytes=args.memory_limit,
        attacked=args.scenario == "attack",
        config=CLASSES if args.classes else {},
    )
    setting = Setting(
        duration_s=args.minutes * 60,
        fleet=fleet,
        faults=args.scenario == "faults",
        calibrate_s=args.calibrate_s,
        restarts=args.restarts if restarts else 0,
        clients=args.clients,
    )
    return exit_code("loadtest soak", lambda: _judged(args, setting), NoMemoryGroup)


def _judged(args: argparse.Namespace, setting: Setting) -> int:
    console = Console(soft_wrap=True)
    verdict = soak(setting, console)
    print_verdict(console, verdict)
    if args.json is not None:
        write_json(args.json, verdict)
    return 0 if verdict.passed else 1
