"""When answers that pass elsewhere have ended, as far as predictions and the workers' own reports tell.

A picker that ends its stream after the pick sees no answer. It keeps the load of the request until

- its predicted end: the wait and the prefill of the decision, then the expected length of the answer. Until lengths and
  speeds are known, `OUTPUT_TOKENS` at `TOKEN_S` each stand for them. A worker that still reports at least as many
  requests as are kept for it is believed: its overdue requests stay, up to `longest_s`;
- or a report of its worker, if that counts fewer requests than are kept there for longer than `ARRIVES_S`, or for
  longer than `OVERDUE_ARRIVES_S` if some are overdue: then those go first that are predicted to end first.

So the ledger follows the reports, seconds later, and leads them for new requests.
"""

from __future__ import annotations

import asyncio
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final, NamedTuple, Protocol

from backends.worker import LoadReport
from router.placement.fleet.endpoints import Candidate
from router.placement.fleet.fleet import Fleet
from router.placement.learning.output_length import OutputLengths
from router.placement.tickets import Ticket

OUTPUT_TOKENS: Final = 256
TOKEN_S: Final = 0.02
ARRIVES_S: Final = 2.0
"""A younger request may still be on its way to its worker."""
OVERDUE_ARRIVES_S: Final = 0.5
"""The same, to tell whether an overdue request has ended, which is likely in any case."""
_FRESH_S: Final = 3.0
"""Age up to which a report is believed; workers are read every second."""
_SWEEP_S: Final = 0.1
_SLACK: Final = 1_000
MOST: Final = 200_000
"""Requests kept. Beyond that, the one that is due first is released."""


class Releasable(Protocol):
    def release(self) -> None:
        """Release the load. Idempotent."""


class _Kept(NamedTuple):
    due_s: float
    number: int
    since_s: float
    candidate: Candidate
    request: Releasable


class PredictedEnds:
    def __init__(self, lengths: OutputLengths, fleet: Fleet, loop: asyncio.AbstractEventLoop, longest_s: float) -> None:
        self._lengths = lengths
        self._fleet = fleet
        self._loop = loop
        self._longest_s = longest_s
        self._numbers = count()
        self._kept: dict[int, _Kept] = {}
        self._by_candidate: dict[Candidate, dict[int, None]] = {}
        self._reported: dict[Candidate, tuple[float, int]] = {}
        """Time of the last report of each candidate with requests, and the requests that it counts."""
        self._due: list[tuple[float, int]] = []
        self._timer: asyncio.TimerHandle | None = None
        fleet.on_load.append(self.reported)

    def __len__(self) -> int:
        return len(self._kept)

    def answer_s(self, ticket: Ticket) -> float:
        """Return the predicted time from a placement to the end of its answer."""
        request, lengths = ticket.request, self._lengths
        tokens = lengths.expected_tokens(request) or min(OUTPUT_TOKENS, request.max_tokens or OUTPUT_TOKENS)
        return self.prefill_s(ticket) + (lengths.decode_s(tokens) or TOKEN_S * tokens)

    @staticmethod
    def prefill_s(ticket: Ticket) -> float:
        """Return the predicted time from a placement to its first token."""
        fleet = ticket.record.fleet
        row = fleet.row_of(ticket.candidate.id)
        if row is None:
            return 0.0
        worker = fleet.worker(row)
        return worker.queue_wait_s + worker.kv_wait_s + worker.prefill_s

    def keep(self, request: Releasable, candidate: Candidate, after_s: float) -> None:
        """Release `request`, which was placed on `candidate` now, when it has probably ended."""
        now_s, number, after_s = self._loop.time(), next(self._numbers), min(after_s, self._longest_s)
        self._kept[number] = _Kept(now_s + after_s, number, now_s, candidate, request)
        self._by_candidate.setdefault(candidate, {})[number] = None
        heappush(self._due, (now_s + after_s, number))
        if len(self._kept) > MOST:
            self._release_first()
        if self._timer is None:
            self._timer = self._loop.call_later(_SWEEP_S, self._sweep)

    def reported(self, candidate: Candidate, report: LoadReport, now_s: float) -> None:
        numbers = self._by_candidate.get(candidate)
        if numbers is None:
            return
        running = report.running + report.waiting
        self._reported[candidate] = now_s, running
        if len(numbers) <= running:
            return
        kept = sorted(self._kept[number] for number in numbers)
        overdue = [one for one in kept if one.due_s <= now_s]
        arrived = sum(one.since_s <= now_s - OVERDUE_ARRIVES_S for one in kept)
        ended = overdue[: max(0, arrived - running)]
        old = [one for one in kept[len(ended) :] if one.since_s <= now_s - ARRIVES_S]
        for one in (*ended, *old[: max(0, len(old) - running)]):
            self._release(one.number)

    def close(self) -> None:
        """Release all requests."""
        if self.reported in self._fleet.on_load:
            self._fleet.on_load.remove(self.reported)
        if self._timer is not None:
            self._timer.cancel()
        for number in list(self._kept):
            self._release(number)

    def _sweep(self) -> None:
        now_s = self._loop.time()
        self._drop_released()
        while self._due and self._due[0][0] <= now_s:
            _, number = heappop(self._due)
            kept = self._kept.get(number)
            if kept is None:
                continue
            if self._still_runs(kept, now_s):
                heappush(self._due, (now_s + _FRESH_S, number))
            else:
                self._release(number)
        self._timer = self._loop.call_later(_SWEEP_S, self._sweep) if self._kept else None

    def _still_runs(self, kept: _Kept, now_s: float) -> bool:
        """Return whether the worker counts at least the requests that are kept for it."""
        at_s, running = self._reported.get(kept.candidate, (0.0, 0))
        if not kept.candidate.live or now_s - at_s > _FRESH_S or now_s - kept.since_s >= self._longest_s:
            return False
        return running >= len(self._by_candidate[kept.candidate])

    def _drop_released(self) -> None:
        """Keep the heap near the size of what is kept, because reports release requests before they are due."""
        if len(self._due) > 2 * len(self._kept) + _SLACK:
            self._due = [(due_s, number) for due_s, number in self._due if number in self._kept]
            heapify(self._due)

    def _release_first(self) -> None:
        while self._due:
            _, number = heappop(self._due)
            if number in self._kept:
                self._release(number)
                return

    def _release(self, number: int) -> None:
        kept = self._kept.pop(number)
        numbers = self._by_candidate[kept.candidate]
        del numbers[number]
        if not numbers:
            del self._by_candidate[kept.candidate]
            self._reported.pop(kept.candidate, None)
        kept.request.release()
