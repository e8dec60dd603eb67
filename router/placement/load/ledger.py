"""The load of every placed request, from the decision until its lifecycle events release it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from backends.worker import LoadReport
from router.placement.learning.decode_step_time import WorkCounter
from router.placement.load.running import LoadReservation, ReservationStage, RunningRequests
from router.placement.load.shared_load import ReservedLoad, SharedAccount


@dataclass(slots=True, eq=False, repr=False)
class LoadAccount:
    """The load reserved on one candidate: P (`queued_tokens`), B (`running_requests`) and K (`kv_tokens`).

    Prefills are assumed to run first come, first served, as in vLLM's default scheduler. `head_since_s` is the
    earliest time at which the oldest unfinished one can have started. The end of `unseen` prefills is not visible.
    `arriving` requests wait for KV cache from another worker. The worker serves others meanwhile, so their tokens are
    queued, and they have no place in the queue: the time that a transfer takes does not make a worker look stalled.
    The decode side of a KV handover is none of them: its context counts as decoding at once.
    `shared` is this process's row in the shared ledger; None if there is only one process. `running` holds the requests
    and the idle context. Each change sets `changed`, and the first one after a reset adds `slot` to `changes`.
    """

    slot: int = 0
    changes: list[int] = field(default_factory=list)
    changed: bool = False
    running: RunningRequests = field(default_factory=RunningRequests)
    queue: dict[LoadReservation, None] = field(default_factory=dict)
    unseen: int = 0
    arriving: int = 0
    queued_tokens: int = 0
    queued_attention: float = 0.0
    running_requests: int = 0
    kv_tokens: int = 0
    decode_tokens: int = 0
    head_since_s: float = 0.0
    freed_s: float = 0.0
    unreserved: UnreservedLoad = field(default_factory=lambda: UnreservedLoad())
    shared: SharedAccount | None = None
    _work_counter: WorkCounter = field(default_factory=WorkCounter)

    @property
    def queued_requests(self) -> int:
        return len(self.queue)

    @property
    def held_share(self) -> float:
        """The size of the context with shared context counted once, as a fraction of `kv_tokens`."""
        return 1.0 - self.running.shared_tokens / self.kv_tokens if self.kv_tokens else 1.0

    def running_share(self, hashes: Sequence[int], blocks: int) -> float:
        return self.running.alike(hashes, blocks) / self.running_requests if self.running_requests else 0.0

    @property
    def head(self) -> LoadReservation | None:
        return next(iter(self.queue), None)

    def change(self) -> None:
        if not self.changed:
            self.changed = True
            self.changes.append(self.slot)

    def reserve(self, reservation: LoadReservation) -> None:
        self.change()
        others = 0 if self.shared is None else self.shared.other_processes().decode_tokens
        self._work_counter.set_context(self.decode_tokens + others, reservation.at_s)
        if reservation.arrives:
            self.arriving += 1
        else:
            if not self.queue:
                self.head_since_s = reservation.at_s
            self.queue[reservation] = None
            self.unseen += not reservation.streams
        self.queued_tokens += reservation.uncached_tokens
        self.queued_attention += reservation.attention
        self.running_requests += 1
        self.kv_tokens += reservation.context_tokens
        self.running.add(reservation)
        if self.shared is not None:
            self.shared.publish(self)

    def prefilled(self, reservation: LoadReservation, now_s: float) -> bool:
        """End the request's prefill, and the earlier prefills whose end is not visible.

        Return False if the prefill had ended already.
        """
        if reservation.stage is not ReservationStage.PREFILL:
            return False
        self.change()
        if reservation.streams and not reservation.arrives:
            self._start_unseen(reservation, now_s)
        self._start_decode(reservation, now_s)
        if self.shared is not None:
            self.shared.publish(self)
        return True

    def _start_unseen(self, reservation: LoadReservation, now_s: float) -> None:
        unseen: list[LoadReservation] = []
        for earlier in self.queue:
            if earlier is reservation:
                break
            if not earlier.streams:
                unseen.append(earlier)
        for earlier in unseen:
            self._start_decode(earlier, now_s)

    def progressed(self, reservation: LoadReservation, output_tokens: int) -> None:
        """Record that the request has produced `output_tokens` in total; a smaller number than before is ignored."""
        grown = output_tokens - reservation.output_tokens
        if grown <= 0 or reservation.stage is ReservationStage.RELEASED:
            return
        if not self.changed:  # inline, because this runs once per streamed token
            self.change()
        reservation.output_tokens = output_tokens
        reservation.context_tokens += grown
        self.kv_tokens += grown
        if reservation.stage is ReservationStage.DECODE:
            self.decode_tokens += grown
        if self.shared is not None:
            self.shared.publish(self)

    def release(self, reservation: LoadReservation, now_s: float, idle_s: float = 0.0) -> bool:
        """Release the request's load; return False if it was released before. Its context stays idle for `idle_s`."""
        if reservation.stage is ReservationStage.RELEASED:
            return False
        self.change()
        if reservation.stage is ReservationStage.PREFILL:
            self._leave_queue(reservation, now_s)
        else:
            self._work_counter.ended(reservation.context_tokens - reservation.output_tokens, now_s)
            self.decode_tokens -= reservation.context_tokens
        reservation.stage = ReservationStage.RELEASED
        self.running_requests -= 1
        self.kv_tokens -= reservation.context_tokens
        self.running.end(reservation, now_s, idle_s)
        if self.shared is not None:
            self.shared.publish(self)
        return True

    def answer_began(self, reservation: LoadReservation, now_s: float) -> None:
        reservation.held_token_s, reservation.done_tokens, reservation.done_attention = self._work_counter.read(now_s)

    def work_beside(self, reservation: LoadReservation, now_s: float) -> tuple[float, float, float]:
        """Return the work since the answer began: the decodes of all processes, and the prefills of this one."""
        held_token_s, tokens, attention = self._work_counter.read(now_s)
        return (
            held_token_s - reservation.held_token_s,
            tokens - reservation.done_tokens,
            attention - reservation.done_attention,
        )

    def _start_decode(self, reservation: LoadReservation, now_s: float) -> None:
        self._leave_queue(reservation, now_s)
        self._work_counter.began(
            reservation.context_tokens - reservation.output_tokens,
            reservation.uncached_tokens,
            reservation.attention,
            now_s,
        )
        reservation.stage = ReservationStage.DECODE
        self.decode_tokens += reservation.context_tokens

    def _leave_queue(self, reservation: LoadReservation, now_s: float) -> None:
        if reservation.arrives:
            self.arriving -= 1
        else:
            if self.head is reservation:
                self.head_since_s = self.freed_s = now_s
            del self.queue[reservation]
            self.unseen -= not reservation.streams
        self.queued_tokens -= reservation.uncached_tokens
        left = self.queue or self.arriving
        self.queued_attention = self.queued_attention - reservation.attention if left else 0.0

    def statistics(self) -> dict[str, Any]:
        return {
            "queued_requests": len(self.queue),
            "queued_tokens": self.queued_tokens,
            "running_requests": self.running_requests,
            "kv_tokens": self.kv_tokens,
            "foreign_requests": self.unreserved.requests,
        }


