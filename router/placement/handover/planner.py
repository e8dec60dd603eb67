"""Place a request on two workers: one computes its prompt, and hands the KV cache to one that writes the answer."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from policies.handover_cost import Matrix, PairCost, cheapest, pair_s, stalled_s
from policies.view import Decision, FleetView, RequestView, Residency, WorkerView
from router.config.model import HandoverConfig
from router.placement.decision_log.decisions import HandoverLeg
from router.placement.fleet.endpoints import PREFILL
from router.placement.fleet.roles import receives
from router.placement.handover.explained import ExplainedHandover, alone_explained, explained
from router.placement.handover.kv_formats import alike_formats, kv_format
from router.placement.handover.links import Links, Transfer
from router.placement.load.fleet_load import WorkerLoads
from router.placement.load.views import LookedUpPrefix, ViewBuilder
from router.placement.placer import PendingPlacement, Placer
from router.placement.policies.policy_runner import PolicyRunner
from router.placement.request import Request
from router.placement.selection import Selection
from router.placement.tickets import Ticket


class Seen(NamedTuple):
    """Candidates and what is known of them."""

    selection: Selection
    view: RequestView
    fleet: FleetView
    found: LookedUpPrefix | None


class PlannedHandover(NamedTuple):
    """A pair, and what it costs beside one worker. Nothing is reserved yet. `at_any_cost`: it may cost more."""

    prefill: Seen
    decode: Seen
    cost: PairCost
    at_any_cost: bool


class WorkerChoices(NamedTuple):
    """The workers among which a request is placed: for its prefill, and `alone` for the whole of it.

    A prefill worker that has a trial comes first, if a pair with it pays; `others` are the prefill workers without it.
    """

    prefill: Selection
    others: Selection | None
    alone: Selection


class _Compared(NamedTuple):
    """Both sides of all pairs, the workers for whole requests, the speeds of the links, and the costs of the pairs.

    `streams` says which senders have streams of their own.
    """

    senders: Seen
    receivers: Seen
    singles: FleetView
    tokens_per_s: Matrix
    latency_s: Matrix
    streams: NDArray[np.bool_]
    costs_s: Matrix

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
        self, request: Request, workers: WorkerChoices, now_s: float, *, at_any_cost: bool = False
    ) -> PlannedHandover | None:
        """Return the cheapest pair if it costs less than every worker alone; None otherwise.

        With `at_any_cost` it may cost more. A decode worker that has a trial comes first, if a pair with it pays.
        """
        compared = self._compare(request, workers, now_s)
        if compared is None:
            return None
        cost = compared.cheapest
        if not (cost.pays or (at_any_cost and cost.possible)):
            return None
        return PlannedHandover(compared.senders, compared.receivers, cost, at_any_cost)

    def explain(self, request: Request, workers: WorkerChoices, now_s: float) -> ExplainedHandover:
        """Return what `plan` compares, without placing anything."""
        compared = self._compare(request, workers, now_s)
        if compared is None:
            singles = self._see(request, workers.alone, now_s).fleet
            return ExplainedHandover(False, "no ready worker receives KV caches", (), alone_explained(singles))
        senders, receivers, singles, tokens_per_s, latency_s, streams, costs_s = compared
        moved_s = np.broadcast_to(latency_s + receivers.fleet.uncached_tokens / tokens_per_s, costs_s.shape)
        return explained(senders.fleet, receivers.fleet, singles, costs_s, moved_s, streams)

    def _compare(self, request: Request, workers: WorkerChoices, now_s: float) -> _Compared | None:
        """Return the costs of all pairs; None if no worker receives KV caches.

        While a prefill or a decode worker has a trial, these are the pairs with it if one pays. Two workers on trial
        are no pair.
        """
        prefill, others, alone = workers
        ready, on_trial = _decoding(alone, self._config.connector)
        found = None
        if prefill.trial is not None and ready is not None:
            senders = Selection(prefill.trial.candidates, prefill.trial)
            found = self._pairs(request, senders, ready, alone, now_s)
            if found.cheapest.pays or others is None:
                return found
        without = prefill if prefill.trial is None else others
        for receivers in (on_trial, ready):
            if receivers is not None and without is not None:
                found = self._pairs(request, without, receivers, alone, now_s)
                if found.cheapest.pays:
                    break
        return found

    def _pairs(
        self, request: Request, prefill: Selection, decode: Selection, alone: Selection, now_s: float
    ) -> _Compared:
        senders, receivers = self._see(request, prefill, now_s), self._see(request, decode, now_s)
        singles, streams = self._see(request, alone, now_s).fleet, _have_streams(prefill)
        speeds = self.links.speeds(prefill.candidates, decode.candidates, now_s)
        alike = alike_formats(prefill.candidates, decode.candidates, request.model)
        stalls_s = np.where(streams, stalled_s(senders.fleet), 0.0)
        costs_s = pair_s(senders.fleet, receivers.fleet, *speeds, alike, stalls_s)
        return _Compared(senders, receivers, singles, *speeds, streams, costs_s)

    def reserve(
        self, request: Request, planned: PlannedHandover, runner: PolicyRunner, now_s: float
    ) -> HandoverTickets:
        """Reserve the prefill on one worker, and the KV space of the prompt on the other.

        Its blocks are reserved when they have arrived: until then, another request with this prefix finds none.
        """
        self._loads.arrived(planned.decode.view.block_hashes, now_s)
        cost = planned.cost
        names = planned.prefill.fleet.ids[cost.prefill], planned.decode.fleet.ids[cost.decode]
        gain = f"{cost.pair_s:.3g} s, {cost.alone_s:.3g} s on one worker"
        first = decided(planned.prefill, cost.prefill, runner, f"prefill for {names[1]}: {gain}")
        prefill = self._placer.place(prefill_of(request), first, now_s, 1, by_policy=False)
        second = decided(planned.decode, cost.decode, runner, f"decode after {names[0]}: {gain}")
        view = planned.decode.fleet.worker(cost.decode)
        after = after_transfer(view, max(0, view.cached_tokens + view.uncached_tokens - 1), 0.0)
        decode = self._placer.place(request, second, now_s, 1, by_policy=False, after=after)
        decode.received, decode.moved_tokens, decode.prefill = True, view.uncached_tokens, prefill
        decode.load.account.prefilled(decode.reservation, now_s)
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

    def _see(self, request: Request, selection: Selection, now_s: float) -> Seen:
        return Seen(selection, *self._view_builder.build(request, selection.candidates, now_s))


def decided(seen: Seen, place: int, runner: PolicyRunner, reason: str) -> PendingPlacement:
    ids = seen.fleet.ids
    ranked = (ids[place], *ids[:place], *ids[place + 1 :])
    return PendingPlacement(*seen, runner, Decision(ranked, reason))


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
