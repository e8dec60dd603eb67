"""The conditions that hold now, and since when."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from router.diagnosis.condition import Condition
from router.diagnosis.conditions import CONDITIONS
from router.diagnosis.signals import MetricsSeen
from router.metrics.instruments import Labels
from router.telemetry.snapshot import Snapshot

SUBJECTS_KEPT: Final = 1_000
"""Subjects of one condition of which the times are kept."""


@dataclass(frozen=True, slots=True)
class Holding:
    """A condition that holds for some subjects, named by their labels, with the value that shows it for the first.
    `since_s` is in seconds since 1970.
    """

    condition: Condition
    subjects: Sequence[str]
    value: float
    since_s: float


class Standing:
    """The conditions that hold at the metrics last observed."""

    def __init__(self, clock: Callable[[], float] = time.time, conditions: Sequence[Condition] = CONDITIONS) -> None:
        self._clock = clock
        self._conditions = [one for one in conditions if one.finds]
        self._seen = MetricsSeen()
        self._since: dict[str, dict[Labels, float]] = {}
        self._values: dict[str, dict[Labels, float]] = {}
        self._further: dict[str, float] = {}

    def observe(self, snapshot: Snapshot) -> None:
        """Take the metrics of now. A condition that held before keeps its time."""
        self._seen.now, self._seen.at_s = snapshot, self._clock()
        for condition in self._conditions:
            values = dict(condition.watched.read(self._seen))
            before = self._since.get(condition.name, {})
            kept = list(values)[:SUBJECTS_KEPT]
            self._since[condition.name] = {key: before.get(key, self._seen.at_s) for key in kept}
            self._values[condition.name] = values

    def holding(self) -> list[Holding]:
        """Return what has held for long enough to be a finding."""
        found = [one for condition in self._conditions if (one := self._holding(condition)) is not None]
        names = {one.condition.name for one in found}
        return [one for one in found if one.condition.implied_by not in names]

    def _holding(self, condition: Condition) -> Holding | None:
        limit_s = self._seen.at_s - condition.finding_after_s
        since = {key: at_s for key, at_s in self._since.get(condition.name, {}).items() if at_s <= limit_s}
        if not since:
            return None
        value = self._values[condition.name][next(iter(since))]
        return Holding(condition, ["/".join(key) for key in since if key], value, min(since.values()))

    def since(self, checks: Iterable[str]) -> dict[str, float]:
        """Return since when each of further checks has found something. Give all of them at each look."""
        now_s = self._clock()
        self._further = {name: self._further.get(name, now_s) for name in checks}
        return self._further
