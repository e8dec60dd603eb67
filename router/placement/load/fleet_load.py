"""The load of all candidates: their views or columns for a decision, and the speeds of workers without a fit."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from backends.worker import LoadReport
from policies.view import Columns, RequestView, Residency, Roster, WorkerId, WorkerView
from router.placement.fleet.endpoints import Candidate
from router.placement.learning.decode_step_time import Output, decode_externality_s
from router.placement.learning.reuse_value import ReuseValue
from router.placement.learning.speed import PRIOR_TOKEN_S, Speed, SpeedSource, attention, median_speed
from router.placement.load.fleet_table import STALE_S, Demand, FleetTable, Rows, roster_of
from router.placement.load.kv_occupancy import kv_wait_s
from router.placement.load.ledger import LoadAccount
from router.placement.load.running import LoadReservation
from router.placement.load.shared_load import ReservedLoad, SharedAccount, SharedLedger, combined
from router.placement.load.worker_load import Situation, WorkerLoad
from router.residency.slot_groups import Matches
from router.residency.view import Match

ARRAYS_FROM = 80
"""Candidates from which a decision uses arrays. For fewer, a loop over views costs less: below about 50 from source,
and below about 90 in the compiled build."""
NOTHING_KNOWN = Match(0, 0, Residency.UNKNOWN)
NO_OUTPUT = Output(0.0, 0.0)


class AheadOfRequest(NamedTuple):
    """What stands before a new request on one worker: prefills of `work_s`, and the decodes that run.

    A decode step takes `step_s`, and `context_step_s` for each of `context_tokens`; 0 until they are learned.
    `held_tokens` is the context with shared prefixes counted once.
    """

    requests: int
    work_s: float
    context_tokens: int
    held_tokens: int
    step_s: float
    context_step_s: float

    def tpot_s(self, prompt_tokens: int) -> float:
        """Return the time per token with a further request, without prefills in between; 0 while it is not known."""
        return self.step_s + self.context_step_s * (self.context_tokens + prompt_tokens)


class WorkerLoads:
    """The load of every candidate by slot: created when first needed, replaced when the slot gets a new candidate."""

    def __init__(self, ledger: SharedLedger | None = None, *, kv_moves: bool = False) -> None:
        self._ledger = ledger
        self._kv_moves = kv_moves
        self._loads: list[WorkerLoad | None] = []
        self._by_id: dict[WorkerId, WorkerLoad] = {}
        """The loads of live candidates."""
        self._table = FleetTable()
        self._changes: list[int] = []
        """Slots whose load has changed since their rows were written."""
        self._accounts: tuple[Rows, list[SharedAccount | None]] | None = None
        """The candidates of the last decision over arrays, and their rows in the shared ledger."""
        self._live = np.zeros(0, np.int64)
        """Slots of live candidates, as of the last time that the candidates of a decision changed."""
        self._unseen: set[int] = set()
        """Slots with prefills whose end is not visible, among the rows written."""
        self._seen: tuple[Sequence[Candidate], list[WorkerLoad], Roster | None] = ((), [], None)
        """The candidates of the last decision, their loads and their roster: an unchanged fleet passes the same tuple
        again."""
        self._common: Speed | None = None
        self._stale = False
        self._reuse_value = ReuseValue()
        self._common_step_s: float | None = None
        self._step_stale = False

    def of(self, candidate: Candidate) -> WorkerLoad:
        slot = candidate.slot
        if slot >= len(self._loads):
            self._loads.extend([None] * (slot + 1 - len(self._loads)))
        load = self._loads[slot]
        if load is None or load.candidate is not candidate:
            load = self._new(candidate, load)
        return load

    def _new(self, candidate: Candidate, before: WorkerLoad | None) -> WorkerLoad:
        load = WorkerLoad(candidate, LoadAccount(candidate.slot, self._changes if candidate.live else []))
        self._seen = ((), [], None)
        if candidate.live:
            self._loads[candidate.slot] = load
            self._forget(before)
            self._by_id[candidate.id] = load
            load.account.change()
            self._table.learn(candidate.slot, None, None)
            if len(self._changes) > 2 * len(self._loads):  # candidates come and go, and no row was written meanwhile
                self._changes[:] = dict.fromkeys(self._changes)
            if before is not None and before.account.shared is not None:
                before.account.shared.close()
            if self._ledger is not None:
                load.account.shared = self._ledger.account(candidate.id)
        return load

    def _forget(self, before: WorkerLoad | None) -> None:
        """Forget the load of a candidate that has left, unless a later one has the same id."""
        if before is not None and self._by_id.get(before.candidate.id) is before:
            del self._by_id[before.candidate.id]

    def running_share(self, worker: WorkerId, request: RequestView, blocks: int) -> float:
        """Answer `FleetView.running_share`; 0 for a worker that has left."""
        load = self._by_id.get(worker)
        return 0.0 if load is None else load.account.running_share(request.block_hashes, blocks)

    def observe(self, load: WorkerLoad, situation: Situation, ttft_s: float, now_s: float) -> None:
        load.observe(situation, ttft_s, now_s)
        self._learned(load)
        self._stale = True
        common = self.common_speed()
        if common is not None and load.estimate.tested:
            load.speed = load.estimate.speed(common)

    def decoded(
        self, load: WorkerLoad, reservation: LoadReservation, tokens: int | None, decode_s: float, now_s: float
    ) -> None:
        if tokens:
            load.decoded(reservation, tokens - 1, decode_s, now_s)
            self._learned(load)
            self._step_stale = True

    def _learned(self, load: WorkerLoad) -> None:
        load.account.change()
        if len(self._live) >= ARRAYS_FROM and load.candidate.live:
            self._table.learn(load.candidate.slot, load.learned, load.steps.context_token_s)

    def ahead(self, candidate: Candidate, now_s: float, without: Collection[LoadReservation] = ()) -> AheadOfRequest:
        """Return what a new request would find on the worker; after the prior while no speed is learned.

        `without` some requests: what it would find once these have been released.
        """
        load = self.of(candidate)
        reserved = load.reserved_without(without, now_s) if without else load.reserved()
        speed = self._speed(load, now_s)
        unreserved, weight = load.account.unreserved, load.account.unreserved.weight(now_s)
        tokens = load.queued_tokens(now_s, reserved)
        if speed is None:
            work_s = PRIOR_TOKEN_S * tokens
        else:
            load.settle(speed, now_s)
            fixed_s = speed.fixed_s + speed.decode_s * reserved.decode_tokens
            work_s = max(0.0, load.queue_wait_s(speed, now_s, reserved, tokens) - fixed_s)
        elsewhere_tokens = round(weight * unreserved.kv_tokens)
        held_tokens = round(reserved.kv_tokens * load.account.held_share) + elsewhere_tokens
        step_s, context_step_s = load.steps.step_s or (0.0, 0.0)
        requests = reserved.running_requests + round(weight * unreserved.requests)
        context_tokens = reserved.kv_tokens + elsewhere_tokens
        return AheadOfRequest(requests, work_s, context_tokens, held_tokens, step_s, context_step_s)

    def arrived(self, hashes: Sequence[int], now_s: float) -> None:
        self._reuse_value.arrived(hashes, now_s)

    def released(
        self, load: WorkerLoad, reservation: LoadReservation, model: str, now_s: float, *, cached: bool
    ) -> None:
        """Release a request's load. If `cached`, its context stays in the cache and becomes idle context.

        Idle context is counted for as long as its prefill would take, provided that contexts of this model have
        recently been worth it. Keeping something until it has cost as much as its replacement costs at most twice the
        optimum (the ski rental problem; Karlin et al. 1988).
        """
        speed = self._speed(load, now_s)
        if not cached or not reservation.hashes or speed is None:
            load.account.release(reservation, now_s)
            return
        tokens = reservation.context_tokens
        again_s = speed.token_s * tokens + speed.attention_s * attention(tokens, 0)
        load.account.release(reservation, now_s, again_s if self._reuse_value.pays(model) else 0.0)
        self._reuse_value.rests(model, reservation.hashes, tokens, now_s, now_s + again_s)

    def _speed(self, load: WorkerLoad, now_s: float) -> Speed | None:
        """Return the worker's own speed while it is tested, else the common one; None while there is none."""
        common = self.common_speed()
        tested = common is not None and load.speed is not None and load.tested_s >= now_s - STALE_S
        return load.speed if tested else common

    def speed_source(self, candidate: Candidate, now_s: float) -> SpeedSource:
        load = self.of(candidate)
        speed = self._speed(load, now_s)
        if speed is None:
            return "prior"
        return "learned" if speed is load.speed else "fleet"

    def common_step_s(self) -> float | None:
        """Return the growth of a decode step per context token: the median of the workers that have learned theirs."""
        if self._step_stale and len(self._live) >= ARRAYS_FROM:
            self._common_step_s = self._table.common_step_s(self._live)
            self._step_stale = False
        elif self._step_stale:
            known = [load.steps.context_token_s for load in self._loads if load is not None and load.candidate.live]
            learned = sorted([step_s for step_s in known if step_s is not None])
            self._common_step_s = learned[(len(learned) - 1) // 2] if learned else None
            self._step_stale = False
        return self._common_step_s

    def load_reported(self, candidate: Candidate, report: LoadReport, now_s: float) -> None:
        load = self.of(candidate)
        capacity_tokens, unreserved = candidate.capacity_tokens, load.account.unreserved
        unreserved.observe(report, load.reserved(), capacity_tokens, now_s, kv_moves=self._kv_moves)
        load.account.change()

    def common_speed(self) -> Speed | None:
        """Return the median of the workers' own speeds, which all other workers have; None if there is none."""
        if self._stale and len(self._live) >= ARRAYS_FROM:
            self._common = self._table.common_speed(self._live)
            self._stale = False
        elif self._stale:
            learned = [
                load.learned for load in self._loads if load is not None and load.learned and load.candidate.live
            ]
            self._common = median_speed(learned) if learned else None
            self._stale = False
        return self._common

    def views(
        self,
        candidates: Sequence[Candidate],
        matches: dict[int, Match] | None,
        prompt_tokens: int,
        now_s: float,
        output: Output = NO_OUTPUT,
        remaining_s: float = 0.0,
        hashes: Sequence[int] = (),
    ) -> tuple[WorkerView, ...]:
        """Return the views of `candidates` for a prompt; `matches` are by slot, None if the prompt has no identity.

        `remaining_s` is the mean time that running answers still take, `hashes` are the prompt's blocks. Until the
        speed of any worker is learned, times come from `PRIOR_TOKEN_S`: they rank by queued plus uncached tokens.
        """
        found = {} if matches is None else matches
        seen: list[WorkerView] = []
        demand = Demand.of(prompt_tokens, now_s, output, remaining_s)
        common, fresh_s = self.common_speed(), now_s - STALE_S
        for load in self._all_of(candidates):
            speed = load.speed if common is not None and load.tested_s >= fresh_s else None
            if speed is None:
                speed = common
            step_s = load.steps.context_token_s
            if step_s is None:
                step_s = self.common_step_s()
            match = found.get(load.candidate.slot, NOTHING_KNOWN)
            seen.append(_view(load, match, demand, speed, step_s, hashes))
        return tuple(seen)

    def shown(self, candidates: Sequence[Candidate], now_s: float) -> tuple[WorkerView, ...]:
        """Return the views of a one-token prompt, for operators."""
        return self.views(candidates, None, 1, now_s)

    def roster(self, candidates: Sequence[Candidate]) -> Roster | None:
        seen, _, roster = self._seen
        return roster if candidates is seen else None

    def rows(self, candidates: Sequence[Candidate]) -> Rows | None:
        """Return the rows of the table for `candidates`; None if views of single workers serve better."""
        if len(candidates) < ARRAYS_FROM:
            return None
        self._all_of(candidates)
        return self._table.rows(candidates)

    def columns(
        self,
        rows: Rows,
        matches: Matches,
        prompt_tokens: int,
        now_s: float,
        output: Output = NO_OUTPUT,
        remaining_s: float = 0.0,
        hashes: Sequence[int] = (),
    ) -> Columns:
        """Return the facts of all candidates as arrays. Equal to `views`, but for rounding in the last digit."""
        common = self.common_speed()
        self._write(now_s)
        demand = Demand.of(prompt_tokens, now_s, output, remaining_s)

        def lost_tokens(place: int, cached_tokens: int) -> int:
            candidate = rows.candidates[place]
            running = self.of(candidate).account.running
            return running.common_tokens(hashes, candidate.block_tokens) - cached_tokens

        others = None
        if self._ledger is not None:
            if self._accounts is None or self._accounts[0] is not rows:
                self._accounts = rows, [self.of(candidate).account.shared for candidate in rows.candidates]
            others = self._ledger.other_processes_of(self._accounts[1])
        return self._table.columns(rows, matches, demand, common, self.common_step_s(), lost_tokens, others)

    def _write(self, now_s: float) -> None:
        """Write the rows that have changed, by themselves or by the passage of time."""
        for slot in self._unseen:
            load = self._loads[slot]
            speed = None if load is None else self._speed(load, now_s)
            if load is not None and speed is not None:
                load.settle(speed, now_s)
        self._changes += self._table.expired(now_s)
        for slot in self._changes:
            load = self._loads[slot]
            if load is None:
                continue
            speed = self._speed(load, now_s)
            if load.account.unseen:
                self._unseen.add(slot)
                if speed is not None:
                    load.settle(speed, now_s)
            else:
                self._unseen.discard(slot)
            self._table.write(slot, load.row(now_s))
            load.account.changed = False
        self._changes.clear()

    def _all_of(self, candidates: Sequence[Candidate]) -> list[WorkerLoad]:
        seen, loads, _ = self._seen
        if candidates is not seen:
            loads = [self.of(candidate) for candidate in candidates]
            if isinstance(candidates, tuple) and all(candidate.live for candidate in candidates):
                self._seen = (candidates, loads, roster_of(candidates))
                self._find_live()
        return loads

    def _find_live(self) -> None:
        """Note the slots of live candidates. A small fleet keeps no columns of learned speeds until it has grown."""
        live = [load for load in self._loads if load is not None and load.candidate.live]
        if len(self._live) < ARRAYS_FROM <= len(live):
            for load in live:
                self._table.learn(load.candidate.slot, load.learned, load.steps.context_token_s)
        self._live = np.array([load.candidate.slot for load in live], np.int64)

    def statistics(self, candidates: Iterable[Candidate]) -> dict[str, Any]:
        return {candidate.id: self.of(candidate).statistics() for candidate in candidates}


def _view(
    load: WorkerLoad, match: Match, demand: Demand, speed: Speed | None, step_s: float | None, hashes: Sequence[int]
) -> WorkerView:
    prompt_tokens, now_s, overlap_tokens, own_tokens, remaining_s = demand
    account, candidate = load.account, load.candidate
    others = None if account.shared is None else account.shared.other_processes()
    if speed is not None and account.unseen:
        load.settle(speed, now_s)
    reserved: ReservedLoad = account if others is None else combined(account, others)
    running_requests, kv_tokens = reserved.running_requests, reserved.kv_tokens
    queued_requests, queued_tokens, all_running, held_tokens = _load(load, reserved, now_s)
    cached_tokens, capacity_tokens = match.tokens, candidate.capacity_tokens
    uncached_tokens = prompt_tokens - cached_tokens
    if speed is None:
        queue_wait_s, prefill_s = PRIOR_TOKEN_S * queued_tokens, PRIOR_TOKEN_S * uncached_tokens
        utilisation, error_s = 0.0, 0.0
    else:
        queue_wait_s = load.queue_wait_s(speed, now_s, reserved, queued_tokens)
        prefill_s = speed.prefill_s(uncached_tokens, attention(uncached_tokens, cached_tokens))
        utilisation = load.utilisation.share(speed, now_s, None if others is None else others.work)
        error_s = speed.error_s(queue_wait_s + prefill_s, reserved.queued_tokens + uncached_tokens)
    wait_s, externality_s = 0.0, 0.0
    if held_tokens + prompt_tokens > capacity_tokens:
        wait_s = kv_wait_s(prompt_tokens, held_tokens, running_requests, capacity_tokens, remaining_s)
    if step_s is not None:
        externality_s = decode_externality_s(step_s, overlap_tokens, own_tokens, running_requests, kv_tokens)
    idle_tokens = account.running.idle_tokens(now_s)
    if idle_tokens > capacity_tokens - held_tokens - uncached_tokens:
        idle_tokens = _others_idle_tokens(load, idle_tokens, hashes, cached_tokens)
    return WorkerView(
        candidate.id,
        match.residency,
        cached_tokens,
        uncached_tokens,
        queued_tokens,
        all_running,
        held_tokens,
        capacity_tokens,
        queue_wait_s,
        prefill_s,
        utilisation,
        speed is not None,
        error_s,
        match.by_tier,
        queued_requests,
        externality_s,
        wait_s,
        candidate.endpoint.labels,
        idle_tokens,
        candidate.endpoint.weight,
    )


def _load(load: WorkerLoad, reserved: ReservedLoad, now_s: float) -> tuple[int, int, int, int]:
    """Return queued requests, queued tokens, running requests and held tokens, with those from elsewhere."""
    account, unreserved = load.account, load.account.unreserved
    held_tokens = reserved.kv_tokens
    if account.running.shared_tokens:
        held_tokens = round(held_tokens * account.held_share)
    if not (unreserved.requests or unreserved.kv_tokens or unreserved.waiting):
        return reserved.queued_requests, reserved.queued_tokens, reserved.running_requests, held_tokens
    weight = unreserved.weight(now_s) if unreserved.requests or unreserved.kv_tokens else 0.0
    return (
        reserved.queued_requests + round(weight * unreserved.waiting),
        load.queued_tokens(now_s, reserved),
        reserved.running_requests + round(weight * unreserved.requests),
        held_tokens + round(weight * unreserved.kv_tokens),
    )


def _others_idle_tokens(load: WorkerLoad, idle_tokens: int, hashes: Sequence[int], cached_tokens: int) -> int:
    """Return the idle context without the part that belongs to this prompt and is no longer cached.

    No other request needs that part, and the prompt's uncached tokens count it already.
    """
    lost_tokens = load.account.running.common_tokens(hashes, load.candidate.block_tokens) - cached_tokens
    return max(0, idle_tokens - max(0, lost_tokens))
