"""When requests are due, in seconds from the beginning of the run. Equal seeds give equal times.

Gaps are drawn from a gamma distribution whose shape is the burstiness: 1 is a Poisson process, less is burstier, and
infinity is a constant rate. As in `vllm bench serve`, the times of a fixed number of requests are stretched so that the
last one is due at number / rate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, pairwise
from math import inf
from pathlib import Path

from loadtest.workload.draw import stream
from loadtest.workload.errors import WorkloadError
from loadtest.workload.rows import records


@dataclass(frozen=True, slots=True)
class Rates:
    """A rate in requests per second at each time: straight between the points, and constant after the last one."""

    points: tuple[tuple[float, float], ...]

    @classmethod
    def constant(cls, rate: float) -> Rates:
        return cls(((0.0, rate),))

    @classmethod
    def ramp(cls, start: float, end: float, length_s: float, exponential: bool) -> Rates:
        """Return a ramp; an exponential one is 32 straight pieces."""
        pieces = 32 if exponential else 1
        shares = [place / pieces for place in range(pieces + 1)]
        return cls(
            tuple(
                (share * length_s, start * (end / start) ** share if exponential else start + (end - start) * share)
                for share in shares
            )
        )

    @classmethod
    def series(cls, path: Path) -> Rates:
        """Read ``time_s`` and ``rate`` of each row of a CSV or JSONL file.

        Raises:
            WorkloadError: a row has no such fields, times do not grow, or there is a rate below 0 or none above it.
        """
        try:
            points = [(float(row["time_s"]), float(row["rate"])) for _, row in records(path)]
        except (KeyError, ValueError, TypeError):
            raise WorkloadError(f"{path}: each row of a rate series has the numbers time_s and rate") from None
        if any(earlier[0] >= later[0] for earlier, later in pairwise(points)):
            raise WorkloadError(f"{path}: time_s does not grow from row to row")
        if any(not 0.0 <= rate < inf for _, rate in points) or points[-1][1] <= 0.0:
            raise WorkloadError(f"{path}: a rate is below 0, or the last one is not above it")
        return cls(tuple(points))

    def at(self, work: float) -> float:
        """Return the time by which `work` requests are expected: the inverse of the rate's integral."""
        done = 0.0
        for (from_s, from_rate), (to_s, to_rate) in pairwise(self.points):
            here = (from_rate + to_rate) / 2.0 * (to_s - from_s)
            if done + here >= work and here > 0.0:
                return from_s + _solve(work - done, from_rate, (to_rate - from_rate) / (to_s - from_s))
            done += here
        last_s, rate = self.points[-1]
        return last_s + (work - done) / rate


def _solve(work: float, rate: float, growth: float) -> float:
    """Return t with rate * t + growth * t**2 / 2 = work."""
    root = max(0.0, rate * rate + 2.0 * growth * work) ** 0.5
    return 2.0 * work / (rate + root) if rate + root else 0.0


def arrivals(rates: Rates, burstiness: float, seed: int, count: int | None = None) -> Iterator[float]:
    """Yield the times of `count` requests, or times without end."""
    rng = stream(seed, "arrivals")

    def gaps() -> Iterator[float]:
        while True:
            yield 1.0 if burstiness == inf else rng.gammavariate(burstiness, 1.0 / burstiness)

    if count is None:
        work = 0.0
        for gap in gaps():
            work += gap
            yield rates.at(work)
        return
    drawn = list(islice(gaps(), count))
    scale = count / sum(drawn) if drawn else 1.0
    work = 0.0
    for gap in drawn:
        work += gap * scale
        yield rates.at(work)
