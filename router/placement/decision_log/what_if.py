"""Decide again on the decisions that a process keeps in memory, with another policy.

The policy gets what the gateway's policy saw at each decision: the request, and the views of all candidates. Between
decisions it gets the lifecycle events that the records tell, older records included. It begins without state, and the
recorded choices made the load that it sees.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from typing import TypeAlias

from policies.spec import PolicySpec
from policies.view import FleetView, LifecycleEvent, LifecycleEventKind, WorkerView
from router.placement.decision_log.decisions import DecisionLog, DecisionRecord
from router.placement.decision_log.log_replay import Replayed, RunningPrompts, fresh

_Event: TypeAlias = tuple[float, LifecycleEventKind, DecisionRecord]
_LaterEvent: TypeAlias = tuple[float, int, int, LifecycleEventKind]
"""Its time, the place of its record, its place among the record's events, and its kind."""


class WhatIfRunsError(Exception):
    """Another what-if of this process is not over."""


class WhatIfs:
    """The what-ifs of one process. One runs at a time, because it shares the event loop with streams."""

    def __init__(self, log: DecisionLog) -> None:
        self._log = log
        self._runs = False

    @contextmanager
    def begin(self, spec: PolicySpec) -> Iterator[WhatIf]:
        """Give the decisions of this moment to a policy.

        Raises:
            PolicyError: the policy cannot be built.
            WhatIfRunsError: another one runs.
        """
        if self._runs:
            raise WhatIfRunsError
        self._runs = True
        try:
            yield WhatIf(self._log, spec)
        finally:
            self._runs = False


class WhatIf:
    """Iterate over the decisions that have the views of all candidates and that a policy made, oldest first.

    For every other record there is None, so that its reader may pause after each.
    `kept` counts the decisions in memory. `without_prompt` counts those of this replay whose hashes are no longer kept,
    so that the policy cannot tell prompts by their prefix there.
    """

    def __init__(self, log: DecisionLog, spec: PolicySpec) -> None:
        self._runner = fresh(spec.rule, spec)
        self._records = log.copied()
        self._running = RunningPrompts()
        self._again = [record for record in self._records if record.by_policy and record in log.whole]
        self._from = next((record.place for record in self._records if record in log.whole), (0.0, 0))
        self.kept = len(self._records)
        self.without_prompt = sum(record not in log.with_prompt for record in self._again)

    def __iter__(self) -> Iterator[Replayed | None]:
        for at_s, kind, record in self._events():
            placed = whole = None
            if kind is LifecycleEventKind.RESERVED:
                fleet = record.fleet.copied(running_share=self._running.share)
                if record.leg is None:  # no policy sees the fleet of a part of a KV handover
                    placed, whole = _placed(record, fleet), fleet if record.place >= self._from else None
                yield None if whole is None or not record.by_policy else self._decide(record, whole)
            self._running.observe(kind, record.worker, record.request)
            cached = record.reported_cached_tokens if kind is LifecycleEventKind.FINISHED else None
            self._runner.observe(LifecycleEvent(kind, record.request, record.worker, at_s, cached, placed, whole))

    @property
    def since_s(self) -> float | None:
        return self._again[0].at_s if self._again else None

    @property
    def failures(self) -> int:
        """Decisions at which the policy failed, so that the fallback chose."""
        return self._runner.fallbacks

    def _events(self) -> Iterator[_Event]:
        """Yield the events of all records in the order of their times, and of equal ones that of the records."""
        later: list[_LaterEvent] = []
        for place, record in enumerate(self._records):
            while later and later[0] < (record.at_s, place):
                yield self._later(later)
            yield record.at_s, LifecycleEventKind.RESERVED, record
            if record.ttft_s is not None:
                heappush(later, (record.at_s + record.ttft_s, place, 0, LifecycleEventKind.FIRST_TOKEN))
            if record.duration_s is not None:
                served = record.outcome.startswith("finished")
                kind = LifecycleEventKind.FINISHED if served else LifecycleEventKind.FAILED
                heappush(later, (record.at_s + record.duration_s, place, 1, kind))
        while later:
            yield self._later(later)

    def _later(self, later: list[_LaterEvent]) -> _Event:
        at_s, place, _, kind = heappop(later)
        return at_s, kind, self._records[place]

    def _decide(self, record: DecisionRecord, fleet: FleetView) -> Replayed:
        decision = self._runner.decide(record.request, fleet)
        held, holds = record.decision.hold_s > 0.0, decision.hold_s > 0.0
        return Replayed(record.policy, record.request, fleet, record.worker, decision.ranked[0], held, holds)


def _placed(record: DecisionRecord, fleet: FleetView) -> WorkerView | None:
    place = fleet.row_of(record.worker)
    return None if place is None else fleet.worker(place)
