"""Numbers and names in the page's format."""

from __future__ import annotations

from loadtest.lab.comparison import Standing
from loadtest.lab.findings import verdict
from loadtest.tournament.scores import Scores

MARKS = {"best": " \\*", "not inferior": " =", "worse": " -"}


def figure(one: Standing, form: str) -> str:
    """Format a mean with its interval and its mark."""
    half = "" if one.half is None else f" ±{one.half:{form}}"
    return f"{one.mean:{form}}{half}{MARKS.get(verdict(one), '')}"


def behind(one: Standing) -> str:
    """Format how much worse it is than the best, with the paired interval."""
    half = "" if one.difference_half is None else f" ±{one.difference_half * 100:.1f}"
    return f"{one.difference * 100:.1f}{half} %"


def name(scores: Scores, policy: str) -> str:
    """Format a rule's name; the judged rule's is bold."""
    return f"**`{policy}`**" if policy == scores.judged else f"`{policy}`"
