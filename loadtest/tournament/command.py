"""``python -m loadtest tournament``: all rules on six workloads, and the page that says who won where.

Every rule on the conversation trace, agents, a hot prompt, shared prefixes, documents beside chats and requests that
share nothing, at five loads, over ten seeds of 20-minute windows; --quick takes two loads, three seeds and five
minutes. Load 1.0 is the lab's (python -m loadtest sim). How long it will take is said once a first cell of each
workload has been timed. Finished runs are kept in --out at once; Ctrl-C loses none, and the same command resumes.
There stand then tournament.md, its plots and results.json.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from loadtest.arguments import above_zero, positive, whole
from loadtest.lab.flags import loads, policies
from loadtest.tournament.contests import CONTESTS
from policies.registry import BUILT_IN


def register(parser: argparse.ArgumentParser) -> None:
    """Add its options."""
    parser.add_argument(
        "--traces", type=Path, metavar="DIR", help="where conversation_trace.jsonl[.gz|.zst] lies; without it, left out"
    )
    parser.add_argument("--quick", action="store_true", help="fewer loads and seeds, shorter windows: a look only")
    parser.add_argument(
        "--out", type=Path, default=Path("tournament"), metavar="DIR", help="page, plots and results; resumes"
    )
    parser.add_argument("--jobs", type=positive, default=os.cpu_count() or 1, metavar="N", help="processes")
    parser.add_argument(
        "--policy",
        type=policies,
        default=list(BUILT_IN),
        metavar="NAME[:key=value...][,NAME...]",
        help="these rules only; where the first one loses is listed (default: all of ours, marginal_cost first)",
    )
    parser.add_argument(
        "--workload",
        type=workloads,
        default=[contest.name for contest in CONTESTS],
        metavar="NAME[,NAME...]",
        help=f"these only, of {', '.join(contest.name for contest in CONTESTS)}",
    )
    parser.add_argument("--load", type=loads, metavar="L[,L...]", help="other loads than 0.3,0.6,0.8,0.95,1.05")
    parser.add_argument("--seeds", type=positive, metavar="K", help="so many of them, not 10 (or 3)")
    parser.add_argument(
        "--first-seed", type=whole, default=0, metavar="K", help="they are K, K + 1, ... (default 0, as published)"
    )
    parser.add_argument("--window-s", type=above_zero, metavar="S", help="other windows than of 1200 s (or 300)")


def workloads(text: str) -> list[str]:
    """Names of contests, each once."""
    known = [contest.name for contest in CONTESTS]
    names = list(dict.fromkeys(name for name in text.split(",") if name))
    wrong = [name for name in names if name not in known]
    if wrong or not names:
        raise argparse.ArgumentTypeError(f"{(wrong or [text])[0]!r} is no workload; there are {', '.join(known)}")
    return names


def run(args: argparse.Namespace) -> int:
    """Play what is missing, write everything, say who won."""
    from loadtest.tournament.run import run as start  # late: other commands' help must not wait for it

    return start(args)
