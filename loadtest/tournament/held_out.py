"""The held-out check as text: all rules on one half of the workloads and on the other."""

from __future__ import annotations

from collections.abc import Iterator

from loadtest.tournament.figures import figure, name
from loadtest.tournament.overall import Halves, halves
from loadtest.tournament.scores import Scores


def section(scores: Scores) -> Iterator[str]:
    """Yield the paragraphs of the page's section."""
    found = halves(scores)
    if found is None:
        yield "Not possible: only workloads of one half were played."
        return
    titles = ["; ".join(one.title for one in scores.workloads if one.half == name) for name in found.names]
    pairs = len(scores.policies) * (len(scores.policies) - 1) // 2
    yield (
        f"Half {found.names[0]}: {titles[0]}. Half {found.names[1]}: {titles[1]}. Rules are ranked by goodput on each"
        f" half alone; {found.swaps} of {pairs} pairs of rules stand the other way round on the other half."
    )
    yield from (_chosen(found, half) for half in (0, 1))
    yield "\n".join(_half_table(scores, found))


def _chosen(found: Halves, half: int) -> str:
    """Describe how the rule that one half would choose does on the other half."""
    other = 1 - half
    best = found.tables[half][0]
    there, top = found.of(other, best.policy), found.tables[other][0]
    said = f"Chosen on half {found.names[half]}: `{best.policy}`. On half {found.names[other]} it is"
    if there.policy == top.policy:
        return f"{said} first too."
    behind = f"{top.goodput.mean:.3f} of `{top.policy}`"
    return (
        f"{said} number {found.place(other, best.policy)}, with a goodput of {there.goodput.mean:.3f} against {behind}."
    )


def _half_table(scores: Scores, found: Halves) -> Iterator[str]:
    columns = [f"half {name}: {what}" for name in found.names for what in ("place", "goodput", "mean TTFT, x best")]
    yield "| rule | " + " | ".join(columns) + " | places apart |"
    yield "|---|" + "---|" * (len(columns) + 1)
    for row in found.tables[0]:
        first, second = found.place(0, row.policy), found.place(1, row.policy)
        cells = [_half_cells(found, half, row.policy) for half in (0, 1)]
        yield f"| {name(scores, row.policy)} | {cells[0]} | {cells[1]} | {second - first:+d} |"


def _half_cells(found: Halves, half: int, policy: str) -> str:
    one = found.of(half, policy)
    return f"{found.place(half, policy)} | {figure(one.goodput, '.3f')} | {one.times['ttft_mean_ms']:.2f}"
