from __future__ import annotations

from collections.abc import Callable


class Device:
    """A queue of steps on a clock of its own.

    A step begins at its launch or at the end of the step before it, whichever is later. So async scheduling, which
    launches a step while another runs, loses no time between the two. `wait` takes the end time that `launch` returned.
    """

    def __init__(self, time_scale: float, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._time_scale = time_scale
        self._clock = clock
        self._sleep = sleep
        self._busy_until_s = 0.0

    def launch(self, step_s: float) -> float:
        """Launch a step of `step_s` modelled seconds; return the time of its end on the clock."""
        start_s = max(self._clock(), self._busy_until_s)
        self._busy_until_s = start_s + step_s * self._time_scale
        return self._busy_until_s

    def wait(self, end_s: float) -> None:
        left_s = end_s - self._clock()
        if left_s > 0:
            self._sleep(left_s)
