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


class _Row(msgspec.Struct, frozen=True):
    load: float
    calls: int
    values: dict[str, list[float]]


class _Workload(msgspec.Struct, frozen=True):
    load_1_calls_per_s: float
    round_robin_calls_per_s: float | None
    rows: list[_Row]


class _Results(msgspec.Struct, frozen=True):
    workloads: list[_Workload]


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="results.json in the --out of `tournament`")


def run(args: argparse.Namespace) -> int:
    """Print the digest; return 2 if the file cannot be read."""
    try:
        print(results_digest(args.file.read_bytes()))
    except OSError as error:
        return _refuse(f"{args.file} cannot be read: {error.strerror}")
    except msgspec.DecodeError as error:
        return _refuse(f"{args.file} is not a results.json of `python -m loadtest tournament`: {error}")
    return 0


def results_digest(packed: bytes) -> str:
    """Return the sha256 of the values in a results.json, in hexadecimal.

    Raises:
        msgspec.DecodeError: `packed` is not such a file.
    """
    results = msgspec.json.decode(packed, type=_Results)
    # Lists without names, in the file's order. Floats are encoded by their shortest exact form, so equal text means
    # equal bits.
    plain = [
        [
            workload.load_1_calls_per_s,
            workload.round_robin_calls_per_s,
            sum(row.calls for row in workload.rows),
            [[row.load, list(row.values.values())] for row in workload.rows],
        ]
        for workload in results.workloads
    ]
    return hashlib.sha256(msgspec.json.encode(plain)).hexdigest()


def _refuse(problem: str) -> int:
    sys.stderr.write(f"{problem}\n")
    return 2
