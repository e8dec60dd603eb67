"""``python -m loadtest live``: compare rules on real processes with the same plans in virtual time.

It starts a fleet of embedded workers, or of vLLM's own servers with the GPU replaced by a clock. For every seed it
plays the same calls through the gateway under each rule in turn, each time from empty caches. The simulator plays the
same calls on a model of that fleet. The tables show both sides. The exit code is 1 if a call failed, or if the two
sides contradict each other on a pair of rules.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from backends.engine.profile import profile_names
from loadtest.arguments import above_zero, positive, whole
from loadtest.lab.cell import Slo
from loadtest.lab.flags import policies, seconds, slo
from loadtest.workload.source import FORM


def register(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument("--trace", required=True, metavar=FORM, help="the workload, as in `sim`")
    parser.add_argument(
        "--policy", required=True, type=policies, metavar="NAME[:key=value...],NAME...", help="rules to compare"
    )
    parser.add_argument(
        "--backend", choices=("embedded", "vllm"), default="embedded", help="workers (default: %(default)s)"
    )
    how_fast = parser.add_mutually_exclusive_group()
    how_fast.add_argument(
        "--load",
        type=above_zero,
        default=0.85,
        metavar="L",
        help="fraction of the modelled fleet's saturation (default 0.85)",
    )
    how_fast.add_argument(
        "--rate", type=above_zero, metavar="R", help="multiple of the trace's own rate, instead of --load"
    )
    parser.add_argument("--seeds", type=positive, default=3, metavar="K", help="number of seeds (default %(default)s)")
    parser.add_argument("--first-seed", type=whole, default=0, metavar="K", help="first seed (default 0)")
    parser.add_argument("--window-s", type=above_zero, default=90.0, metavar="S", help="length of a run (default 90)")
    parser.add_argument(
        "--warm-up-s",
        type=seconds,
        default=20.0,
        metavar="S",
        help="start of a run, not measured (default %(default)g)",
    )
    parser.add_argument(
        "--slo", type=slo, default=Slo(2_000.0, 200.0), metavar="TTFT_MS:TPOT_MS", help="the SLO (default 2000:200)"
    )
    parser.add_argument(
        "--out", required=True, type=Path, metavar="DIR", help="folder for live.md, results.json and logs"
    )
    _add_fleet(parser.add_argument_group("workers"))


def _add_fleet(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--workers", type=positive, default=4, metavar="N", help="number of workers (default %(default)s)"
    )
    group.add_argument(
        "--profile",
        choices=profile_names(),
        default="llama-3.1-70b-4xh100",
        help="engine profile (default: %(default)s)",
    )
    group.add_argument(
        "--kv-tokens", type=positive, metavar="N", help="KV cache of each worker (default: the profile's)"
    )
    group.add_argument(
        "--time-scale",
        type=above_zero,
        default=1.0,
        metavar="S",
        help="factor on the step times of both sides, so that a few cores suffice (default %(default)g)",
    )
    group.add_argument("--vllm-env", type=Path, metavar="DIR", help="environment with vLLM (default: the one found)")


def run(args: argparse.Namespace) -> int:
    """Play both sides, then print and write the tables."""
    from loadtest.live.run import run as start  # late import: other commands' help must not wait for it

    return start(args)
