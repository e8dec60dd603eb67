"""``python -m loadtest compare``: compare rules and other routers over real workers, with one plan over HTTP.

It starts a fleet of embedded workers, or of vLLM's own servers with the GPU replaced by a clock (`make vllm-env`). For
every seed it plays the same calls through Warmroute under each rule, and through each other router (`make peers-env`),
in random order and each time from empty caches. The simulator plays the same calls under Warmroute's rules on a model
of that fleet. A case is a workload, a fleet and contenders under one name; other flags change its settings. A router
that is not installed is skipped. The exit code is 1 if a call failed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from loadtest.arguments import PROFILES, above_zero, positive, profile_name, seconds, whole
from loadtest.compare.cases import CASES, Usual
from loadtest.compare.contenders import Contender, UnknownContender, parse_contender
from loadtest.lab.flags import policies, slo
from loadtest.workload.source import FORM

USUAL = Usual()


def register(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--trace", metavar=FORM, help="the workload, as in `sim`")
    what.add_argument("--case", choices=CASES, help="a named workload with its fleet and contenders")
    parser.add_argument(
        "--policy",
        type=policies,
        metavar="NAME[:key=value...],NAME...",
        help="Warmroute's rules (default: the case's); ratios are to the last one",
    )
    parser.add_argument(
        "--peer",
        action="append",
        type=_peer,
        metavar="'ROUTER:POLICY [FLAGS]'",
        help="sglang-router, vllm-router or smg; repeatable (default: the case's)",
    )
    parser.add_argument(
        "--peers-env", type=Path, default=Path(".venv-peers"), metavar="DIR", help="environment with the other routers"
    )
    how_fast = parser.add_mutually_exclusive_group()
    load = f"fraction of the modelled fleet's saturation (default {USUAL.load:g})"
    how_fast.add_argument("--load", type=above_zero, metavar="L", help=load)
    how_fast.add_argument(
        "--rate", type=above_zero, metavar="R", help="multiple of the trace's own rate, instead of --load"
    )
    for flag, kind, metavar, text in (
        ("--seeds", positive, "K", f"number of seeds (default {USUAL.seeds})"),
        ("--window-s", above_zero, "S", f"length of a run (default {USUAL.window_s:g})"),
        ("--warm-up-s", seconds, "S", f"start of a run, not measured (default {USUAL.warm_up_s:g})"),
        ("--slo", slo, "TTFT_MS:TPOT_MS", "the SLO (default 2000:200)"),
        ("--out", Path, "DIR", "folder for compare.md, results.json and logs (default: print only)"),
        ("--workers", positive, "N", f"number of workers (default {USUAL.workers})"),
        ("--kv-tokens", positive, "N", "KV cache of each worker (default: the profile's)"),
        ("--time-scale", above_zero, "S", "factor on the step times of both sides, so that a few cores suffice"),
        ("--vllm-env", Path, "DIR", "environment with vLLM (default: the one found)"),
    ):
        parser.add_argument(flag, type=kind, metavar=metavar, help=text)
    parser.add_argument("--first-seed", type=whole, default=0, metavar="K", help="first seed (default 0)")
    parser.add_argument(
        "--backend", choices=("embedded", "vllm"), default="embedded", help="workers (default: %(default)s)"
    )
    text = f"engine profile: {PROFILES} (default: {USUAL.profile})"
    parser.add_argument("--profile", type=profile_name, metavar="PROFILE", help=text)


def _peer(text: str) -> Contender:
    try:
        return parse_contender(text)
    except (UnknownContender, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run(args: argparse.Namespace) -> int:
    from loadtest.compare.run import run as start  # late import: other commands' help must not wait for it

    return start(args)
