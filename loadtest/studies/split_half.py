"""Split-half validation: choose parameters on half of the workloads, and judge them on the other half.

``python -m loadtest.studies.split_half DIR [NAME=DIR ...]`` reads the results of `python -m loadtest tournament` in
DIR. Its first rule is the shipped one, and the others are candidates. Each further NAME=DIR adds that folder's first
rule as NAME, for constants that are not parameters. For each measure, every half of the workloads chooses the rule with
the best mean logarithm over its cells. The output compares that rule with the shipped one on the other half.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from math import log
from pathlib import Path
from statistics import fmean

from loadtest.lab.findings import Measure
from loadtest.tournament import scores

Excess = dict[str, dict[str, float]]
"""By rule and workload: mean logarithm of the rule's figures over the shipped rule's, signed so that more is worse."""


def values(result: scores.Scores, policy: str) -> dict[tuple[str, float, str], float]:
    """Return means over the seeds, by workload, load and measure."""
    return {
        (workload.name, row.load, measure.name): fmean(row.values[measure.name])
        for workload in result.workloads
        for row in workload.rows
        if row.policy == policy
        for measure in scores.RANKED
    }


def excess(found: dict[str, dict[tuple[str, float, str], float]], shipped: str, measures: Sequence[Measure]) -> Excess:
    """Compare each rule with the shipped one."""
    names = sorted({name for name, _, _ in found[shipped]})
    return {
        rule: {
            name: fmean(
                (-1 if one.higher_is_better else 1) * log(figures[key] / found[shipped][key])
                for one in measures
                for key in figures
                if key[0] == name and key[2] == one.name
            )
            for name in names
        }
        for rule, figures in found.items()
    }


def report(title: str, lost: Excess) -> None:
    """Print one measure's result for all workloads, and its result for the halves."""
    names = list(next(iter(lost.values())))
    whole = {rule: 100 * fmean(by_name.values()) for rule, by_name in lost.items()}
    print(f"{title}: " + ", ".join(f"{rule} {loss:+.1f} %" for rule, loss in whole.items()))
    chosen: Counter[str] = Counter()
    elsewhere = []
    for half in combinations(names, len(names) // 2):
        best = min(lost, key=lambda rule: fmean(lost[rule][name] for name in half))
        chosen[best] += 1
        elsewhere.append(100 * fmean(by for name, by in lost[best].items() if name not in half))
    print(f"  chosen by halves: {', '.join(f'{rule} {count}' for rule, count in chosen.most_common())}")
    print(f"  on the other half: {fmean(elsewhere):+.1f} %, from {min(elsewhere):+.1f} to {max(elsewhere):+.1f}")


def main() -> None:
    """Print the report of every measure, and that of all measures together."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="DIR", help="the shipped rule, and what might be")
    parser.add_argument("more", metavar="NAME=DIR", nargs="*", help="one more rule: the first of that folder's")
    asked = parser.parse_args()
    result = scores.read(Path(asked.folder) / scores.FILE)
    if len(result.workloads) < 2:
        parser.error(f"{asked.folder} has one workload, which has no halves")
    found = {policy: values(result, policy) for policy in result.policies}
    for extra in asked.more:
        name, _, folder = extra.partition("=")
        other = scores.read(Path(folder) / scores.FILE)
        found[name] = values(other, other.judged)
    for measure in scores.RANKED:
        report(measure.title, excess(found, result.judged, [measure]))
    report("all of them", excess(found, result.judged, scores.RANKED))


if __name__ == "__main__":
    main()
