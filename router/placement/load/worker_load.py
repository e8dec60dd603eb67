"""Load reserved on each candidate, speeds learned there, and the views that policies receive."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from math import inf, nan
from typing import Any

import msgspec

from router.placement.fleet.endpoints import Candidate
from router.placement.learning.decaying import DecayingMean
from router.placement.learning.decode_step_time import StepEstimate
from router.placement.learning.prediction_accuracy import PredictionAccuracy
from router.placement.learning.prefill_estimate import Features, SpeedEstimate
from router.placement.learning.speed import Speed, attention
from router.placement.learning.utilisation import Utilisation
from router.placement.load.fleet_table import NO_SPEED
from router.placement.load.ledger import LoadAccount
from router.placement.load.running import LoadReservation, ReservationStage
from router.placement.load.shared_load import LoadTotals, ReservedLoad, combined


class Situation(msgspec.Struct, frozen=True):
    """The state of a worker when a request was reserved there, at `at_s`.

    `features` are the regressors of the request's time to first token. `head_start_s` is the time for which the
    running prefill had run by then. `features` count that prefill in full, so this time is added to the observed one.
    `fits` is True if the KV cache had space for the request.
    """

    at_s: float
    features: Features
    head_start_s: float
    fits: bool


UNCACHED_FORGETTING = 0.9
"""Weight of the past in the mean of uncached tokens: about the last ten requests count."""
EVENTS_FORGETTING = 0.9
_NO_WORK = (0.0, 0.0, -inf, -inf)


@dataclass(slots=True, eq=False, repr=False)
class WorkerLoad:
    """One candidate's account, estimates and counters.

    `learned` is the last own fit that determined the token time; the common speed is the median of these fits.
    `speed` is the fit shrunk toward the common speed, for predictions. Each is None until it exists. `looked_s` is the
    time of the last first token that was tested for a change of speed.
    """

    candidate: Candidate
    account: LoadAccount
    estimate: SpeedEstimate = field(default_factory=SpeedEstimate)
    learned: Speed | None = None
    speed: Speed | None = None
    tested_s: float = 0.0
    looked_s: float = 0.0
    utilisation: Utilisation = field(default_factory=Utilisation)
    steps: StepEstimate = field(default_factory=StepEstimate)
    accuracy: PredictionAccuracy = field(default_factory=PredictionAccuracy)
    uncached_tokens: DecayingMean = field(default_factory=lambda: DecayingMean(UNCACHED_FORGETTING))
    tokens_per_event: DecayingMean = field(default_factory=lambda: DecayingMean(EVENTS_FORGETTING))
    """Reported output tokens per event of a stream: speculation and `--stream-interval` make it more than one."""

    def reserve(self, reservation: LoadReservation, now_s: float) -> None:
        self.account.reserve(reservation)
        self.utilisation.dispatched(reservation.uncached_tokens, reservation.attention, now_s)
        if self.account.shared is not None and self.utilisation.work is not None:
            self.account.shared.worked(self.utilisation.work)
        self.uncached_tokens.observe(reservation.uncached_tokens)

    def reserved(self) -> ReservedLoad:
        account = self.account
        return account if account.shared is None else combined(account, account.shared.other_processes())

    def reserved_without(self, gone: Collection[LoadReservation], now_s: float) -> ReservedLoad:
        """Return the reserved load as it would be if running requests were released."""
        load, head = self.reserved(), self.account.head
        prefills = [one for one in gone if one.stage is ReservationStage.PREFILL]
        decodes = [one for one in gone if one.stage is ReservationStage.DECODE]
        return LoadTotals(
            load.queued_requests - sum(not one.arrives for one in prefills),
            load.queued_tokens - sum(one.uncached_tokens for one in prefills),
            load.queued_attention - sum(one.attention for one in prefills),
            load.running_requests - len(prefills) - len(decodes),
            load.kv_tokens - sum(one.context_tokens for one in (*prefills, *decodes)),
            load.decode_tokens - sum(one.context_tokens for one in decodes),
            now_s if head is not None and head in gone else load.head_since_s,
            load.freed_s,
        )

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

    def decoded(self, reservation: LoadReservation, gaps: int, decode_s: float, now_s: float) -> None:
        """Learn from an answer that took `decode_s` after its first token."""
        speed = self.speed
        if speed is None or decode_s <= 0.0:
            return
        held_token_s, tokens, attention = self.account.work_beside(reservation, now_s)
        prefill_s = speed.token_s * tokens + speed.attention_s * attention
        self.steps.observe(gaps, held_token_s / decode_s, prefill_s, decode_s)

    def streamed_tokens(self, events: int) -> int:
        """Return the tokens of a stream of `events`: one each until answers that report usage say otherwise."""
        ratio = self.tokens_per_event
        return round(events * ratio.value) if ratio.weight else events

    def queued_tokens(self, now_s: float, reserved: ReservedLoad) -> int:
        """Return the tokens that wait for their prefill.

        A request that the gateway did not reserve counts with the mean of the uncached tokens of its own requests.
        """
        unreserved = self.account.unreserved
        if not unreserved.waiting:
            return reserved.queued_tokens
        return reserved.queued_tokens + round(
            unreserved.waiting * self.uncached_tokens.value * unreserved.weight(now_s)
        )

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
            head_s = speed.prefill_s(head.uncached_tokens, head.attention)
            done_s = account.head_since_s + speed.fixed_s + speed.decode_s * account.decode_tokens + head_s
            if done_s > now_s:
                return
            account.prefilled(head, done_s)
            head = account.head

    def row(self, now_s: float) -> tuple[float, ...]:
        """Return the worker's row of `FleetTable`, in the order in which that module lists the fields."""
        account, unreserved, speed, work = self.account, self.account.unreserved, self.speed, self.utilisation.work
        idle_tokens = account.running.idle_tokens(now_s)
        return (
            account.queued_requests,
            account.queued_tokens,
            account.queued_attention,
            account.running_requests,
            account.kv_tokens,
            account.decode_tokens,
            account.head_since_s,
            account.freed_s,
            account.running.shared_tokens,
            idle_tokens,
            account.running.next_expiry_s,
            *(_NO_WORK if work is None else work),
            unreserved.requests,
            unreserved.waiting,
            unreserved.kv_tokens,
            *unreserved.reported,
            self.uncached_tokens.value,
            nan if self.steps.context_token_s is None else self.steps.context_token_s,
            -inf if speed is None else self.tested_s,
            *(NO_SPEED if speed is None else speed.coefficients()),
        )

    def statistics(self) -> dict[str, Any]:
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
