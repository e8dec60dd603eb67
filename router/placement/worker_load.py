"""Load reserved on each candidate, speeds learned there, and the views that policies receive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from backends.worker import LoadReport
from policies.view import Residency, WorkerView
from router.placement.decode_step_time import Output, StepEstimate, WorkDone, decode_externality_s
from router.placement.endpoints import Candidate
from router.placement.kv_occupancy import kv_wait_s
from router.placement.ledger import LoadAccount, LoadReservation, attention
from router.placement.prediction_accuracy import PredictionAccuracy
from router.placement.prefill_estimate import Features, Speed, SpeedEstimate, Utilisation, median_speed
from router.placement.reuse_value import ReuseValue
from router.placement.shared_load import ReservedLoad, SharedLedger, combined
from router.residency.view import Match

STALE_S = 60.0
"""A fit without an observation for this long is replaced by the common one until the next observation. Otherwise a
worker that is avoided because it was slow would never get the request that shows its recovery. So it gets one a
minute."""
NOTHING_KNOWN = Match(0, 0, Residency.UNKNOWN)


class Situation(NamedTuple):
    """The state of a worker when a request was reserved there, at `at_s`.

    `features` are the regressors of the request's time to first token. `head_start_s` is the time for which the
    running prefill had run by then. `features` count that prefill in full, so this time is added to the observed one.
    `fits` is True if the KV cache had space for the request.
    """

    at_s: float
    features: Features
    head_start_s: float
    fits: bool


NO_OUTPUT = Output(0.0, 0.0)


class WorkerLoad:
    """One candidate's account, estimates and counters.

    `learned` is the last own fit that determined the token time; the common speed is the median of these fits.
    `speed` is the fit shrunk toward the common speed, for predictions. Each is None until it exists. `looked_s` is the
    time of the last first token that was tested for a change of speed.
    """

    __slots__ = (
        "account",
        "accuracy",
        "candidate",
        "estimate",
        "learned",
        "looked_s",
        "mean_uncached_tokens",
        "speed",
        "steps",
        "tested_s",
        "utilisation",
    )

    def __init__(self, candidate: Candidate) -> None:
        self.candidate = candidate
        self.account = LoadAccount()
        self.estimate = SpeedEstimate()
        self.learned: Speed | None = None
        self.speed: Speed | None = None
        self.tested_s = 0.0
        self.looked_s = 0.0
        self.utilisation = Utilisation()
        self.steps = StepEstimate()
        self.accuracy = PredictionAccuracy()
        self.mean_uncached_tokens = 0.0

    def reserve(self, reservation: LoadReservation, now_s: float) -> None:
        self.account.reserve(reservation)
        self.utilisation.dispatched(reservation.uncached_tokens, reservation.attention, now_s)
        if self.account.shared is not None and self.utilisation.work is not None:
            self.account.shared.worked(self.utilisation.work)
        self.mean_uncached_tokens += 0.1 * (reservation.uncached_tokens - self.mean_uncached_tokens)

    def reserved(self) -> ReservedLoad:
        """Return the load reserved here by all processes that share the ledger."""
        account = self.account
        return account if account.shared is None else combined(account, account.shared.others())

    def situation(self, uncached_tokens: int, prompt_tokens: int, now_s: float, *, fits: bool = True) -> Situation:
        """Return the worker's state now, for a request that is not reserved yet."""
        reserved = self.reserved()
        features = (
            float(self.queued_tokens(now_s, reserved) + uncached_tokens),
            1.0,
            reserved.queued_attention + attention(uncached_tokens, prompt_tokens - uncached_tokens),
            float(reserved.decode_tokens),
        )
        return Situation(now_s, features, now_s - reserved.head_since_s if reserved.queued_requests else 0.0, fits)

    def observe(self, situation: Situation, ttft_s: float, now_s: float) -> None:
        """Learn from a request that was reserved in `situation` and had its first token after `ttft_s`.

        If the worker stalls, all requests that wait at that time are late, which is one event and not several. So only
        the first of several overlapping requests is tested for a change of speed.
        """
        plain = situation.fits and situation.at_s >= self.looked_s
        if plain:
            self.looked_s = now_s
        self.estimate.observe(situation.features, ttft_s + situation.head_start_s, plain=plain)
        self.tested_s = now_s
        self.learned = self.estimate.learned() or self.learned

    def decoded(self, since: WorkDone, gaps: int, decode_s: float, now_s: float) -> None:
        """Learn from an answer that took `decode_s` after its first token, at which the work counters were `since`."""
        speed = self.speed
        if speed is None or decode_s <= 0.0:
            return
        work_done = self.account.work_done(now_s)
        prefill_s = speed.token_s * (work_done.prefilled_tokens - since.prefilled_tokens)
        prefill_s += speed.attention_s * (work_done.prefilled_attention - since.prefilled_attention)
        self.steps.observe(gaps, (work_done.context_token_s - since.context_token_s) / decode_s, prefill_s, decode_s)

    def queued_tokens(self, now_s: float, reserved: ReservedLoad) -> int:
        """Return the tokens that wait for their prefill.

        A foreign request counts with the mean number of uncached tokens of the gateway's own requests.
        """
        foreign = self.account.foreign
        if not foreign.waiting:
            return reserved.queued_tokens
        return reserved.queued_tokens + round(foreign.waiting * self.mean_uncached_tokens * foreign.weight(now_s))

    def queue_wait_s(
        self, speed: Speed, now_s: float, reserved: ReservedLoad | None = None, queued_tokens: int | None = None
    ) -> float:
        """Return the queue wait in seconds: the fixed part, the share of the decodes, and the rest of earlier prefills.

        Short prefills share a step and end together. So the elapsed time is subtracted from the sum of all prefills and
        not only from the first. An overdue queue shows that the worker is slower or fuller than estimated. How much
        longer it takes is unknown; the estimate is the time by which it is late already (Lindy's law). So a stalled
        worker becomes too expensive while its requests still wait.
        """
        reserved = self.reserved() if reserved is None else reserved
        queued_tokens = self.queued_tokens(now_s, reserved) if queued_tokens is None else queued_tokens
        fixed_s = speed.fixed_s + speed.decode_s * reserved.decode_tokens
        queued_s = speed.token_s * queued_tokens + speed.attention_s * reserved.queued_attention
        if not reserved.queued_requests:
            return fixed_s + queued_s
        left_s = fixed_s + queued_s - (now_s - reserved.head_since_s)
        return fixed_s + (min(queued_s, left_s) if left_s >= 0.0 else -left_s)

    def settle(self, speed: Speed, now_s: float) -> None:
        """End prefills whose end is not visible (whole-body responses) when their estimated time has passed."""
        account = self.account
        head = account.head
        while head is not None and not head.streams:
            head_s = speed.token_s * head.uncached_tokens + speed.attention_s * head.attention
            done_s = account.head_since_s + speed.fixed_s + speed.decode_s * account.decode_tokens + head_s
            if done_s > now_s:
                return
            account.prefilled(head, done_s)
            head = account.head

    def statistics(self) -> dict[str, Any]:
        """Return the reserved load, the fitted coefficients, and the accuracy of predicted cached tokens."""
        speed, step_s = self.speed, self.steps.context_token_s
        return {
            **self.account.statistics(),
            "observations": self.estimate.count,
            "prefill_token_us": speed.token_s * 1e6 if speed else None,
            "first_token_fixed_ms": speed.fixed_s * 1e3 if speed else None,
            "relative_error": speed.relative_error if speed else None,
            "decode_step_context_ns": None if step_s is None else step_s * 1e9,
            "predicted_cached": self.accuracy.statistics(),
        }


