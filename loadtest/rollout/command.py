"""``python -m loadtest rollout``: rolling restarts of gateway and workers under load, every failed request counted.

A gateway and embedded workers serve closed-loop clients: half keep their connection, half open one per request; half
of all answers are streams. Meanwhile the gateway is replaced again and again by a process that takes over its listening
sockets, and each worker in turn is drained, stopped, started and undrained. Half of the restarts are gateways, half
workers. Exits with 1 if any request failed (another status than 200, a broken or shortened answer, a refused or reset
connection; nothing is retried) or a request is still in flight in the end.
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
    parser.add_argument("--restarts", type=positive, default=100, help="of gateways and workers together (default 100)")
    parser.add_argument("--workers", type=positive, default=3, help="embedded workers, at least 2 (default 3)")
    parser.add_argument("--clients", type=positive, default=12, help="closed-loop clients (default 12)")
    parser.add_argument("--seed", type=int, default=0, help="of texts, lengths and pauses (default 0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep what gateways and workers print")


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
