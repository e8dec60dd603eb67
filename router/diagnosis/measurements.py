"""Observes the requests and the load reports of one process, minute by minute."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from backends.vllm.histogram_bounds import ITL_S, TTFT_S
from backends.worker import LoadReport
from policies.view import FleetView, Residency, WorkerId
from router.diagnosis.measured import (
    LONG_PROMPT_TOKENS,
    TURNS,
    Measured,
    Moved,
    PromptsMeasured,
    WorkerMeasured,
    over_time,
)
from router.diagnosis.prefixes import HotPrefixes
from router.diagnosis.sessions import Sessions, Turn
from router.diagnosis.work import count_work, own_prefill_s, prefill_wait_s
from router.placement.fleet.endpoints import Candidate
from router.placement.tickets import Ticket
from router.telemetry.histogram import OUTPUT_TOKENS, PROMPT_TOKENS, count

MINUTE_S = 60.0
WINDOW_S = 600.0
"""How far the checks look back."""
SAMPLED = 8
"""Every eighth gap is counted, because counting all would cost too much."""

Levels = Mapping[tuple[str, str], tuple[int, int]]
"""Streams that met and that missed a service level, since the start, by route and target."""


@dataclass(slots=True)
class _Minute:
    number: int
    began_s: float
    levels: Levels
    measured: Measured = field(default_factory=Measured)


class Measurements:
    """Implements `router.placement.ticket_life.TrafficObserver`. Pass load reports to `load_reported`.

    `levels` returns the service levels so far. They look back over `window_s`, in whole minutes.
    """

    def __init__(self, levels: Callable[[], Levels] = dict, *, window_s: float = WINDOW_S) -> None:
        self._kept = max(1, round(window_s / MINUTE_S))
        self._levels = levels
        self._minutes: deque[_Minute] = deque(maxlen=self._kept + 1)
        self._now = Measured()
        self._until_s = -inf
        """When the minute of `_now` ends."""
        self._before: tuple[int, int, Measured] | None = None
        """The sum of whole minutes that was asked for last, with the numbers of its first one and of the present."""
        self._sessions = Sessions()
        self.prefixes = HotPrefixes()
        self._preemptions: dict[WorkerId, int] = {}
        self._long_until_s: dict[WorkerId, float] = {}
        """When the last long prefill of a worker ended."""

    def placed(self, ticket: Ticket, fleet: FleetView) -> None:
        """Find the turn that a request continues, when its first attempt is placed."""
        view = ticket.view
        before = self._sessions.before(view.session_id, view.block_hashes, view.prompt_tokens, view.block_tokens)
        ticket.turn = 1 if before is None else before.number + 1
        if before is None:
            self._count_prefix(ticket)
            return
        ticket.earlier_tokens, ticket.stayed = before.prompt_tokens, before.worker == ticket.candidate.id
        measured = self._minute(ticket.reservation.at_s)
        if ticket.stayed:
            measured.stayed += 1
            return
        why = _why_moved(before.worker, ticket.candidate.id, fleet)
        measured.moved[why] = measured.moved.get(why, 0) + 1

    def first_token(self, ticket: Ticket, now_s: float) -> None:
        """Note the end of a long prefill."""
        if ticket.reservation.uncached_tokens >= LONG_PROMPT_TOKENS:
            self._long_until_s[ticket.candidate.id] = now_s

    def progressed(self, ticket: Ticket, gaps_s: Sequence[float], now_s: float) -> None:
        """Count a sample of the latest gaps of a stream."""
        name, minute = ticket.candidate.id, self._minute(now_s)
        worker = minute.workers.get(name)
        if worker is None:
            worker = minute.workers[name] = WorkerMeasured()
        busy = ticket.load.account.queued_tokens >= LONG_PROMPT_TOKENS
        if not busy:
            until_s = self._long_until_s.get(name)
            busy = until_s is not None and until_s >= now_s - sum(gaps_s)
        counts = worker.beside if busy else worker.alone
        for gap_s in gaps_s[::SAMPLED]:
            counts[bisect_left(ITL_S, gap_s)] += 1

    def finished(self, ticket: Ticket, cached_tokens: int | None, output_tokens: int | None, now_s: float) -> None:
        """Count a served request. `cached_tokens` are those that the worker reported."""
        measured, view, own_s = self._minute(now_s), ticket.view, own_prefill_s(ticket)
        if ticket.record.leg is None or ticket.record.leg.part == "decode":  # the other part is no request of its own
            _count_prompt(measured.prompts[bisect_left(PROMPT_TOKENS, view.prompt_tokens)], ticket)
            if output_tokens is not None:
                count(measured.outputs, OUTPUT_TOKENS, output_tokens)
        worker = self._worker(measured, ticket.candidate.id)
        worker.requests += 1
        load, shared = ticket.load, ticket.load.account.shared
        if load.speed is not None:
            others = None if shared is None else shared.other_processes().work
            worker.utilisation += load.utilisation.share(load.speed, now_s, others)
        if ticket.record.ttft_s is not None:
            worker.first_tokens += 1
            worker.ttft_s += ticket.record.ttft_s
        cached = ticket.predicted_cached_tokens if cached_tokens is None else cached_tokens
        if cached is not None:
            worker.prompt_tokens += view.prompt_tokens
            worker.cached_tokens += cached
        count_work(worker.work, ticket, own_s, output_tokens, now_s)
        if ticket.turn and cached is not None:
            self._count_turn(measured, worker, ticket, cached)
        if ticket.turn:
            turn = Turn(ticket.turn, view.prompt_tokens, ticket.candidate.id)
            self._sessions.ended(view.session_id, view.block_hashes, turn)

    def load_reported(self, candidate: Candidate, report: LoadReport, now_s: float) -> None:
        """Count a worker's own report."""
        worker = self._worker(self._minute(now_s), candidate.id)
        worker.reports += 1
        worker.kv_usage += report.kv_usage
        worker.running += report.running
        worker.waiting += report.waiting
        if report.preemptions is not None:
            before = self._preemptions.get(candidate.id, report.preemptions)
            worker.preemptions += max(0, report.preemptions - before)
            self._preemptions[candidate.id] = report.preemptions

    def measured(self, now_s: float) -> Measured:
        """Return what was measured in the diagnosis's window, in whole minutes and the one that has begun."""
        self._minute(now_s)
        recent = [one for one in self._minutes if one.number > int(now_s / MINUTE_S) - self._kept]
        whole = over_time((self._whole_minutes(recent), self._now))
        whole.seconds = now_s - recent[0].began_s
        before = recent[0].levels
        for key, (met, missed) in self._levels().items():
            met_before, missed_before = before.get(key, (0, 0))
            whole.levels[key] = [met - met_before, missed - missed_before]
        return whole

    def recent(self, now_s: float) -> dict[str, WorkerMeasured]:
        """Return what was measured of each worker in this minute and the one before."""
        self._minute(now_s)
        last = [one for one in self._minutes if one.number >= int(now_s / MINUTE_S) - 1]
        return over_time(one.measured for one in last).workers

    def _minute(self, now_s: float) -> Measured:
        if now_s >= self._until_s:
            self._begin(int(now_s / MINUTE_S), now_s)
        return self._now

    def _whole_minutes(self, recent: Sequence[_Minute]) -> Measured:
        """Return the sum of all minutes but the present one, which may have thousands of workers."""
        first, last = recent[0].number, recent[-1].number
        before = self._before
        if before is None or before[:2] != (first, last):
            before = self._before = first, last, over_time(one.measured for one in recent[:-1])
        return before[2]

    def _begin(self, number: int, now_s: float) -> None:
        """Begin a minute. Workers without a report or a request in the minute before are forgotten."""
        if self._minutes:
            seen = self._minutes[-1].measured.workers
            self._preemptions = {name: value for name, value in self._preemptions.items() if name in seen}
            self._long_until_s = {name: value for name, value in self._long_until_s.items() if name in seen}
        self.prefixes.fade()
        minute = _Minute(number, now_s, self._levels())
        self._minutes.append(minute)
        self._now, self._until_s = minute.measured, (number + 1) * MINUTE_S

    def _worker(self, measured: Measured, name: WorkerId) -> WorkerMeasured:
        worker = measured.workers.get(name)
        if worker is None:
            worker = measured.workers[name] = WorkerMeasured()
        return worker

    def _count_prefix(self, ticket: Ticket) -> None:
        """Count what a first turn finds cached: others have computed it."""
        hashes, tokens = ticket.view.block_hashes, ticket.view.block_tokens
        blocks = (ticket.predicted_cached_tokens or 0) // tokens if tokens else 0
        if 0 < blocks <= len(hashes):
            self.prefixes.hit(hashes[blocks - 1], blocks * tokens)

    def _count_turn(self, measured: Measured, worker: WorkerMeasured, ticket: Ticket, cached_tokens: int) -> None:
        turn = measured.turns[min(ticket.turn, TURNS) - 1]
        turn.requests += 1
        turn.prompt_tokens += ticket.view.prompt_tokens
        turn.cached_tokens += cached_tokens
        if ticket.record.ttft_s is not None:
            turn.first_tokens += 1
            turn.ttft_s += ticket.record.ttft_s
        earlier = ticket.earlier_tokens
        if not earlier:
            return
        turn.earlier_tokens += earlier
        turn.reused_tokens += min(earlier, cached_tokens)
        if ticket.stayed:
            worker.earlier_tokens += earlier
            worker.evicted_tokens += max(0, earlier - cached_tokens - ticket.view.block_tokens)


def _count_prompt(prompts: PromptsMeasured, ticket: Ticket) -> None:
    prompts.requests += 1
    if ticket.record.ttft_s is not None:
        ttft_s = ticket.record.ttft_s + ticket.view.waited_s
        count(prompts.ttft, TTFT_S, ttft_s)
        prompts.ttft_s += ttft_s
    # That of a handed over prompt counts with its answer: if there is none, the request waits again elsewhere.
    computed = ticket if ticket.prefill is None else ticket.prefill
    wait_s = prefill_wait_s(computed, own_prefill_s(computed))
    if wait_s is not None:
        prompts.wait_s += max(0.0, computed.view.waited_s + wait_s)


def _why_moved(before: WorkerId, now: WorkerId, fleet: FleetView) -> Moved:
    earlier, chosen = fleet.row_of(before), fleet.row_of(now)
    if earlier is None or chosen is None:
        return Moved.UNAVAILABLE
    view = fleet.worker(earlier)
    if view.residency not in (Residency.EXACT, Residency.APPROXIMATE):
        return Moved.NOT_KNOWN
    return Moved.COST if view.cached_tokens > fleet.worker(chosen).cached_tokens else Moved.CACHE_LOST