class WorkerLoads:
    """The load of every candidate by slot: created when first needed, replaced when the slot gets a new candidate."""

    def __init__(self, ledger: SharedLedger | None = None) -> None:
        self._ledger = ledger
        self._loads: list[WorkerLoad | None] = []
        self._seen: tuple[Sequence[Candidate], list[WorkerLoad]] = ((), [])
        """The candidates of the last decision and their loads: an unchanged fleet passes the same tuple again."""
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
        load = WorkerLoad(candidate)
        self._seen = ((), [])
        if candidate.live:
            self._loads[candidate.slot] = load
            if before is not None and before.account.shared is not None:
                before.account.shared.close()
            if self._ledger is not None:
                load.account.shared = self._ledger.account(candidate.id)
        return load

    def observe(self, load: WorkerLoad, situation: Situation, ttft_s: float, now_s: float) -> None:
        """Record a first token."""
        load.observe(situation, ttft_s, now_s)
        self._stale = True
        common = self.common_speed()
        if common is not None and load.estimate.tested:
            load.speed = load.estimate.speed(common)

    def decoded(self, load: WorkerLoad, since: WorkDone, tokens: int | None, decode_s: float, now_s: float) -> None:
        """Record a complete answer of `tokens`."""
        if tokens:
            load.decoded(since, tokens - 1, decode_s, now_s)
            self._step_stale = True

    def arrived(self, hashes: Sequence[int], now_s: float) -> None:
        """Record a prompt with these blocks that is about to be placed."""
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
        if not cached or not reservation.idle_context.hashes or speed is None:
            load.account.release(reservation, now_s)
            return
        tokens = reservation.context_tokens
        again_s = speed.token_s * tokens + speed.attention_s * attention(tokens, 0)
        load.account.release(reservation, now_s, again_s if self._reuse_value.pays(model) else 0.0)
        self._reuse_value.rests(model, reservation.idle_context.hashes, tokens, now_s, now_s + again_s)

    def _speed(self, load: WorkerLoad, now_s: float) -> Speed | None:
        """Return the worker's own speed while it is tested, else the common one."""
        tested = load.speed is not None and load.tested_s >= now_s - STALE_S
        return load.speed if tested else self.common_speed()

    def common_step_s(self) -> float | None:
        """Return the growth of a decode step per context token: the median of the workers that have learned theirs."""
        if self._step_stale:
            known = [load.steps.context_token_s for load in self._loads if load is not None and load.candidate.live]
            learned = sorted([step_s for step_s in known if step_s is not None])
            self._common_step_s = learned[(len(learned) - 1) // 2] if learned else None
            self._step_stale = False
        return self._common_step_s

    def load_reported(self, candidate: Candidate, report: LoadReport, now_s: float) -> None:
        """Record a scrape of the candidate's gauges."""
        load = self.of(candidate)
        load.account.foreign.observe(report, load.reserved(), candidate.capacity_tokens, now_s)

    def common_speed(self) -> Speed | None:
        """Return the median speed of the workers that have learned theirs; None if none has.

        It is used for all other workers.
        """
        if self._stale:
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
        speed of any worker is learned, estimates are in tokens and not in seconds, so that costs rank by queued plus
        uncached tokens.
        """
        found = {} if matches is None else matches
        seen: list[WorkerView] = []
        overlap_tokens, own_tokens = output.overlap_tokens(), output.held_tokens(prompt_tokens)
        for load in self._all_of(candidates):
            speed = self._speed(load, now_s)
            step_s = load.steps.context_token_s
            if step_s is None:
                step_s = self.common_step_s()
            match = found.get(load.candidate.slot, NOTHING_KNOWN)
            seen.append(
                _view(load, match, prompt_tokens, speed, now_s, step_s, overlap_tokens, own_tokens, remaining_s, hashes)
            )
        return tuple(seen)

    def _all_of(self, candidates: Sequence[Candidate]) -> list[WorkerLoad]:
        seen, loads = self._seen
        if candidates is not seen:
            loads = [self.of(candidate) for candidate in candidates]
            if isinstance(candidates, tuple) and all(candidate.live for candidate in candidates):
                self._seen = (candidates, loads)
        return loads

    def statistics(self, candidates: Iterable[Candidate]) -> dict[str, Any]:
        return {candidate.id: self.of(candidate).statistics() for candidate in candidates}


def _view(
    load: WorkerLoad,
    match: Match,
    prompt_tokens: int,
    speed: Speed | None,
    now_s: float,
    step_s: float | None,
    overlap_tokens: float,
    own_tokens: float,
    remaining_s: float,
    hashes: Sequence[int],
) -> WorkerView:
    account, candidate, foreign = load.account, load.candidate, load.account.foreign
    others = None if account.shared is None else account.shared.others()
    if speed is not None and account.unseen:
        load.settle(speed, now_s)
    reserved: ReservedLoad = account if others is None else combined(account, others)
    queued_tokens = reserved.queued_tokens
    queued_requests, running_requests, kv_tokens = (
        reserved.queued_requests,
        reserved.running_requests,
        reserved.kv_tokens,
    )
    foreign_requests, foreign_tokens, wait_s = 0, 0, 0.0
    if foreign.requests or foreign.kv_tokens or foreign.waiting:
        weight = foreign.weight(now_s) if foreign.requests or foreign.kv_tokens else 0.0
        queued_tokens = load.queued_tokens(now_s, reserved)
        queued_requests += round(weight * foreign.waiting)
        foreign_requests, foreign_tokens = round(weight * foreign.requests), round(weight * foreign.kv_tokens)
    held_tokens = kv_tokens + foreign_tokens
    if account.shared_context.shared_tokens:
        held_tokens = round(kv_tokens * account.held_share) + foreign_tokens
    cached_tokens, capacity_tokens = match.tokens, candidate.capacity_tokens
    uncached_tokens = prompt_tokens - cached_tokens
    if speed is None:
        queue_wait_s, prefill_s, utilisation, error_s = float(queued_tokens), float(uncached_tokens), 0.0, 0.0
    else:
        queue_wait_s = load.queue_wait_s(speed, now_s, reserved, queued_tokens)
        prefill_s = speed.token_s * uncached_tokens + speed.attention_s * attention(uncached_tokens, cached_tokens)
        utilisation = load.utilisation.share(speed, now_s, None if others is None else others.work)
        error_s = speed.error_s(queue_wait_s + prefill_s, reserved.queued_tokens + uncached_tokens)
        if held_tokens + prompt_tokens > capacity_tokens:
            wait_s = kv_wait_s(prompt_tokens, held_tokens, running_requests, capacity_tokens, remaining_s)
    return WorkerView(
        candidate.id,
        match.residency,
        cached_tokens,
        uncached_tokens,
        queued_tokens,
        running_requests + foreign_requests,
        held_tokens,
        capacity_tokens,
        queue_wait_s,
        prefill_s,
        utilisation,
        speed is not None,
        error_s,
        match.by_tier,
        queued_requests,
        0.0
        if step_s is None
        else decode_externality_s(step_s, overlap_tokens, own_tokens, running_requests, kv_tokens),
        wait_s,
        candidate.endpoint.labels,
        _idle_tokens(load, now_s, hashes, cached_tokens, capacity_tokens - held_tokens - uncached_tokens),
    )


def _idle_tokens(load: WorkerLoad, now_s: float, hashes: Sequence[int], cached_tokens: int, free_tokens: int) -> int:
    """Return the idle context on the worker in tokens.

    If it exceeds `free_tokens`, leave out the part that belongs to this prompt and is no longer cached. No other
    request needs it, and the prompt's uncached tokens count it already.
    """
    account = load.account
    tokens = account.idle_context.tokens(now_s, account.shared_context.shared_tokens)
    if not tokens or tokens <= free_tokens:
        return tokens
    lost_tokens = account.idle_context.common_tokens(hashes, load.candidate.block_tokens) - cached_tokens
    return max(0, tokens - max(0, lost_tokens))
