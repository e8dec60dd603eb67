"""Place a request on two workers: one computes its prompt, and hands the KV cache to one that writes the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from policies.handover_cost import Matrix, PairCost, TurnReads, cheapest, pair_s, stalled_s, turn_reads
from policies.view import Decision, FleetView, RequestView, Residency, WorkerView
from router.config.model import HandoverConfig
from router.placement.decisions import HandoverLeg
from router.placement.endpoints import PREFILL
from router.placement.fleet_load import WorkerLoads
from router.placement.handover_explained import (
    ComparedReads,
    ExplainedHandover,
    ExplainedTurn,
    alone_explained,
    explained,
)
from router.placement.handover_roles import SIDECAR, receives
from router.placement.kept_turns import KeptTurn, readable
from router.placement.kv_formats import alike_formats, kv_format
from router.placement.lifecycle_events import Request
from router.placement.links import Links, Transfer
from router.placement.placing import Decided, Placer
from router.placement.policy_runner import PolicyRunner
from router.placement.selection import Selection
from router.placement.tickets import Ticket
from router.placement.views import Found, ViewBuilder

TURNS_COMPARED: Final = 4
"""Kept turns that a decision compares, the longest ones: of one conversation, mostly the last one alone is there."""


class Seen(NamedTuple):
    """Candidates and what is known of them."""

    selection: Selection
    view: RequestView
    fleet: FleetView
    found: Found | None


class PlannedHandover(NamedTuple):
    """A pair, and what it costs beside one worker. Nothing is reserved yet. `at_any_cost`: it may cost more.

    `turn` is what the prefill worker reads first. It is then as in `after`, and None if the worker computes all.
    """

    prefill: Seen
    decode: Seen
    cost: PairCost
    at_any_cost: bool
    turn: KeptTurn | None = None
    after: WorkerView | None = None


class _Compared(NamedTuple):
    """Both sides of all pairs, the workers for whole requests, the speeds of the links, and the costs of the pairs.

    `streams` says which senders have streams of their own, and `reads` what they read of a turn before. `computed_s`
    are the costs of the pairs if they read none.
    """

    senders: Seen
    receivers: Seen
    singles: FleetView
    tokens_per_s: Matrix
    latency_s: Matrix
    streams: NDArray[np.bool_]
    costs_s: Matrix
    reads: TurnReads | None
    computed_s: Matrix

    @property
    def cheapest(self) -> PairCost:
        return cheapest(self.costs_s, self.singles)


class HandoverTickets(NamedTuple):
    """Reservations on both workers, made in one step."""

    prefill: Ticket
    decode: Ticket


class HandoverPlanner:
    """Compares pairs with single workers, and reserves the load of a pair."""

    def __init__(self, config: HandoverConfig, placer: Placer, view_builder: ViewBuilder, loads: WorkerLoads) -> None:
        self._config = config
        self.links = Links("handover", config.transfer_tokens_per_s, config.latency_s)
        self._placer = placer
        self._view_builder = view_builder
        self._loads = loads

    def plan(
        self,
        request: Request,
        prefill: Selection,
        others: Selection | None,
        alone: Selection,
        now_s: float,
        *,
        at_any_cost: bool = False,
        turns: Sequence[KeptTurn] = (),
    ) -> PlannedHandover | None:
        """Return the cheapest pair if it costs less than every worker of `alone`; None otherwise.

        The prefill worker may read one of `turns` from the worker that keeps it. The prompt extends them, the longest
        one is the first.

        With `at_any_cost` it may cost more. A prefill worker that has a trial comes first, if a pair with it pays;
        `others` are the prefill workers without it. So does a decode worker that has a trial.
        """
        turns = _comparable(turns, now_s)
        compared = self._compare(request, prefill, others, alone, now_s, turns)
        if compared is None:
            return None
        cost = compared.cheapest
        if not (cost.pays or (at_any_cost and cost.possible)):
            return None
        planned = PlannedHandover(compared.senders, compared.receivers, cost, at_any_cost)
        return planned if compared.reads is None else _with_turn(planned, compared.reads, turns)

    def explain(
        self,
        request: Request,
        prefill: Selection,
        others: Selection | None,
        alone: Selection,
        now_s: float,
        turns: Sequence[KeptTurn] = (),
    ) -> ExplainedHandover:
        """Return what `plan` compares, without placing anything."""
        turns = _comparable(turns, now_s)
        compared = self._compare(request, prefill, others, alone, now_s, turns)
        if compared is None:
            singles = self._see(request, alone, now_s).fleet
            return ExplainedHandover(False, "no ready worker receives KV caches", (), alone_explained(singles))
        senders, receivers, singles, tokens_per_s, latency_s, streams, costs_s, reads, computed_s = compared
        moved_s = np.broadcast_to(latency_s + receivers.fleet.uncached_tokens / tokens_per_s, costs_s.shape)
        kept = None
        if reads is not None:
            shown = tuple(ExplainedTurn(turn.owner.id, turn.prompt.tokens, turn.end_s - now_s) for turn in turns)
            kept = ComparedReads(shown, reads, ~_behind_sidecar(receivers.selection), computed_s)
        return explained(senders.fleet, receivers.fleet, singles, costs_s, moved_s, streams, kept)

    def _compare(
        self,
        request: Request,
        prefill: Selection,
        others: Selection | None,
        alone: Selection,
        now_s: float,
        turns: Sequence[KeptTurn] = (),
    ) -> _Compared | None:
        """Return the costs of all pairs; None if no worker receives KV caches.

        While a prefill or a decode worker has a trial, these are the pairs with it if one pays. Two workers on trial
        are no pair.
        """
        ready, on_trial = _decoding(alone, self._config.connector)
        found = None
        if prefill.trial is not None and ready is not None:
            senders = Selection(prefill.trial.candidates, prefill.trial)
            found = self._pairs(request, senders, ready, alone, now_s, turns)
            if found.cheapest.pays or others is None:
                return found
        without = prefill if prefill.trial is None else others
        for receivers in (on_trial, ready):
            if receivers is not None and without is not None:
                found = self._pairs(request, without, receivers, alone, now_s, turns)
                if found.cheapest.pays:
                    break
        return found

    def _pairs(
        self,
        request: Request,
        prefill: Selection,
        decode: Selection,
        alone: Selection,
        now_s: float,
        turns: Sequence[KeptTurn],
    ) -> _Compared:
        senders, receivers = self._see(request, prefill, now_s), self._see(request, decode, now_s)
        singles, streams = self._see(request, alone, now_s).fleet, _have_streams(prefill)
        speeds = self.links.speeds(prefill.candidates, decode.candidates, now_s)
        alike = alike_formats(prefill.candidates, decode.candidates, request.model)
        reads = self._reads(request, senders, turns, now_s) if turns else None

        def priced(reads: TurnReads | None) -> Matrix:
            stalls_s = np.where(streams, stalled_s(senders.fleet, reads), 0.0)
            return pair_s(senders.fleet, receivers.fleet, *speeds, alike, stalls_s, reads)

        costs_s = computed_s = priced(None)
        if reads is not None:
            costs_s = np.where(_behind_sidecar(decode), computed_s, priced(reads))  # no turn is read there
        return _Compared(senders, receivers, singles, *speeds, streams, costs_s, reads, computed_s)

    def _reads(self, request: Request, senders: Seen, turns: Sequence[KeptTurn], now_s: float) -> TurnReads:
        """Return what the senders would read of `turns`."""
        selection, most = senders.selection, request.prompt_tokens - 1
        after = [self._see(request, selection, now_s, min(turn.prompt.tokens, most)).fleet for turn in turns]
        left_s = np.array([turn.end_s - now_s for turn in turns])
        speeds = self.links.speeds([turn.owner for turn in turns], selection.candidates, now_s)
        able = readable(turns, selection.candidates, request.model)
        return turn_reads(senders.fleet, after, left_s, *speeds, able)

    def reserve(
        self,
        request: Request,
        planned: PlannedHandover,
        runner: PolicyRunner,
        now_s: float,
    ) -> HandoverTickets:
        """Reserve the prefill on one worker, and the KV space of the prompt on the other.

        Its blocks are reserved when they have arrived: until then, another request with this prefix finds none. So are
        those of the prefill worker if it reads a turn from another one.
        """
        self._loads.arrived(planned.decode.view.block_hashes, now_s)
        cost = planned.cost
        names = planned.prefill.fleet.ids[cost.prefill], planned.decode.fleet.ids[cost.decode]
        gain = f"{cost.pair_s:.3g} s, {cost.alone_s:.3g} s on one worker"
        first = decided(planned.prefill, cost.prefill, runner, f"prefill for {names[1]}: {gain}")
        prefill = self._placer.place(prefill_of(request), first, now_s, 1, by_policy=False, after=planned.after)
        second = decided(planned.decode, cost.decode, runner, f"decode after {names[0]}: {gain}")
        view = planned.decode.fleet.worker(cost.decode)
        after = after_transfer(view, max(0, view.cached_tokens + view.uncached_tokens - 1), 0.0)
        decode = self._placer.place(request, second, now_s, 1, by_policy=False, after=after)
        decode.received, decode.moved_tokens, decode.prefill = True, view.uncached_tokens, prefill
        decode.load.account.prefilled(decode.reservation, now_s)
        if planned.after is not None:
            prefill.moved_tokens = planned.after.cached_tokens - int(planned.prefill.fleet.cached_tokens[cost.prefill])
        prefill.record.leg = HandoverLeg("prefill", decode.id, decode.candidate.id)
        decode.record.leg = HandoverLeg("decode", decode.id, prefill.candidate.id)
        return HandoverTickets(prefill, decode)

    def again(self, ticket: Ticket, prefill: Selection, runner: PolicyRunner, now_s: float) -> Ticket | None:
        """Reserve a failed prefill on the like worker that will have it done first; None if there is none."""
        request, attempt = ticket.request, ticket.attempt + 1
        wanted = kv_format(ticket.candidate, request.model)
        alike = tuple(one for one in prefill.candidates if kv_format(one, request.model).understands(wanted))
        if not alike:
            return None
        seen = self._see(request, Selection(alike), now_s)
        fleet = seen.fleet
        place = int((fleet.queue_wait_s + fleet.prefill_s).argmin())
        again = self._placer.place(
            request, decided(seen, place, runner, "prefill again after a failure"), now_s, attempt, by_policy=False
        )
        again.record.leg = ticket.record.leg
        return again

    def transfer(self, sender: Ticket, receiver: Ticket, now_s: float) -> Transfer:
        """Return the transfer that begins now. After it, the receiver computes one token behind its queue."""
        (view,) = self._loads.views((receiver.candidate,), None, 1, now_s)
        ends = sender.candidate, receiver.candidate
        return Transfer("handover", *ends, receiver.moved_tokens, view.prefill_s, view.queue_wait_s, now_s)

    def _see(self, request: Request, selection: Selection, now_s: float, loaded_tokens: int = 0) -> Seen:
        return Seen(selection, *self._view_builder.build(request, selection.candidates, now_s, loaded_tokens))


def decided(seen: Seen, place: int, runner: PolicyRunner, reason: str) -> Decided:
    """Return the decision for the candidate at `place`."""
    ids = seen.fleet.ids
    ranked = (ids[place], *ids[:place], *ids[place + 1 :])
    return Decided(*seen, runner, Decision(ranked, reason))


def _comparable(turns: Sequence[KeptTurn], now_s: float) -> list[KeptTurn]:
    return [turn for turn in turns if turn.there and turn.end_s > now_s][:TURNS_COMPARED]


def _behind_sidecar(receivers: Selection) -> NDArray[np.bool_]:
    return np.array([SIDECAR in one.endpoint.labels for one in receivers.candidates])


def _have_streams(senders: Selection) -> NDArray[np.bool_]:
    return np.array([one.endpoint.role != PREFILL for one in senders.candidates])


def prefill_of(request: Request) -> Request:
    """Return the request as a prefill worker gets it. Its whole answer is the first token, so its prefill is seen."""
    return msgspec.structs.replace(request, max_tokens=1, hinted_tokens=None, stream=True)


def _decoding(alone: Selection, connector: str | None) -> tuple[Selection | None, Selection | None]:
    """Return the workers among the candidates that may receive a KV cache: those that are ready, and one on trial."""
    decoding = [one for one in alone.candidates if receives(one.endpoint.role, one.endpoint.labels, connector)]
    ready = tuple(one for one in decoding if one.endpoint is not alone.trial)
    on_trial = tuple(one for one in decoding if one.endpoint is alone.trial)
    return Selection(ready) if ready else None, Selection(on_trial, alone.trial) if on_trial else None


def _with_turn(planned: PlannedHandover, reads: TurnReads, turns: Sequence[KeptTurn]) -> PlannedHandover:
    """Return the pair with the turn that its prefill worker reads, if any."""
    place = planned.cost.prefill
    turn = int(reads.turn[place])
    if turn < 0:
        return planned
    view = planned.prefill.fleet.worker(place)
    after = after_transfer(view, int(reads.loaded_tokens[place]), float(reads.rest_s[place]))
    return planned._replace(turn=turns[turn], after=after)


def after_transfer(view: WorkerView, cached_tokens: int, prefill_s: float) -> WorkerView:
    """Return a worker as it will be after a transfer: the rest of the prompt after `cached_tokens` takes `prefill_s`.

    What its response reports as cached is what the other worker had cached, so nothing is predicted or learned from it.
    """
    return msgspec.structs.replace(
        view,
        cached_tokens=cached_tokens,
        uncached_tokens=view.cached_tokens + view.uncached_tokens - cached_tokens,
        prefill_s=prefill_s,
        residency=Residency.UNKNOWN,
    )
