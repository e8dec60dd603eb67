"""The records of decisions: the candidates' views, the choice, the reason and the outcome."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from copy import copy
from itertools import islice
from typing import Literal, NamedTuple

import msgspec

from policies.view import FACTS, Decision, FleetView, RequestView, Residency, WorkerId, WorkerView
from router.placement.fleet.endpoints import Candidate, FleetEndpoint
from router.placement.load.views import Found
from router.residency.exact.difference import Difference

CANDIDATES_KEPT = 524_288
"""Candidates in the log as arrays: those of 1,000 decisions among 512 workers. With costs and terms about 85 MB."""
_ARRAYS_PER_VIEW = 4
"""Candidates as arrays that take as much memory as one view."""
HASHES_KEPT = 131_072
"""Hashes of prompts in the log, at most 6 MB: those of a thousand prompts of 2,000 tokens."""


_HIDDEN_FACTS = ("queued_requests", "decode_externality_s", "kv_wait_s")
"""Facts that the admin API does not show."""


class HandoverLeg(NamedTuple):
    """A part of a KV handover: the prefill, or the decode after it.

    `plan` is the same for all parts of one handover: the `ticket_id` of the decode. `worker` has the other part.
    """

    part: Literal["prefill", "decode"]
    plan: int
    worker: WorkerId

    def to_builtins(self) -> dict[str, object]:
        """Return the part for the admin API."""
        return {"leg": self.part, "plan": self.plan, "with_worker": self.worker}


class Seam(msgspec.Struct):
    """Where one worker's answer ends, and another worker's goes on. The records of both attempts have it.

    `trigger` is what ended the first, and `kept_tokens` of its answer stay. `outcome` is "pending" until text of the
    other worker reaches the client, then "resumed", or else "failed", "left" or why the answer could not go on.
    """

    trigger: str
    from_worker: WorkerId
    kept_tokens: int
    to_worker: WorkerId | None = None
    outcome: str = "pending"


UNDECIDED = Decision((), "")


class DecisionRecord(msgspec.Struct):
    """One decision: what was seen, what was decided, and, once it is carried out, the outcome.

    Views are kept unchanged, and turned into text only on request. Until the decision is carried out, `candidates` are
    those of `fleet`, `found` is their cached prefixes, and `trial` is the half-open endpoint that must be chosen.
    `counted` says whether the prompt's tokens were counted and not estimated. `outcome` is "running" until the attempt
    ends, then "finished", "failed: ..." or "cancelled". `residency` says how far `predicted_cached_tokens` could be
    trusted. `difference` explains why the response reported another number. `by_policy` is False if the policy had no
    choice: the trial of a worker that has failed, or a part of a KV handover. `leg` is set for the latter. `migration`
    says whether the answer can go on elsewhere: "tracked", or why not; None where no feature tracks it.
    """

    at_s: float
    route: str
    policy: str
    counted: bool
    request: RequestView
    fleet: FleetView
    decision: Decision
    candidates: tuple[Candidate, ...] = ()
    trial: FleetEndpoint | None = None
    found: Found | None = None
    ticket_id: int = 0
    attempt: int = 1
    worker: WorkerId = WorkerId("")
    residency: Residency = Residency.UNKNOWN
    predicted_cached_tokens: int | None = None
    reported_cached_tokens: int | None = None
    difference: Difference | None = None
    ttft_s: float | None = None
    duration_s: float | None = None
    outcome: str = "running"
    by_policy: bool = True
    leg: HandoverLeg | None = None
    migration: str | None = None
    seams: tuple[Seam, ...] = ()

    @property
    def place(self) -> tuple[float, int]:
        """The place in the log of one process: a later decision has a greater one."""
        return self.at_s, self.ticket_id

    def carried_out(self, ticket_id: int, attempt: int, worker: WorkerView, predicted: int | None) -> None:
        """Record the placement on `worker`, and drop what only a placement needs."""
        self.ticket_id = ticket_id
        self.attempt = attempt
        self.worker = worker.id
        self.residency = worker.residency
        self.predicted_cached_tokens = predicted
        self.candidates, self.trial, self.found = (), None, None

    def add_seam(self, seam: Seam) -> None:
        if seam not in self.seams:
            self.seams += (seam,)

    def close(self, outcome: str, now_s: float) -> None:
        self.outcome = outcome
        self.duration_s = now_s - self.at_s

    def forget_prompt(self) -> None:
        """Drop the prompt's hashes, because a thousand long prompts would need much memory."""
        self.request = msgspec.structs.replace(self.request, block_hashes=())

    def thin(self) -> None:
        """Drop all candidates but the chosen one."""
        decision, worker = self.decision, self.worker
        place = 0 if decision.ranked[0] == worker else decision.ranked.index(worker)
        terms = decision.terms.get(worker)
        chosen = self.fleet.row_of(worker)
        assert chosen is not None, "the dispatcher places requests on candidates"
        self.fleet = FleetView(self.at_s, (self.fleet.worker(chosen),))
        self.decision = Decision(
            (worker,),
            decision.reason,
            decision.costs[place : place + 1],
            decision.unit,
            {} if terms is None else {worker: dict(terms)},
        )

    def to_builtins(self, *, chosen_only: bool = False) -> dict[str, object]:
        """Return the record for the admin API, with all candidates or with the chosen one."""
        candidates = self._chosen() if chosen_only else describe_candidates(self.fleet, self.decision)
        return {
            "at_s": self.at_s,
            "request_id": self.request.id,
            "model": self.request.model,
            "prompt_tokens": self.request.prompt_tokens,
            "prompt_tokens_exact": self.counted,
            "waited_s": self.request.waited_s,
            "attempt": self.attempt,
            "route": self.route,
            "policy": self.policy,
            "worker": self.worker,
            "reason": self.decision.reason,
            "residency": self.residency.value,
            "predicted_cached_tokens": self.predicted_cached_tokens,
            "reported_cached_tokens": self.reported_cached_tokens,
            "difference": None if self.difference is None else self.difference.value,
            "ttft_s": self.ttft_s,
            "duration_s": self.duration_s,
            "outcome": self.outcome,
            "handover": None if self.leg is None else self.leg.to_builtins(),
            "migration": self.migration,
            "seams": [msgspec.to_builtins(seam) for seam in self.seams],
            "candidates": candidates,
        }

    def _chosen(self) -> list[dict[str, object]]:
        place = self.fleet.row_of(self.worker)
        if place is None:
            return []
        ranks = zip(self.decision.ranked, self.decision.costs, strict=False)
        cost = next((cost for worker, cost in ranks if worker == self.worker), None)
        return [_describe(self.fleet.worker(place), cost, self.decision)]


