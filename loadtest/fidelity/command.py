"""``python -m loadtest fidelity``: compare the engine model with vLLM, on equal arrivals and on recorded GPU runs.

The first part needs an environment with vLLM (`make vllm-env` builds one without CUDA). The second part reads the
recordings in --recorded. The command exits with 1 if a difference exceeds its limit. Both parts take about 20 minutes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from backends.engine.profile import profile_names
from loadtest.arguments import above_zero, positive
from loadtest.fidelity.scenarios import SCENARIOS

RECORDED = Path("../shared/traces/perf")
BOTH = ("async", "sync")


def register(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument("--only", choices=("served", "recorded"), help="run one of the two parts (default: both)")
    parser.add_argument("--vllm-env", type=Path, metavar="DIR", help="environment with vLLM (default: the one found)")
    parser.add_argument(
        "--profile", choices=profile_names(), default="llama-3.1-8b-h100", help="engine profile (default: %(default)s)"
    )
    parser.add_argument(
        "--scenario",
        choices=list(SCENARIOS),
        nargs="+",
        default=list(SCENARIOS),
        help="scenarios to play (default: all)",
    )
    parser.add_argument(
        "--scheduling", choices=BOTH, nargs="+", default=list(BOTH), help="vLLM's scheduling (default: both)"
    )
    parser.add_argument(
        "--cache-tokens", type=positive, default=65_536, metavar="N", help="KV cache, in tokens (default %(default)s)"
    )
    parser.add_argument(
        "--time-scale",
        type=above_zero,
        default=8.0,
        metavar="S",
        help="factor on the modelled times of vLLM, so that the cost of its own code matters little (default 8)",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the arrivals (default 0)")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="write vLLM's output to DIR")
    parser.add_argument(
        "--recorded", type=Path, metavar="DIR", help=f"recorded runs (default: {RECORDED}, if it exists)"
    )
    parser.add_argument(
        "--refit", action="store_true", help="fit the step costs to the recordings again and print them"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything as JSON")


def run(args: argparse.Namespace) -> int:
    """Run both parts, print the tables, return the exit code."""
    from loadtest.fidelity.run import run as start  # late import: other commands' help must not wait for it

    return start(args)
