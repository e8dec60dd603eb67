"""The command line of ``warmroute demo``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from loadtest.arguments import PROFILES, above_zero, positive, profile_name, writable
from policies.registry import policy_names

BASELINE = "round_robin"
DEFAULT = "marginal_cost"
REPEATABLE = ("policy", "hold", "lanes", "workers", "profile", "time_scale", "conversations", "seed")
"""The flags that change the result."""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "demo",
        help="compare prefix routing with round robin on embedded workers",
        description="Start embedded workers and the gateway as real processes. Play multi-turn conversations about "
        "Python source files through round robin and through the default policy. Print the savings of prefix routing, "
        "and end all processes. The demo takes about two minutes.",
    )
    policies = policy_names()
    parser.add_argument(
        "--policy", default=DEFAULT, choices=policies, help=f"policy to compare with {BASELINE} (default {DEFAULT})"
    )
    for name, what in (("hold", "hold long prompts"), ("lanes", "keep workers for long prefills")):
        parser.add_argument(
            f"--{name}",
            action=argparse.BooleanOptionalAction,
            help=f"{what}, with the policy that is compared (default: with marginal_cost only)",
        )
    parser.add_argument("--workers", type=positive, default=4, help="embedded workers (default 4)")
    text = f"engine profile of the workers: {PROFILES} (default %(default)s)"
    parser.add_argument("--profile", default="llama-3.1-8b-h100", type=profile_name, metavar="PROFILE", help=text)
    parser.add_argument(
        "--time-scale", type=above_zero, default=3.0, help="factor on the modelled step times (default 3)"
    )
    parser.add_argument(
        "--conversations", type=positive, default=60, help="conversations of five turns each (default 60)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the workload (default 0)")
    parser.add_argument(
        "--envoy",
        type=Path,
        metavar="BINARY",
        help="compare Envoy with `warmroute picker` and Envoy that takes turns, instead of the gateway",
    )
    parser.add_argument(
        "--kill",
        action="store_true",
        help="kill each worker once under the streams, without migration and with it, instead of comparing policies",
    )
    parser.add_argument("--json", type=writable, metavar="FILE", help="write the rows as JSON")
    parser.add_argument(
        "--plot", type=writable, metavar="FILE.svg", help="draw mean TTFT of both policies as SVG (needs matplotlib)"
    )
    parser.set_defaults(run=run, defaults={name: parser.get_default(name) for name in REPEATABLE})


def run(args: argparse.Namespace) -> int:
    """Run the demo; return 0 if no request failed."""
    # Late imports: other commands' help must load no HTTP client.
    from loadtest.demo import compare, kill, plot
    from loadtest.fleet.process import exit_code

    if args.kill:
        if args.workers < 2 or args.envoy or args.plot or args.json:
            sys.stderr.write("warmroute demo: --kill needs --workers 2 or more, and no --envoy, --json or --plot\n")
            return 2
        return exit_code("warmroute demo", lambda: kill.compare(args))
    if args.plot is not None and not plot.available():
        sys.stderr.write(f"warmroute demo: {plot.MISSING}\n")
        return 2
    return exit_code("warmroute demo", lambda: compare.compare(args))