class _Newest:
    """The newest records, of at most `size` in all. `drop` is called with each one that has to go for a newer one."""

    def __init__(self, kept: int, size: int, drop: Callable[[DecisionRecord], None]) -> None:
        self.taken = 0
        self._records: deque[tuple[DecisionRecord, int]] = deque(maxlen=kept)
        self._size = size
        self._drop = drop

    def __contains__(self, record: DecisionRecord) -> bool:
        return bool(self._records) and record.place >= self._records[0][0].place

    def add(self, record: DecisionRecord, size: int) -> None:
        if self._records and len(self._records) == self._records.maxlen:
            self.taken -= self._records[0][1]
        self._records.append((record, size))
        self.taken += size
        while self.taken > self._size and len(self._records) > 1:
            oldest, freed = self._records.popleft()
            self.taken -= freed
            self._drop(oldest)


class DecisionLog:
    """The latest `kept` decisions. The newest ones have the views of all candidates, up to `candidates_kept` in all;
    older ones have the view of the chosen candidate only. So it is with the hashes of their prompts.

    A candidate that has a view of its own counts four times: in a small fleet, or where the policy reads views.
    """

    def __init__(self, kept: int, candidates_kept: int = CANDIDATES_KEPT, hashes_kept: int = HASHES_KEPT) -> None:
        self._records: deque[DecisionRecord] = deque(maxlen=kept)
        self.whole = _Newest(kept, candidates_kept, DecisionRecord.thin)
        self.with_prompt = _Newest(kept, hashes_kept, DecisionRecord.forget_prompt)

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: DecisionRecord) -> None:
        copies = 1 if record.fleet.equal_weights else 2  # costs and terms keep a second, weighted one
        self._records.append(record)
        self.whole.add(record, memory_of(record.fleet) * copies)
        self.with_prompt.add(record, len(record.request.block_hashes))

    def copied(self) -> list[DecisionRecord]:
        return [copy(record) for record in self._records]

    def latest(self, limit: int, before: tuple[float, int] | None = None) -> list[DecisionRecord]:
        """Return the latest decisions, newest first; with `before`, those whose `place` is less."""
        newer = 0 if before is None else len(self._records) - bisect_left(self._records, before, key=_place)
        return list(islice(reversed(self._records), newer, newer + limit))


def memory_of(fleet: FleetView) -> int:
    """Return the memory that a fleet takes in the log, in candidates as arrays."""
    return len(fleet) * (_ARRAYS_PER_VIEW * fleet.has_views + (not fleet.is_small))


def _place(record: DecisionRecord) -> tuple[float, int]:
    return record.place


def describe_candidates(fleet: FleetView, decision: Decision) -> list[dict[str, object]]:
    by_id = {worker: fleet.worker(place) for place, worker in enumerate(fleet.ids)}
    costs = dict(zip(decision.ranked, decision.costs, strict=False))
    ranked = [by_id.pop(worker) for worker in decision.ranked if worker in by_id]
    return [_describe(view, costs.get(view.id), decision) for view in (*ranked, *by_id.values())]


def _describe(view: WorkerView, cost: float | None, decision: Decision) -> dict[str, object]:
    return {
        "worker": view.id,
        **{name: getattr(view, name) for name in FACTS if name not in _HIDDEN_FACTS},
        "weight": view.weight,
        "residency": view.residency.value,
        "first_token_s": view.queue_wait_s + view.prefill_s,
        "speed": "learned" if view.learned else "prior",
        "cost": cost,
        "unit": decision.unit,
        "terms": dict(decision.terms.get(view.id, {})),
    }
