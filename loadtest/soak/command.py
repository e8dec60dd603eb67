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
import asyncio
import signal
import sys
from pathlib import Path

import msgspec
import uvloop
from rich.console import Console

from backends.engine.profile import profile_names
from loadtest.arguments import above_zero, positive, size_bytes
from loadtest.fleet.memory_group import NoMemoryGroup
from loadtest.fleet.process import StartError
from loadtest.soak.fleet import FleetShape
from loadtest.soak.report import print_verdict, write_json
from loadtest.soak.restarts import Plan, RestartError, restarts
from loadtest.soak.run import Setting, soak

SCENARIOS = ("faults", "attack", "restarts")
GROWTH_MB = 8.0
ATTACKED_GROWTH_MB = 100.0
"""Allowed memory growth with an attacker: an attack may leave memory in use for a minute."""


def register(parser: argparse.ArgumentParser) -> None:
    shape = FleetShape()
    parser.add_argument("--scenario", choices=SCENARIOS, default="faults", help="what happens (default: %(default)s)")
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
    parser.add_argument(
        "--memory-limit",
        type=size_bytes,
        metavar="SIZE",
        help="memory limit of the gateway, set by a cgroup, as in 1GiB",
    )
    parser.add_argument(
        "--workers",
        type=positive,
        help=f"number of workers (default {shape.workers}; for restarts {Plan(0, 0).workers})",
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
        help="growth of the gateway's memory allowed in the second half (default 8, with an attack 100)",
    )
    parser.add_argument(
        "--restarts", type=positive, default=100, help="restarts of gateways and workers together (default 100)"
    )
    parser.add_argument("--clients", type=positive, default=12, help="clients beside restarts (default 12)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all measurements")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep the output of workers and gateway")


def run(args: argparse.Namespace) -> int:
    """Soak; return 0 if no problem was found."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if args.logs is not None:
        args.logs.mkdir(parents=True, exist_ok=True)
    try:
        return _restarts(args) if args.scenario == "restarts" else _soak(args, Console(soft_wrap=True))
    except (StartError, RestartError, NoMemoryGroup, OSError) as error:
        sys.stderr.write(f"loadtest soak: {error}\n")
        return 1
    except (asyncio.CancelledError, KeyboardInterrupt):
        return 130


def _soak(args: argparse.Namespace, console: Console) -> int:
    attack = args.scenario == "attack"
    fleet = FleetShape(
        workers=args.workers or FleetShape().workers,
        profile=args.profile,
        time_scale=args.time_scale,
        seed=args.seed,
        logs=args.logs,
        memory_limit_bytes=args.memory_limit,
        attacked=attack,
    )
    setting = Setting(
        duration_s=args.minutes * 60,
        fleet=fleet,
        seed=args.seed,
        fault_every_s=None if attack else args.fault_every,
        faults_at_once=args.faults_at_once,
        requests_per_s=args.rate,
        calibrate_s=args.calibrate_s,
        growth_bound_mb=args.growth_mb or (ATTACKED_GROWTH_MB if attack else GROWTH_MB),
        attack=attack,
    )
    verdict = soak(setting, console)
    print_verdict(console, verdict)
    if args.json is not None:
        write_json(args.json, verdict)
    return 0 if verdict.passed else 1


def _restarts(args: argparse.Namespace) -> int:
    if args.workers == 1:
        sys.stderr.write("loadtest soak: restarts need --workers 2 or more: one serves while another restarts\n")
        return 2
    replaced, workers = args.restarts // 2, args.workers or Plan(0, 0).workers
    plan = Plan(args.restarts - replaced, replaced, workers, args.clients, args.seed, args.logs)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        outcome = runner.run(restarts(plan, lambda line: print(line, flush=True)))
    tally = outcome.tally
    print(
        f"{outcome.progress()} in {outcome.seconds:.0f} s, {tally.connections} connections, {tally.closes} answers "
        f"said close, slowest {tally.slowest_s:.2f} s, {outcome.left} still in flight"
    )
    if args.json is not None:
        args.json.write_bytes(msgspec.json.format(msgspec.json.encode(outcome)))
    return 1 if tally.failures or outcome.left else 0
