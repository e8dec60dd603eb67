"""The command's flags, and the errors of wrong values."""

from __future__ import annotations

import argparse
import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from loadtest.arguments import PROFILES, above_zero, positive, profile_name, whole
from loadtest.lab.cell import Fleet, Setting, Slo
from loadtest.lab.models import TIMEOUT_S, models_of, register_models, seconds
from loadtest.lab.policies import parse_policy
from loadtest.sim.handover import HandoverSetting
from policies.registry import PolicyError, build_policy, policy_names
from router.placement.fleet.endpoints import DECODE, MIXED, PREFILL

_TRANSFER = HandoverSetting(())


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trace",
        required=True,
        metavar="FILE|generator:NAME[:key=value,...]",
        help="the workload: a trace, whose schema is recognised from its rows, or a generator",
    )
    parser.add_argument("--workers", required=True, type=positive, metavar="N", help="workers of the fleet")
    parser.add_argument(
        "--profile",
        required=True,
        type=profile_name,
        metavar="PROFILE",
        help=f"engine profile of each worker: {PROFILES}",
    )
    parser.add_argument("--slo", required=True, type=slo, metavar="TTFT_MS:TPOT_MS", help="the SLO")
    add_shared(
        parser,
        {"--seeds": 10, "--window-s": 1200.0},
        {
            "--policy": "rules to compare, with parameters and the wrappers hold and lanes, as in"
            f" lpwl:hold=true:lanes=true; rules: {', '.join(policy_names())}",
            "--load": "fractions of the fleet's saturation",
            "--out": "folder for the results; an earlier run resumes",
            "--seeds": "number of seeds (default 10)",
            "--window-s": "seconds of the trace per seed (default 1200)",
        },
    )
    _register_handover(parser)
    register_models(parser)


def add_shared(parser: argparse.ArgumentParser, defaults: Mapping[str, object], texts: Mapping[str, str]) -> None:
    """Add the flags of a study and of a tournament, with the help in `texts`; one without a default is required."""
    for name, kind, metavar in (
        ("--policy", policies, "NAME[:key=value...][,NAME...]"),
        ("--load", loads, "L[,L...]"),
        ("--seeds", positive, "K"),
        ("--window-s", above_zero, "S"),
        ("--out", Path, "DIR"),
    ):
        given = {"default": defaults[name]} if name in defaults else {"required": True}
        parser.add_argument(name, type=kind, metavar=metavar, help=texts[name], **given)
    parser.add_argument("--first-seed", type=whole, default=0, metavar="K", help="first seed (default 0)")
    parser.add_argument("--jobs", type=positive, default=os.cpu_count() or 1, metavar="N", help="number of processes")


def _register_handover(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("KV handover", "workers with roles; the others need --roles")
    group.add_argument(
        "--roles",
        type=roles,
        metavar="ROLE=N[,ROLE=N...]",
        help="roles of the first workers, as in prefill=2,decode=2: prefill, decode, or mixed, which does both; the"
        " others have no KV connector",
    )
    for name, (_, kind, metavar, text) in _HANDOVER.items():
        group.add_argument(name, type=kind, metavar=metavar, help=text)


def setting(args: argparse.Namespace) -> Setting:
    """Return the setting that all cells share."""
    fleet = Fleet(args.workers, args.profile)
    return Setting(fleet, args.slo, models_of(args), args.window_s, _handover(args))


def _handover(args: argparse.Namespace) -> HandoverSetting | None:
    """Return the roles and the flags that go with them; None without roles."""
    if args.roles is None:
        return None
    given = {_HANDOVER[name][0]: value for name, value in _handover_flags(args).items()}
    return HandoverSetting(tuple(role for role, count in args.roles.items() for _ in range(count)), **given)


def _handover_flags(args: argparse.Namespace) -> dict[str, Any]:
    """Return the flags of handovers that are given, with their values."""
    values = {name: getattr(args, name[2:].replace("-", "_")) for name in _HANDOVER}
    return {name: value for name, value in values.items() if value is not None}


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
    if args.roles is None:
        for alone in _handover_flags(args):
            return f"{alone} needs --roles, as in --roles prefill=2,decode=2"
    elif sum(args.roles.values()) > args.workers:
        return f"--roles names {sum(args.roles.values())} workers, and --workers is {args.workers}; name fewer"
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


def roles(text: str) -> dict[str, int]:
    """Parse counts of roles, among which at least two workers can form a pair."""
    found: dict[str, int] = {}
    for one in text.split(","):
        role, _, count = one.partition("=")
        if role not in (PREFILL, DECODE, MIXED) or role in found or not (count.isdecimal() and int(count)):
            raise argparse.ArgumentTypeError(
                f"{text!r} is not ROLE=N[,ROLE=N...] with the roles prefill, decode, mixed"
            )
        found[role] = int(count)
    if sum(found.values()) < 2 or found.keys() in ({PREFILL}, {DECODE}):
        raise argparse.ArgumentTypeError(f"{text!r} has no pair of workers; write as in prefill=2,decode=2 or mixed=4")
    return found


_HANDOVER: dict[str, tuple[str, Callable[[str], Any], str, str]] = {
    "--transfer-tokens-per-s": (
        "tokens_per_s",
        above_zero,
        "N",
        "KV cache that one worker's network card sends and receives per second; transfers share it"
        f" (default {_TRANSFER.tokens_per_s:g})",
    ),
    "--transfer-latency-s": (
        "latency_s",
        seconds,
        "S",
        f"time from the start of a transfer to its first byte (default {_TRANSFER.latency_s:g})",
    ),
}
"""Flags with their field of `HandoverSetting`, type, metavar and help."""
