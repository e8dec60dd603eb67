"""The command's flags, and the errors of wrong values."""

from __future__ import annotations

import argparse
import os
import random
from pathlib import Path

from loadtest.arguments import PROFILES, above_zero, positive, profile_name, whole
from loadtest.lab.cell import Fleet, Setting, Slo
from loadtest.lab.models import TIMEOUT_S, models_of, register_models
from loadtest.lab.policies import parse_policy
from loadtest.workload.source import FORM
from policies.registry import PolicyError, build_policy, policy_names

POLICIES = "NAME[:key=value...][,NAME...]"
"""How `policies` are written."""


def register(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    workload = "the workload: a trace, whose schema is recognised from its rows, or a generator"
    add("--trace", required=True, metavar=FORM, help=workload)
    add("--workers", required=True, type=positive, metavar="N", help="workers of the fleet")
    profile = f"engine profile of each worker: {PROFILES}"
    add("--profile", required=True, type=profile_name, metavar="PROFILE", help=profile)
    add("--slo", required=True, type=slo, metavar="TTFT_MS:TPOT_MS", help="the SLO")
    rules = (
        "rules to compare, with parameters and the wrappers hold and lanes, as in lpwl:hold=true:lanes=true; rules:"
        f" {', '.join(policy_names())}"
    )
    add("--policy", required=True, type=policies, metavar=POLICIES, help=rules)
    add("--load", required=True, type=loads, metavar="L[,L...]", help="fractions of the fleet's saturation")
    add("--seeds", type=positive, default=10, metavar="K", help="number of seeds (default %(default)s)")
    window = "seconds of the trace per seed (default %(default)g)"
    add("--window-s", type=above_zero, default=1200.0, metavar="S", help=window)
    add("--out", required=True, type=Path, metavar="DIR", help="folder for the results; an earlier run resumes")
    register_runs(parser)
    register_models(parser)


def register_runs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--first-seed", type=whole, default=0, metavar="K", help="first seed (default 0)")
    parser.add_argument("--jobs", type=positive, default=os.cpu_count() or 1, metavar="N", help="number of processes")


def setting(args: argparse.Namespace) -> Setting:
    """Return the setting that all cells share."""
    fleet = Fleet(args.workers, args.profile)
    return Setting(fleet, args.slo, models_of(args), args.window_s)


def problem(args: argparse.Namespace) -> str | None:
    """Return a conflict between flags, with the fix; None if there is none."""
    if args.warm_up_s >= args.window_s:
        return (
            f"--warm-up-s {args.warm_up_s:g} leaves nothing of --window-s {args.window_s:g} to measure;"
            " make the window longer or the warm-up shorter"
        )
    if args.slo.ttft_ms >= TIMEOUT_S * 1e3:
        return (
            f"--slo: clients leave after {TIMEOUT_S:g} s, so no load would ever miss a TTFT of {args.slo.ttft_ms:g} ms"
        )
    return None


def policies(text: str) -> list[str]:
    """Parse names of policies, check that each can be built, and return each once."""
    names = [name for name in text.split(",") if name]
    if not names:
        raise argparse.ArgumentTypeError("names no rule")
    return list(dict.fromkeys([policy(name) for name in names]))


def policy(text: str) -> str:
    """Check that the policy which a text names can be built."""
    try:
        build_policy(parse_policy(text), random.Random(0))
    except PolicyError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def loads(text: str) -> list[float]:
    """Parse numbers above 0; return them in order, each once."""
    try:
        return sorted({above_zero(one) for one in text.split(",")})
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}; write fractions of saturation, as in 0.3,0.6,0.95") from None


def slo(text: str) -> Slo:
    """Parse two numbers above 0."""
    ttft, _, tpot = text.partition(":")
    try:
        return Slo(above_zero(ttft), above_zero(tpot))
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not TTFT_MS:TPOT_MS; write two times, as in 2000:100") from None
