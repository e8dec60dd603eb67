"""A watch on prefill workers for KV blocks that do not come back after a KV handover.

A worker's report says how much of its KV cache is in use. Reserved requests explain a part, and prompts that were
handed over and not read yet another. What is left in every report for longer than a lease is stuck: a bug of the
worker or its connector, which only a restart ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from math import inf, isfinite

from backends.worker import LoadReport
from policies.view import WorkerId
from router.config.model import HandoverConfig
from router.placement.fleet.endpoints import PREFILL, Candidate
from router.placement.load.shared_load import ReservedLoad, SharedAccount

MOST_HANDED = 4_096
"""Prompts of one worker that are handed over and not read. Beyond it the worker is not judged."""
_MOST_WATCHED = 4_096
_LEAST_REPORTS = 3
_MOST_REPORTS = 1_024
_SPARE_BLOCKS = 2
"""Blocks that a report may have beyond its requests and one more for each, because its share is rounded."""

HANDOVER_FIRST_EVENT_S = 60.0
"""Longest time from the end of the prefill to the first event of the answer, or to the first event of a request that
pulls. Then one worker computes the whole request."""


class _PinnedWorker:
    """One worker: when each handed over prompt counts no more, with its tokens, and what reports left unexplained.

    `shared` is this process's row in the ledger that several processes share.
    """

    __slots__ = ("handed", "shared", "unexplained")

    def __init__(self) -> None:
        self.handed: dict[int, tuple[float, int]] = {}
        self.shared: SharedAccount | None = None
        self.unexplained: deque[tuple[float, int]] = deque(maxlen=_MOST_REPORTS)

    @property
    def handed_tokens(self) -> float:
        """Tokens of the prompts that this process has handed over; infinite if it does not know them all."""
        return inf if len(self.handed) > MOST_HANDED else sum(tokens for _, tokens in self.handed.values())

    def publish(self) -> None:
        """Let the other processes know `handed_tokens`."""
        if self.shared is not None:
            self.shared.handed(self.handed_tokens)

    def forget(self, now_s: float) -> float:
        """Forget prompts that count no more. Return the tokens of the others, those of all processes together."""
        self.handed = {plan: one for plan, one in self.handed.items() if one[0] > now_s}
        self.publish()
        return self.handed_tokens + (0.0 if self.shared is None else self.shared.handed_by_other_processes())


class PinnedBlocks:
    """Compares the reports of prefill workers with what the processes of this host know of them.

    Each process judges the workers on which it has handed over a prompt itself. A worker with requests of others is
    not judged.
    """

    def __init__(self, config: HandoverConfig, *, watches: bool = True) -> None:
        """Unless it `watches`, nothing is recorded."""
        self._watches = watches
        self._held_s = HANDOVER_FIRST_EVENT_S + config.lease_s
        """The longest time from the end of a prefill until its blocks must be free."""
        self._window_s = config.lease_s + config.lease_margin_s
        self._watched: dict[WorkerId, _PinnedWorker] = {}

    def handed(
        self, worker: WorkerId, plan: int, tokens: int, now_s: float, shared: SharedAccount | None = None
    ) -> None:
        """Record that a prefill has ended, and its blocks wait for the decode worker. `shared` is the worker's row."""
        if not self._watches:
            return
        watched = self._watched.get(worker)
        if watched is None:
            watched = self._watched[worker] = _PinnedWorker()
            if len(self._watched) > _MOST_WATCHED:  # workers that left long ago
                self._watch_no_more(next(iter(self._watched)))
        if len(watched.handed) <= MOST_HANDED:
            watched.handed[plan] = now_s + self._held_s, tokens
        watched.shared = shared
        watched.publish()

    def read(self, worker: WorkerId, plan: int) -> None:
        watched = self._watched.get(worker)
        if watched is not None and watched.handed.pop(plan, None) is not None:
            watched.publish()

    def reported(self, candidate: Candidate, report: LoadReport, reserved: ReservedLoad, now_s: float) -> None:
        watched = self._watched.get(candidate.id)
        if watched is None:
            return
        if candidate.endpoint.role != PREFILL or not candidate.live:
            self._watch_no_more(candidate.id)
            return
        handed_tokens = watched.forget(now_s)
        requests = report.running + report.waiting
        if requests > reserved.running_requests or not isfinite(handed_tokens):
            return
        spare_tokens = (_SPARE_BLOCKS + reserved.running_requests) * candidate.block_tokens
        known_tokens = reserved.kv_tokens + round(handed_tokens) + spare_tokens
        left_tokens = max(0, round(report.kv_usage * candidate.capacity_tokens) - known_tokens)
        watched.unexplained.append((now_s, left_tokens))
        while len(watched.unexplained) > 1 and watched.unexplained[1][0] <= now_s - self._window_s:
            watched.unexplained.popleft()

    def _watch_no_more(self, worker: WorkerId) -> None:
        watched = self._watched.pop(worker)
        watched.handed.clear()
        watched.publish()

    def stuck_tokens(self, worker: WorkerId) -> int | None:
        """Return the tokens of KV cache that stayed unexplained for longer than a lease; None if that is not known."""
        watched = self._watched.get(worker)
        if watched is None or len(watched.unexplained) < _LEAST_REPORTS:
            return None
        reports = watched.unexplained
        if reports[-1][0] - reports[0][0] < self._window_s:
            return None
        return min(tokens for _, tokens in reports)

    def statistics(self, present: Iterable[WorkerId]) -> dict[str, int]:
        found = {worker: self.stuck_tokens(worker) for worker in present}
        return {str(worker): tokens for worker, tokens in found.items() if tokens is not None}
