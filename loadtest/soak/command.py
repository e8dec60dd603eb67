"""``python -m loadtest soak``: serve mixed traffic at half load while workers fail in many ways.

It starts embedded workers and a gateway, finds the highest rate that they serve, and plays conversations at half of it
for --minutes. Every few seconds a worker is killed, stalled, drained, or loses its KV events. Each error that a client
sees must have the documented shape and follow from a fault of its worker. The exit code is 0 if there is no other
error, memory stays flat, and no reservation, descriptor or task is left.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from rich.console import Console

from backends.engine.profile import profile_names
from loadtest.arguments import above_zero, positive, size_bytes
from loadtest.fleet.memory_group import NoMemoryGroup
from loadtest.fleet.process import StartError
from loadtest.soak.fleet import FleetShape
from loadtest.soak.report import print_verdict, write_json
from loadtest.soak.run import Setting, soak

GROWTH_MB = 8.0
ATTACKED_GROWTH_MB = 100.0
"""Allowed memory growth with an attacker: an attack may leave memory in use for a minute."""


def register(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    shape = FleetShape()
    parser.add_argument("--minutes", type=above_zero, default=30.0, help="length of the soak (default 30)")
    parser.add_argument("--seed", type=int, default=0, help="seed of text, clients and faults (default 0)")
    parser.add_argument(
        "--rate", type=above_zero, metavar="X", help="requests per second (default: half of the highest found)"
    )
    parser.add_argument(
        "--calibrate-s", type=above_zero, default=15.0, metavar="S", help="time to find the highest rate (default 15)"
    )
    parser.add_argument(
        "--fault-every", type=above_zero, default=5.0, metavar="S", help="mean seconds between faults (default 5)"
    )
    parser.add_argument(
        "--faults-at-once", type=positive, default=2, metavar="N", help="workers with a fault at once (default 2)"
    )
    parser.add_argument("--no-faults", action="store_true", help="cause no faults")
    parser.add_argument(
        "--attack",
        action="store_true",
        help="add a hostile client, and play the others at a quarter of the highest rate",
    )
    parser.add_argument(
        "--memory-limit",
        type=size_bytes,
        metavar="SIZE",
        help="memory limit of the gateway, set by a cgroup, as in 1GiB",
    )
    parser.add_argument(
        "--workers", type=positive, default=shape.workers, help="number of workers (default %(default)s)"
    )
    parser.add_argument(
        "--profile", choices=profile_names(), default=shape.profile, help="engine profile (default %(default)s)"
    )
    parser.add_argument(
        "--time-scale",
        type=above_zero,
        default=shape.time_scale,
        metavar="S",
        help="factor on the modelled step times, so that few CPU cores can serve them (default %(default)g)",
    )
    parser.add_argument(
        "--growth-mb",
        type=above_zero,
        metavar="MB",
        help="growth of the gateway's memory allowed in the second half (default 8, with --attack 100)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all measurements")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep the output of workers and gateway")


def run(args: argparse.Namespace) -> int:
    """Soak; return 0 if no problem was found."""
    console = Console(soft_wrap=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if args.logs is not None:
        args.logs.mkdir(parents=True, exist_ok=True)
    fleet = FleetShape(
        workers=args.workers,
        profile=args.profile,
        time_scale=args.time_scale,
        seed=args.seed,
        logs=args.logs,
        memory_limit_bytes=args.memory_limit,
        attacked=args.attack,
    )
    setting = Setting(
        duration_s=args.minutes * 60,
        fleet=fleet,
        seed=args.seed,
        fault_every_s=None if args.no_faults else args.fault_every,
        faults_at_once=args.faults_at_once,
        requests_per_s=args.rate,
        calibrate_s=args.calibrate_s,
        growth_bound_mb=args.growth_mb or (ATTACKED_GROWTH_MB if args.attack else GROWTH_MB),
        attack=args.attack,
    )
    try:
        verdict = soak(setting, console)
    except (StartError, NoMemoryGroup, OSError) as error:
        sys.stderr.write(f"loadtest soak: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    print_verdict(console, verdict)
    if args.json is not None:
        write_json(args.json, verdict)
    return 0 if verdict.passed else 1
