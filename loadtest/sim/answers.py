"""An answer on its way from a worker to its client, and the time of each token."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence

from backends.engine.engine import EngineRequestState, FinishReason

Follow = Callable[[int, FinishReason | None], None]
"""Told how many tokens have reached the asker, and the reason once the last one has. Told in time of the first and the
last one; of those between them when somebody looks (`EngineWorker.catch_up`)."""


class StepEnds:
    """End times of a worker's steps, past and looked ahead; their tokens arrive `later_s` later."""

    __slots__ = ("arrived", "ends_s", "later_s")

    def __init__(self, later_s: float) -> None:
        self.later_s = later_s
        self.ends_s = array("d")
        self.arrived = 0
        """Steps whose tokens were there when that was last looked at."""

    def look(self, now_s: float) -> bool:
        """Bring `arrived` up to date; False if nothing has come since. `now_s` is never less than before."""
        ends_s, later_s, before = self.ends_s, self.later_s, self.arrived
        if before == len(ends_s) or ends_s[before] + later_s > now_s:
            return False
        arrived = bisect_right(ends_s, now_s - later_s, before)
        # What counts is the sum; the difference may be off by its rounding.
        while arrived > before and ends_s[arrived - 1] + later_s > now_s:
            arrived -= 1
        while arrived < len(ends_s) and ends_s[arrived] + later_s <= now_s:
            arrived += 1
        self.arrived = arrived
        return True

    def statistics(self) -> dict[str, int]:
        """How many there are."""
        return {"steps": len(self.ends_s), "arrived": self.arrived}


class Answer:
    """One request's tokens as they reach its asker: `tokens` so far, each from a step of the worker.

    Which steps these are is kept in runs, since most answers get a token from every step from their first one on.
    """

    __slots__ = ("_runs", "_steps", "follow", "output_ids", "state", "tokens")

    def __init__(self, state: EngineRequestState, output_ids: Sequence[int], steps: StepEnds, follow: Follow) -> None:
        self.state = state
        self.output_ids = output_ids
        self.follow = follow
        self.tokens = 0
        self._steps = steps
        self._runs: list[tuple[int, int]] = []

    def comes(self, token: int, step: int) -> None:
        """Token number `token`, counted from 1, is made in that step, and if nothing else is said, later ones in the
        steps after it."""
        if self._runs:
            first_token, first_step = self._runs[-1]
            if token - first_token == step - first_step:
                return
        self._runs.append((token, step))

    def made_by(self, steps: int, most: int) -> int:
        """Tokens of the first `steps` steps, of which there are at most `most` in all."""
        for first_token, first_step in reversed(self._runs):
            if first_step < steps:
                return min(most, first_token + steps - first_step - 1)
            most = first_token - 1
        return 0

    def times_s(self, tokens: int) -> array[float]:
        """When its first `tokens` arrived."""
        ends_s, later_s = self._steps.ends_s, self._steps.later_s
        times_s = array("d")
        for first_token, first_step in reversed(self._runs):
            if first_token <= tokens:
                run = ends_s[first_step : first_step + tokens - first_token + 1]
                times_s = array("d", [end_s + later_s for end_s in run]) + times_s
                tokens = first_token - 1
        return times_s
