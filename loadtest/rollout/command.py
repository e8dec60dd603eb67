"""``python -m loadtest rollout``: restart gateway and workers under load, and count every failed request.

A gateway and embedded workers serve closed-loop clients. Half of the clients keep their connection, and half open one
per request; half of all responses are streams. Half of the restarts replace the gateway by a process that takes its
listening sockets. The others drain, stop, start and undrain one worker after the other. The command exits with 1 if a
request failed or is still in flight at the end. Another status than 200, a broken or shortened response, and a refused
or reset connection are failures. Nothing is retried.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

import msgspec
import uvloop

from loadtest.arguments import positive
from loadtest.rollout.fleet import RolloutError, StartError
from loadtest.rollout.run import Outcome, Plan, rollout


def register(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument(
        "--restarts", type=positive, default=100, help="restarts of gateways and workers together (default 100)"
    )
    parser.add_argument("--workers", type=positive, default=3, help="embedded workers, at least 2 (default 3)")
    parser.add_argument("--clients", type=positive, default=12, help="closed-loop clients (default 12)")
    parser.add_argument("--seed", type=int, default=0, help="seed of texts, lengths and pauses (default 0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep the output of gateways and workers")


def run(args: argparse.Namespace) -> int:
    """Run and print; return the exit code."""
    if args.workers < 2:
        sys.stderr.write("rollout needs --workers 2 or more: one serves while another restarts\n")
        return 2
    if args.logs is not None:
        args.logs.mkdir(parents=True, exist_ok=True)
    workers = args.restarts // 2
    plan = Plan(args.restarts - workers, workers, args.workers, args.clients, args.seed, args.logs)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            outcome = runner.run(rollout(plan, lambda line: print(line, flush=True)))
    except (RolloutError, StartError) as error:
        sys.stderr.write(f"rollout: {error}\n")
        return 1
    except (asyncio.CancelledError, KeyboardInterrupt):
        return 130
    _print(outcome)
    if args.json is not None:
        args.json.write_bytes(msgspec.json.format(msgspec.json.encode(outcome)))
    return 1 if outcome.tally.failures or outcome.left else 0


def _print(outcome: Outcome) -> None:
    tally = outcome.tally
    print(
        f"{outcome.gateway_restarts} gateway and {outcome.worker_restarts} worker restarts in {outcome.seconds:.0f} s: "
        f"{tally.requests} requests ({tally.streams} streams) on {tally.connections} connections, "
        f"{tally.closes} answers said close, slowest {tally.slowest_s:.2f} s, {len(tally.failures)} failed, "
        f"{outcome.left} still in flight"
    )
