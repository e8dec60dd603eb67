"""Select the candidates that may take a request now: by model, length, state, pressure and earlier attempts."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import TypeAlias

import msgspec

from policies.view import Decision, WorkerId
from router.errors import ErrorKind, RequestError
from router.placement.decision_log.decisions import DecisionRecord
from router.placement.fleet.fleet import Candidate, CandidateSet, Fleet, FleetEndpoint, WorkerState
from router.placement.fleet.health import SERVING
from router.placement.load.fleet_load import WorkerLoads
from router.placement.request import Request
from router.placement.tickets import Held, Queued, Reject, full

LONGEST_HOLD_S = 60.0
"""The longest that any policy can hold a request, over all decisions."""


HasRoom: TypeAlias = Callable[[Candidate, int], bool]
"""Returns whether a candidate has room for so many uncached tokens."""


class Selection(msgspec.Struct, frozen=True):
    """Candidates in a stable order, never empty. `trial` is the half-open endpoint that must be chosen, if any."""

    candidates: tuple[Candidate, ...]
    trial: FleetEndpoint | None = None

    @property
    def ready(self) -> bool:
        return any(candidate.endpoint.state is WorkerState.READY for candidate in self.candidates)


def select(
    fleet: Fleet,
    request: Request,
    tried: tuple[str, ...],
    now_s: float,
    within: Container[str] | None = None,
    *,
    prefill: bool = False,
) -> Selection | Queued | Reject:
    """Return the candidates for `request`, without the endpoints in `tried`, and only those `within` if it is given.

    With `prefill`: those that compute its prompt for a decode worker.

    A half-open endpoint's trial comes first, except for a request that has failed already, as long as ready workers
    are left. If no worker is ready, half-open endpoints also take requests during their trials. They answer probes, and
    a trial may be a long answer whose end is not worth waiting for.
    """
    if request.pinned is not None:
        return _pinned(fleet, request, tried, within)
    candidate_set = (
        fleet.candidate_sets.prefilling(request.model) if prefill else fleet.candidate_sets.of(request.model)
    )
    if not candidate_set.able:
        return _nobody(fleet, request)
    fits = _fits(request, candidate_set)
    ready, half_open = candidate_set.ready, candidate_set.half_open
    if fits is not None or tried or within is not None:
        allowed = {
            endpoint
            for endpoint in (candidate_set.able if fits is None else fits)
            if endpoint.id not in tried and (within is None or endpoint.id in within)
        }
        ready = tuple(candidate for candidate in ready if candidate.endpoint in allowed)
        half_open = tuple(endpoint for endpoint in half_open if endpoint in allowed)
    trial = None
    if half_open:
        trial = next((endpoint for endpoint in half_open if not endpoint.health.trial_running), None)
    if trial is not None and not (tried and ready):
        return Selection((*ready, *trial.candidates), trial)
    if not ready:
        ready = tuple(candidate for endpoint in half_open for candidate in endpoint.candidates)
    if not ready:
        return Queued(_why_not_ready(candidate_set.able if fits is None else fits))
    return Selection(ready) if now_s >= fleet.pressure_until_s else _without_pressure(ready, now_s)


class Selector:
    """Selects candidates, and keeps each of them below `limit` reserved requests, if that is above 0."""

    def __init__(self, fleet: Fleet, loads: WorkerLoads, limit: int) -> None:
        self._fleet = fleet
        self._loads = loads
        self.limit = limit

    def select(
        self,
        request: Request,
        tried: tuple[str, ...],
        now_s: float,
        within: Container[str] | None = None,
        *,
        prefill: bool = False,
        at_limit: bool = False,
    ) -> Selection | Queued | Reject:
        """Return the candidates that may take the request now (`select`), below the limit unless `at_limit` is set."""
        selection = select(self._fleet, request, tried, now_s, within, prefill=prefill)
        return selection if at_limit else self.below_limit(selection)

    def below_limit(self, selection: Selection | Queued | Reject) -> Selection | Queued | Reject:
        if not self.limit or not isinstance(selection, Selection):
            return selection
        fits = tuple([one for one in selection.candidates if self._running(one) < self.limit])
        if len(fits) == len(selection.candidates):
            return selection
        if not fits:
            return full(self.limit)
        trial = selection.trial
        return Selection(fits, trial if any(one.endpoint is trial for one in fits) else None)

    def _running(self, candidate: Candidate) -> int:
        return self._loads.of(candidate).reserved().running_requests


def trial_first(decision: Decision, trial: FleetEndpoint | None) -> Decision:
    if trial is None:
        return decision
    on_trial = [candidate.id for candidate in trial.candidates]
    first = next((worker for worker in decision.ranked if worker in on_trial), on_trial[0])
    rest = tuple(worker for worker in decision.ranked if worker != first)
    return Decision((first, *rest), f"trial of {first}, which failed before and answers probes again")


def exclusions(fleet: Fleet, request: Request, selection: Selection | Queued | Reject) -> dict[WorkerId, str]:
    """Return, for each worker that is no candidate, the reason, for `explain`."""
    chosen = {candidate.id for candidate in selection.candidates} if isinstance(selection, Selection) else set()
    candidate_set = fleet.candidate_sets.of(request.model)
    fits = _fits(request, candidate_set)
    excluded: dict[WorkerId, str] = {}
    for endpoint in fleet.endpoints:
        ids = [candidate.id for candidate in endpoint.candidates] or [WorkerId(endpoint.id)]
        for worker in ids:
            if worker not in chosen:
                why = "its role is prefill" if fleet.candidate_sets.only_prefills(endpoint) else None
                excluded[worker] = why or _why_excluded(endpoint, request, candidate_set, fits)
    return excluded


def _pinned(
    fleet: Fleet, request: Request, tried: tuple[str, ...], within: Container[str] | None
) -> Selection | Queued | Reject:
    """Select the only worker that holds the stored response, even if it drains."""
    matching = tuple(c for c in fleet.candidates if request.pinned in (c.id, c.endpoint.id))
    if not matching:
        joined = None if request.pinned is None else fleet.get(request.pinned.partition("#")[0])
        if joined is not None and joined.facts is None:
            return Queued(_why_not_ready((joined,)))
        message = f"The worker {request.pinned} that holds this response has left the fleet."
        return Reject(RequestError(ErrorKind.RESPONSE_NOT_FOUND, message))
    endpoint = matching[0].endpoint
    if endpoint.id in tried:
        return Queued("the only worker that can serve this request has just failed it")
    if within is not None and endpoint.id not in within:
        return Queued("the only worker that can serve this request must wait for its outcome on another worker")
    if endpoint.health.condition is WorkerState.READY and endpoint.state is not WorkerState.ASLEEP:
        return Selection(matching)
    if endpoint.health.condition is WorkerState.HALF_OPEN:
        return Selection(matching, None if endpoint.health.trial_running else endpoint)
    return Queued(_why_not_ready((endpoint,)))


def _nobody(fleet: Fleet, request: Request) -> Queued | Reject:
    wanted = fleet.models.base(request.model) or request.model
    if wanted is not None and fleet.models.known(wanted) is False:
        served = ", ".join(card.id for card in fleet.models.served()[:10])
        message = f"The model `{request.model}` does not exist; this fleet serves: {served}."
        if unheard := len(fleet.unheard):
            message += f" Workers that have not answered since the gateway started: {unheard}."
        return Reject(RequestError(ErrorKind.MODEL_NOT_FOUND, message, param="model"))
    if fleet.candidate_sets.prefilling(request.model).able:
        return Queued("no worker is ready: all workers of this model have the role prefill")
    return Queued(_why_not_ready(fleet.unheard))


def hold(request: Request, candidates: Iterable[Candidate], decision: Decision, now_s: float) -> Held | None:
    """Return the hold that the policy asks for, or None if the request goes to a worker without delay."""
    if not decision.hold_s:
        return None
    until_s = min(now_s + decision.hold_s, request.arrived_s + LONGEST_HOLD_S)
    first = decision.ranked[0]
    if until_s > now_s and _computed(request, candidates, first):
        return Held(first if decision.until_prefills_done else None, until_s)
    return None


def with_room(record: DecisionRecord, has_room: HasRoom) -> bool:
    """Put the best worker with room first in the ranking of `record`; return False if none has room.

    A half-open worker's trial comes first in any case: it is one request.
    """
    if record.trial is not None:
        return True
    by_id = {candidate.id: candidate for candidate in record.candidates}
    ranked, uncached = record.decision.ranked, record.fleet.uncached_tokens
    for place, worker in enumerate(ranked):
        row = record.fleet.row_of(worker)
        assert row is not None, "the policy runner has checked it"
        if has_room(by_id[worker], int(uncached[row])):
            if place:
                record.decision = _with_first(record.decision, place)
            return True
    return False


def _with_first(decision: Decision, place: int) -> Decision:
    """Return the decision with the worker at `place` of the ranking first, and the others after it in their order."""
    ranked, costs = list(decision.ranked), list(decision.costs)
    ranked.insert(0, ranked.pop(place))
    if place < len(costs):
        costs.insert(0, costs.pop(place))
    else:
        costs = []
    reason = f"{decision.reason}; better workers have no room for its class"
    return msgspec.structs.replace(decision, ranked=ranked, costs=costs, reason=reason)


def _computed(request: Request, candidates: Iterable[Candidate], first: WorkerId) -> bool:
    """Return whether the worker will compute the prompt, as far as its length shows."""
    if request.prompt is None or request.model is None or request.prompt.multiple:
        return request.prompt is not None
    endpoint = next(one.endpoint for one in candidates if one.id == first)
    length = endpoint.lengths.get(request.model)
    return length is None or _needed(request) <= length


def _needed(request: Request) -> int:
    return request.prompt_tokens + (request.max_tokens or 1)


def _fits(request: Request, candidate_set: CandidateSet) -> tuple[FleetEndpoint, ...] | None:
    """Return the endpoints whose context is long enough for the request; None if all are.

    vLLM requires the prompt and ``max_tokens`` (at least one) to fit within ``max_model_len``. If no endpoint is long
    enough, return the longest ones that serve now, because their own error message states the limit best.
    """
    model, shortest = candidate_set.model, candidate_set.shortest_tokens
    needed = _needed(request)
    if model is None or shortest is None or needed <= shortest:
        return None
    if request.prompt is None or request.prompt.multiple:
        return None
    fits = tuple(endpoint for endpoint in candidate_set.able if endpoint.lengths.get(model, needed) >= needed)
    fits = fits or _longest(model, candidate_set)
    return fits if len(fits) < len(candidate_set.able) else None


def _longest(model: str, candidate_set: CandidateSet) -> tuple[FleetEndpoint, ...]:
    serving = [endpoint for endpoint in candidate_set.able if endpoint.state in SERVING] or candidate_set.able
    longest = max(endpoint.lengths[model] for endpoint in serving)
    return tuple(endpoint for endpoint in serving if endpoint.lengths[model] == longest)


def _without_pressure(ready: tuple[Candidate, ...], now_s: float) -> Selection | Reject:
    """Leave out workers that have just refused or failed a request.

    If that leaves none, use the workers that have no open Retry-After; if there are none either, reject.
    """
    open_now = [c for c in ready if c.endpoint.health.refused_until_s <= now_s]
    if not open_now:
        wait_s = min(c.endpoint.health.refused_until_s for c in ready) - now_s
        message = "Every worker for this model has asked for a pause; try again later."
        return Reject(RequestError(ErrorKind.OVERLOADED, message, retry_after_s=wait_s))
    calm = [c for c in open_now if c.endpoint.health.avoid_until_s <= now_s]
    return Selection(tuple(calm or open_now))


def _why_not_ready(endpoints: Iterable[FleetEndpoint]) -> str:
    states = "; ".join(f"{endpoint.id} is {endpoint.state.value} ({endpoint.reason})" for endpoint in endpoints)
    return f"no worker is ready: {states}" if states else "no worker is ready: the fleet is empty"


def _why_excluded(
    endpoint: FleetEndpoint,
    request: Request,
    candidate_set: CandidateSet,
    fits: tuple[FleetEndpoint, ...] | None,
) -> str:
    if endpoint not in candidate_set.able and endpoint.facts is not None:
        return f"does not serve {request.model}"
    if fits is not None and endpoint not in fits:
        return "its max_model_len is too short for this prompt"
    if endpoint.state is not WorkerState.READY:
        return f"{endpoint.state.value}: {endpoint.reason}"
    return "avoided for a moment: it has just refused or failed a request, or another worker has its trial"
