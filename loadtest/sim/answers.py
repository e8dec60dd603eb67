"""An answer on its way from a worker to its client, and the time of each token."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence

from backends.engine.engine import EngineRequestState, FinishReason

Follow = Callable[[int, FinishReason | None], None]
"""Called with the number of tokens that have reached the caller, and with the finish reason once the last one has. The
first and the last token are reported on time, the others when `EngineWorker.catch_up` is called."""


class StepEnds:
    """End times of a worker's steps, past and computed ahead; a step's tokens arrive `later_s` after its end."""

    __slots__ = ("arrived", "ends_s", "later_s")

    def __init__(self, later_s: float) -> None:
        self.later_s = later_s
        self.ends_s = array("d")
        self.arrived = 0
        """Number of steps whose tokens had arrived at the last `look`."""

    def look(self, now_s: float) -> bool:
        """Update `arrived`; return False if nothing new has arrived. `now_s` must never decrease."""
        ends_s, later_s, before = self.ends_s, self.later_s, self.arrived
        if before == len(ends_s) or ends_s[before] + later_s > now_s:
            return False
        arrived = bisect_right(ends_s, now_s - later_s, before)
        # The sum decides, as in the event queue; the difference above may be off by a rounding error.
        while arrived > before and ends_s[arrived - 1] + later_s > now_s:
            arrived -= 1
        while arrived < len(ends_s) and ends_s[arrived] + later_s <= now_s:
            arrived += 1
        self.arrived = arrived
        return True


class Answer:
    """One request's tokens as they reach the caller: `tokens` so far, each from one step of the worker.

    The steps are kept as runs, since most answers get a token from every step after their first one.
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
        """Note that `step` makes token number `token`, counted from 1.

        Later tokens come from the steps after it, unless another call says otherwise.
        """
        if self._runs:
            first_token, first_step = self._runs[-1]
            if token - first_token == step - first_step:
                return
        self._runs.append((token, step))

    def made_by(self, steps: int, most: int) -> int:
        """Return how many tokens the first `steps` steps have made; `most` is the upper limit."""
        for first_token, first_step in reversed(self._runs):
            if first_step < steps:
                return min(most, first_token + steps - first_step - 1)
            most = first_token - 1
        return 0

    def times_s(self, tokens: int) -> array[float]:
        """Return the arrival times of the first `tokens` tokens."""
        ends_s, later_s = self._steps.ends_s, self._steps.later_s
        times_s = array("d")
        for first_token, first_step in reversed(self._runs):
            if first_token <= tokens:
                run = ends_s[first_step : first_step + tokens - first_token + 1]
                times_s = array("d", [end_s + later_s for end_s in run]) + times_s
                tokens = first_token - 1
        return times_s
