"""``python -m loadtest sim``: routing rules judged on a trace, in virtual time over the gateway's own core.

Every rule is asked the same, seed by seed, at fractions of the load at which the fleet saturates: the arrival rate at
which lpwl's 90th percentile of TTFT crosses the service level, found by bisection first. Finished runs are kept in
--out at once; Ctrl-C loses none, and the same command resumes. There stand then results.json, cells.csv, plots and
report.html, which opens offline.
"""

from __future__ import annotations

import argparse

from loadtest.lab import flags


def register(parser: argparse.ArgumentParser) -> None:
    """Add its options."""
    flags.register(parser)


def run(args: argparse.Namespace) -> int:
    """Run what is missing, write everything, print the tables."""
    from loadtest.lab.run import run as start  # late: other commands' help must not wait for it

    return start(args)
