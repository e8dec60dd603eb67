"""``python -m loadtest tournament``: compare all rules on six workloads, and write a page with the ranking.

The workloads are the conversation trace, agents, a hot prompt, shared prefixes, documents beside chats, and requests
without reuse. Each is played at five loads over ten seeds of 20-minute windows; --quick plays two loads, three seeds
and five minutes. Load 1.0 is defined as in `python -m loadtest sim`. The command
stores each finished run in --out; after Ctrl-C it resumes. It then writes tournament.md,
plots and results.json.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from loadtest.arguments import above_zero, positive
from loadtest.lab.flags import POLICIES, loads, policies, register_runs
from loadtest.tournament.contests import CONTESTS
from policies.registry import BUILT_IN

WORKLOADS = [contest.name for contest in CONTESTS]


def register(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    traces = "folder with conversation_trace.jsonl[.gz|.zst]; without it that workload is left out"
    add("--traces", type=Path, metavar="DIR", help=traces)
    add("--quick", action="store_true", help="fewer loads and seeds, shorter windows; not for publication")
    names = f"workloads to play, of {', '.join(WORKLOADS)}"
    add("--workload", type=workloads, default=WORKLOADS, metavar="NAME[,NAME...]", help=names)
    rules = "rules to compare; the page lists where the first one loses (default: all built in, marginal_cost first)"
    add("--policy", type=policies, default=list(BUILT_IN), metavar=POLICIES, help=rules)
    add("--load", type=loads, metavar="L[,L...]", help="loads (default 0.3,0.6,0.8,0.95,1.05)")
    add("--seeds", type=positive, metavar="K", help="number of seeds (default 10, with --quick 3)")
    add("--window-s", type=above_zero, metavar="S", help="length of a window (default 1200, with --quick 300)")
    out = "folder for page, plots and results; an earlier run resumes (default %(default)s)"
    add("--out", type=Path, default=Path("tournament"), metavar="DIR", help=out)
    register_runs(parser)


def workloads(text: str) -> list[str]:
    names = list(dict.fromkeys(name for name in text.split(",") if name))
    wrong = [name for name in names if name not in WORKLOADS]
    if wrong or not names:
        raise argparse.ArgumentTypeError(f"{(wrong or [text])[0]!r} is no workload; there are {', '.join(WORKLOADS)}")
    return names


def run(args: argparse.Namespace) -> int:
    """Play the missing runs, write the files, print the ranking; return the exit code."""
    from loadtest.tournament.run import tournament  # imported here so that other commands' help need not wait

    return tournament(args)
