"""``python -m loadtest sim``: compare routing rules on a trace, in virtual time over the gateway's own core.

Every rule gets equal requests, seed by seed, at fractions of load 1.0. Load 1.0 is the arrival rate at which the 90th
percentile of TTFT under lpwl crosses the SLO; a bisection finds it first. The command stores each finished run in
--out. After Ctrl-C, the same command resumes. It writes sim.md, plots and results.json, and prints the page.
"""

from __future__ import annotations

import argparse

from loadtest.lab.flags import register

__all__ = ["register", "run"]


def run(args: argparse.Namespace) -> int:
    """Run the missing cells, write the files, print the page; return the exit code."""
    from loadtest.tournament.run import sim  # imported here so that other commands' help need not wait

    return sim(args)
