"""The command line of ``warmroute plan``."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from loadtest.arguments import PROFILES, above_zero, flags_exit_as_input, positive, share, writable
from loadtest.lab.models import register_models

DEFAULT_POLICIES = "marginal_cost,round_robin"

_DESCRIPTION = """\
Find the cheapest fleet that meets a service level on your traffic. Each fleet is simulated in virtual time over the
gateway's own decisions and a model of vLLM. So the size counts what the rule makes of shared prefixes."""

_EPILOG = f"""\
examples:
  warmroute plan --trace trace.jsonl --goodput ttft:2000 tpot:100 --candidate llama-3.1-8b-h100:price=2.5
  warmroute plan --log decisions-*.jsonl --goodput ttft:500 --attainment 0.99 --candidate llama-3.1-8b-h100
  warmroute plan --trace generator:shared_prefixes:rate_per_s=40 --goodput ttft:1000 tpot:50 \\
    --candidate llama-3.1-8b-h100:price=2.5 --candidate llama-3.1-8b-a100:price=1.4 --roles aggregated,split

a PROFILE is {PROFILES}

exit codes: 0 a fleet of the first rule meets the goal; 1 none does; 2 too few calls to decide; 3 wrong input."""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "plan",
        help="how many workers, of which kind and with which roles, for a trace and a service level",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    flags_exit_as_input(parser)
    _traffic_flags(parser)
    _goal_flags(parser)
    _fleet_flags(parser)
    _run_flags(parser)
    register_models(parser)
    parser.set_defaults(run=run)


def _traffic_flags(parser: argparse.ArgumentParser) -> None:
    traffic = parser.add_argument_group("traffic").add_mutually_exclusive_group(required=True)
    traffic.add_argument(
        "--trace",
        metavar="FILE|generator:NAME[:key=value,...]",
        help="a trace, or a rate with lengths and shared text, as in generator:rag:rate_per_s=4",
    )
    traffic.add_argument("--log", nargs="+", type=Path, metavar="FILE", help="decision logs of one or more gateways")
    parser.add_argument(
        "--last-s", type=above_zero, metavar="S", help="of a decision log, its last S seconds (default: all of it)"
    )


def _goal_flags(parser: argparse.ArgumentParser) -> None:
    goal = parser.add_argument_group("service level")
    goal.add_argument(
        "--goodput",
        nargs="+",
        default=[],
        metavar="NAME:MS",
        help="limits of each call in ms, named as in vllm bench serve: ttft, tpot, e2el",
    )
    goal.add_argument(
        "--classes",
        type=Path,
        metavar="FILE",
        help="settings of a gateway with `classes:`: calls wait by class, and each class has to meet its own slo, or"
        " --goodput if it has none. A call's class has the name of its kind, or is `default`, or the first",
    )
    goal.add_argument("--attainment", type=share, default=0.95, metavar="SHARE", help="share of calls (default 0.95)")
    goal.add_argument(
        "--growth", type=above_zero, default=1.0, metavar="X", help="arrivals come X times as fast (default 1)"
    )


def _fleet_flags(parser: argparse.ArgumentParser) -> None:
    fleet = parser.add_argument_group("fleets")
    fleet.add_argument(
        "--candidate",
        action="append",
        required=True,
        metavar="PROFILE[:price=P][:most=N]",
        help="a kind of worker, its price per hour, and how many there may be (repeatable)",
    )
    fleet.add_argument("--max-workers", type=positive, default=64, metavar="N", help="workers to try (default 64)")
    fleet.add_argument(
        "--policy",
        default=DEFAULT_POLICIES,
        metavar="NAME[:key=value...][,NAME...]",
        help=f"routing rules; the first is yours, the others are compared with it (default {DEFAULT_POLICIES})",
    )
    fleet.add_argument(
        "--roles", default="aggregated", help="aggregated, split (prefill and decode workers), or both, by comma"
    )


def _run_flags(parser: argparse.ArgumentParser) -> None:
    run_ = parser.add_argument_group("simulation")
    run_.add_argument(
        "--window-s", type=above_zero, default=600.0, metavar="S", help="busiest part to search on (default 600)"
    )
    run_.add_argument("--seeds", type=positive, default=5, metavar="K", help="seeds of each trial (default 5)")
    run_.add_argument(
        "--quick", action="store_true", help="sizes alone: no hours of the day, no sizes for other step times"
    )
    run_.add_argument("--jobs", type=positive, default=os.cpu_count() or 1, metavar="N", help="number of processes")
    run_.add_argument("--out", type=Path, metavar="DIR", help="keep the runs here; the same command resumes")
    run_.add_argument("--json", type=writable, metavar="FILE", help="write the plan as JSON")


def run(args: argparse.Namespace) -> int:
    """Run the command, and return the exit code."""
    from loadtest.plan.run import run as start  # late: other commands' help must not wait for the simulator

    return start(args)
