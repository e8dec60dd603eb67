"""Figures and names as the page writes them."""

from __future__ import annotations

from loadtest.lab.comparison import Standing
from loadtest.lab.findings import verdict
from loadtest.tournament.scores import Scores

MARKS = {"best": " \\*", "not inferior": " =", "worse": " -"}


def figure(one: Standing, form: str) -> str:
    """A mean with its interval and its mark."""
    half = "" if one.half is None else f" ±{one.half:{form}}"
    return f"{one.mean:{form}}{half}{MARKS.get(verdict(one), '')}"


def behind(one: Standing) -> str:
    """How much worse than the best, with the paired interval."""
    half = "" if one.difference_half is None else f" ±{one.difference_half * 100:.1f}"
    return f"{one.difference * 100:.1f}{half} %"


def name(scores: Scores, policy: str) -> str:
    """A rule's; the judged one's is bold."""
    return f"**`{policy}`**" if policy == scores.judged else f"`{policy}`"
