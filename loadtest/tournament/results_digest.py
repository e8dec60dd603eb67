"""``python -m loadtest results-digest``: sha256 over the measures in a tournament's results.json.

Two files have the same digest if every workload, load, rule and seed measured the same values in the same order.
Names of workloads, rules and measures, the command, the code version and paths do not count. Compare the digests
before and after a change that must not affect results.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path

import msgspec

from loadtest.tournament.scores import Scores


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="results.json in the --out of `tournament`")


def run(args: argparse.Namespace) -> int:
    """Print the digest; return 2 if the file cannot be read."""
    try:
        print(results_digest(args.file.read_bytes()))
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    except msgspec.DecodeError as error:
        problem = f"is not a results.json of `python -m loadtest tournament`: {error}"
    else:
        return 0
    sys.stderr.write(f"{args.file} {problem}\n")
    return 2


def results_digest(packed: bytes) -> str:
    """Return the sha256 of the values in a results.json, in hexadecimal.

    Raises:
        msgspec.DecodeError: `packed` is not such a file.
    """
    # Lists without names, in the file's order. Floats are encoded by their shortest exact form, so equal text means
    # equal bits.
    plain = [
        [
            workload.load_1_calls_per_s,
            workload.round_robin_calls_per_s,
            workload.calls,
            [[row.load, list(row.values.values())] for row in workload.rows],
        ]
        for workload in msgspec.json.decode(packed, type=Scores).workloads
    ]
    return hashlib.sha256(msgspec.json.encode(plain)).hexdigest()
