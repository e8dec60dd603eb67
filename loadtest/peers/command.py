"""``python -m loadtest peers``: compare cached share and TTFT with other routers, over the same vLLM workers.

It starts vLLM servers whose GPU is replaced by a clock (`make vllm-env`), or embedded workers with --simulated. Each
contender in turn stands in front of them, and the command plays the same multi-turn conversations through it. It
empties the workers' caches between two contenders. The peers come from their own environment (`make peers-env`). The
command skips a peer that is not installed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from backends.engine.profile import profile_names
from loadtest.arguments import above_zero, positive
from loadtest.peers.compare import Setting
from loadtest.peers.compare import run as compare
from loadtest.peers.contenders import BASELINE, DEFAULTS, Contender, UnknownContender, parse_contender
from loadtest.peers.workers import BLOCK_TOKENS, FleetShape
from loadtest.workload.groups import GroupShape

MAX_GROUPS = 40
"""Every supported version of the standard library has at least this number of long source files."""


def register(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    _add_contest(parser)
    _add_fleet(parser.add_argument_group("workers"))
    _add_workload(parser.add_argument_group("workload"))


def _add_contest(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--contender",
        action="append",
        type=_contender,
        metavar="'ROUTER:POLICY [FLAGS]'",
        help=f"warmroute, sglang-router, vllm-router or smg; repeatable (default: {', '.join(DEFAULTS)})",
    )
    parser.add_argument(
        "--baseline", default=BASELINE, help="contender that the ratios compare with (default %(default)s)"
    )
    parser.add_argument("--rounds", type=positive, default=2, help="runs of each contender (default 2)")
    parser.add_argument("--seed", type=_not_negative_whole, default=0, help="seed of text, times and order (default 0)")
    parser.add_argument(
        "--peers-env",
        type=Path,
        default=Path(".venv-peers"),
        metavar="DIR",
        help="environment with the peers (default: %(default)s)",
    )
    parser.add_argument(
        "--session-header", metavar="NAME", help="send each conversation's id in this header, to every contender"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the setting, the command lines and the figures of every run"
    )
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep the output of workers and routers")


def _add_fleet(group: argparse._ArgumentGroup) -> None:
    shape = FleetShape()
    group.add_argument("--simulated", action="store_true", help="use embedded workers instead of vLLM servers")
    group.add_argument(
        "--workers", type=positive, default=shape.workers, help="number of workers (default %(default)s)"
    )
    group.add_argument(
        "--profile", choices=profile_names(), default=shape.profile, help="engine profile (default %(default)s)"
    )
    group.add_argument(
        "--kv-tokens",
        type=positive,
        default=shape.kv_tokens,
        metavar="N",
        help="tokens in the KV cache of each worker (default %(default)s)",
    )
    group.add_argument(
        "--time-scale",
        type=above_zero,
        default=shape.time_scale,
        metavar="S",
        help="factor on the modelled step times, so that few CPU cores can serve them (default %(default)g)",
    )
    group.add_argument("--vllm-env", type=Path, metavar="DIR", help="environment with vLLM (default: the one found)")


def _add_workload(group: argparse._ArgumentGroup) -> None:
    shape = GroupShape()

    def add(name: str, kind: Callable[[str], object], text: str) -> None:
        default = getattr(shape, name.replace("-", "_"))
        group.add_argument(f"--{name}", type=kind, default=default, metavar="N", help=f"{text} (default {default:g})")

    add("groups", _groups, "groups of conversations with a system prompt in common")
    add("conversations", positive, "conversations in all")
    add("turns", positive, "turns of each")
    add("system-tokens", positive, "tokens of a group's system prompt")
    add("opening-tokens", positive, "tokens of a conversation's own opening")
    add("question-tokens", positive, "tokens that each later question brings along")
    add("answer-tokens", positive, "tokens of each answer")
    add("starts-per-s", above_zero, "conversations that start per second, as a Poisson process")
    add("pause-s", above_zero, "mean seconds between an answer and the next question")


def run(args: argparse.Namespace) -> int:
    """Compare; return 0 if every contender answered every request."""
    fleet = FleetShape(
        workers=args.workers,
        simulated=args.simulated,
        profile=args.profile,
        kv_tokens=max(BLOCK_TOKENS, args.kv_tokens),
        time_scale=args.time_scale,
        seed=args.seed,
        vllm_env=args.vllm_env,
    )
    workload = GroupShape(**{name: getattr(args, name) for name in GroupShape.__dataclass_fields__})
    setting = Setting(
        fleet, workload, args.rounds, args.seed, args.baseline, args.peers_env.absolute(), args.session_header
    )
    contenders: list[Contender] = args.contender or [parse_contender(name) for name in DEFAULTS]
    return compare(setting, contenders, args.json, args.logs)


def _contender(text: str) -> Contender:
    try:
        return parse_contender(text)
    except (UnknownContender, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _groups(text: str) -> int:
    if text.isdecimal() and 0 < int(text) <= MAX_GROUPS:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {MAX_GROUPS}")


def _not_negative_whole(text: str) -> int:
    if text.isdecimal():
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