class UnreservedLoad:
    """Load that a worker reports and the gateway did not reserve: max(0, reported - reserved).

    The smaller of the last two reports counts, since a request that has just ended may still be in a report. The
    weight halves with every report interval without a report, so that the load fades if the scraper stops.
    """

    __slots__ = ("_at_s", "_interval_s", "_last", "kv_tokens", "requests", "waiting")

    def __init__(self) -> None:
        self.requests = 0
        self.waiting = 0
        self.kv_tokens = 0
        self._at_s: float | None = None
        self._interval_s = 0.0
        self._last = (0, 0, 0)

    def observe(
        self, report: LoadReport, reserved: ReservedLoad, capacity_tokens: int, now_s: float, *, kv_moves: bool = False
    ) -> None:
        """Compare a report with the load reserved at this moment.

        vLLM reports requests that wait for KV cache as waiting, and they are in no queue here. So where `kv_moves`
        between workers, no more requests wait than are from elsewhere.
        """
        requests = max(0, report.running + report.waiting - reserved.running_requests)
        waiting = max(0, report.waiting - reserved.queued_requests)
        seen = (
            requests,
            min(requests, waiting) if kv_moves else waiting,
            max(0, round(report.kv_usage * capacity_tokens) - reserved.kv_tokens),
        )
        if self._at_s is not None:
            self._interval_s = now_s - self._at_s
            self.requests, self.waiting, self.kv_tokens = (min(pair) for pair in zip(seen, self._last, strict=True))
        self._last = seen
        self._at_s = now_s

    @property
    def reported(self) -> tuple[float, float]:
        """The time of the last report, and the time between the last two; 0 if unknown."""
        return (0.0 if self._at_s is None else self._at_s), self._interval_s

    def weight(self, now_s: float) -> float:
        if self._at_s is None or self._interval_s <= 0.0:
            return 0.0
        missed = (now_s - self._at_s) / self._interval_s - 1.0
        return 1.0 if missed <= 0.0 else 0.5**missed
