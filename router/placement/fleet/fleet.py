"""The fleet: endpoints, their states, and the candidates for a request."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from backends.worker import Endpoint, LoadReport, ServedModel, WorkerFacts
from policies.view import Residency
from router.config.model import HealthConfig
from router.config.on_request import OnRequest
from router.placement.fleet.endpoints import PREFILL, Candidate, FleetEndpoint
from router.placement.fleet.evidence import WorkerEvidence
from router.placement.fleet.health import SERVING, Health, WorkerState
from router.placement.fleet.panic import is_needed
from router.placement.fleet.residency_source import ResidencySource
from router.placement.fleet.roles import prefills

__all__ = ["Candidate", "CandidateSet", "Fleet", "FleetEndpoint", "WorkerState"]

EVIDENCE_S = 0.1
"""How old the last reads in `Fleet.evidence` may be, so that many quiet streams cost no more than one."""


@dataclass(frozen=True, slots=True)
class CandidateSet:
    """The endpoints that serve one model: `able` in any state, `ready` candidates, and `half_open` endpoints for
    trials.

    `shortest_tokens` is the least context length among `able`; None if no worker reports one. `model` is the name by
    which the workers report it: for a name that they resolve on request, that of its base.
    """

    able: tuple[FleetEndpoint, ...]
    ready: tuple[Candidate, ...]
    half_open: tuple[FleetEndpoint, ...]
    shortest_tokens: int | None
    model: str | None = None


class Fleet:
    """Every endpoint that the router knows, in the order they joined.

    Callbacks, which must not raise:

    * `on_change`: a candidate becomes available or free for a trial, or an endpoint's first probe has failed.
    * `on_load`: a load report arrived.
    * `on_loss`: probes ejected an endpoint, or an endpoint was removed that was not draining or shutting down.
    * `on_removal`: an endpoint was removed.
    * `on_unknown_model`: a request named a model that no worker serves, or that its worker turned out not to serve.
    * `on_doubt`: an endpoint's process may have died, and a probe should find out.
    * `on_refusal`: an endpoint refused a connection.
    * `on_process`: an endpoint identified its process; arguments: whether it is new, and when the question was asked.

    * `on_evidence`: evidence will be judged; note now when bytes of answers last arrived.

    Calls for removed endpoints are ignored, because results may arrive after a removal.
    """

    def __init__(
        self, health: HealthConfig, residency: ResidencySource, *, kv_events: bool = True, connector: str | None = None
    ) -> None:
        """With a KV `connector`, workers of the role prefill are no candidates for whole requests."""
        self.on_change: list[Callable[[], None]] = []
        self.on_load: list[Callable[[Candidate, LoadReport, float], None]] = []
        self.on_loss: list[Callable[[FleetEndpoint], None]] = []
        self.on_unknown_model: list[Callable[[str], None]] = []
        self.on_doubt: list[Callable[[FleetEndpoint], None]] = []
        self.on_removal: list[Callable[[FleetEndpoint], None]] = []
        self.on_refusal: list[Callable[[FleetEndpoint], None]] = []
        self.on_process: list[Callable[[FleetEndpoint, bool, float], None]] = []
        self.on_evidence: list[Callable[[], None]] = []
        self.pressure_until_s = 0.0
        """After this time no endpoint is backing off: a quick test for the hot path."""
        self._health = health
        self._residency = residency
        self._kv_events = kv_events
        self._endpoints: dict[str, FleetEndpoint] = {}
        self._slots: list[Candidate | None] = []
        self._connector = connector
        self._candidate_sets: dict[str | None, CandidateSet] = {}
        self._prefill_sets: dict[str | None, CandidateSet] = {}
        self._adapters: frozenset[str] | None = None
        self._listed: frozenset[str] | None = None
        self._different_models: tuple[str, ...] | None = None
        self._on_request = OnRequest({})
        self._bases: dict[str, str | None] = {}
        self._gathered_s = -math.inf

    @property
    def endpoints(self) -> tuple[FleetEndpoint, ...]:
        return tuple(self._endpoints.values())

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        return tuple(candidate for endpoint in self._endpoints.values() for candidate in endpoint.candidates)

    @property
    def serving(self) -> int:
        return sum(endpoint.state in SERVING for endpoint in self._endpoints.values())

    def get(self, endpoint_id: str) -> FleetEndpoint | None:
        return self._endpoints.get(endpoint_id)

    def name_of(self, worker: str) -> str | None:
        endpoint = self._endpoints.get(worker.partition("#")[0])
        return None if endpoint is None else endpoint.name

    def evidence(self, endpoint: FleetEndpoint, now_s: float) -> WorkerEvidence:
        """Return what is known of the endpoint's life. Its last reads are at most `EVIDENCE_S` old.

        The data plane notes no read: it is asked here, for all endpoints at once.
        """
        if now_s - self._gathered_s >= EVIDENCE_S:
            self._gathered_s = now_s
            _notify(self.on_evidence)
        return endpoint.evidence

    def lost(self, endpoint: FleetEndpoint) -> bool:
        here = self._endpoints.get(endpoint.id) is endpoint
        return not here or endpoint.health.condition is WorkerState.UNHEALTHY

    def dead(self, endpoint: FleetEndpoint, now_s: float) -> bool:
        """Return whether `endpoint` is lost, and will not answer its requests as far as can be known.

        False after an ejection by time-outs alone if the endpoint has given any sign of life since the first of them.
        """
        if not self.lost(endpoint):
            return False
        since_s = endpoint.health.silent_since_s
        return since_s is None or self.evidence(endpoint, now_s).life_s <= since_s

    # operators

    def add(self, endpoint: Endpoint, now_s: float, labels: Mapping[str, str] | None = None) -> FleetEndpoint:
        """Add an endpoint with its labels. If it is in the fleet already, return it unchanged."""
        known = self._endpoints.get(endpoint.authority)
        if known is not None:
            return known
        joined = FleetEndpoint(endpoint, Health(self._health), labels or {})
        self._endpoints[joined.id] = joined
        self._forget_candidate_sets()
        return joined

    def remove(self, endpoint_id: str) -> None:
        """Remove an endpoint. Its running requests continue, and their events are still accepted."""
        gone = self._endpoints.pop(endpoint_id, None)
        if gone is not None:
            self._drop_candidates(gone)
            self._forget_candidate_sets()
            if not gone.draining and gone.stopping_since_s is None:
                _notify(self.on_loss, gone)
            _notify(self.on_removal, gone)

    def describe(self, endpoint_id: str, labels: Mapping[str, str], weight: float, name: str | None, role: str) -> None:
        """Replace what the operator says about an endpoint, from the next decision on."""
        endpoint = self._endpoints.get(endpoint_id)
        if endpoint is None:
            return
        endpoint.name = name
        if endpoint.role != role:
            endpoint.role = role
            self._forget_candidate_sets()
            if self._connector is not None:
                _notify(self.on_change)
        if (endpoint.labels, endpoint.weight) != (labels, weight):
            endpoint.labels, endpoint.weight = labels, weight
            self._forget_candidate_sets()

    def drain(self, endpoint_id: str) -> None:
        self._set_draining(endpoint_id, True)

    def undrain(self, endpoint_id: str) -> None:
        """Send requests to the endpoint again, also if it has answered that it shuts down."""
        self._set_draining(endpoint_id, False)
        endpoint = self._endpoints.get(endpoint_id)
        if endpoint is not None:
            self._goes_on(endpoint)

    # probes and scrapes

    def probe_succeeded(self, endpoint_id: str, facts: WorkerFacts, now_s: float) -> None:
        """Store the facts from a probe. An ejected worker may have restarted, so an approximate model of its cache
        starts empty."""
        endpoint = self._endpoints.get(endpoint_id)
        if endpoint is None:
            return
        before, was_down = endpoint.state, endpoint.health.condition is WorkerState.UNHEALTHY
        changed = facts != endpoint.facts
        endpoint.learn(facts)
        self._fit_candidates(endpoint)
        endpoint.evidence.answered(now_s)
        if endpoint.stopping_since_s is not None and endpoint.evidence.refused_s > endpoint.stopping_since_s:
            endpoint.stopping_since_s = None  # its port was closed: another process has opened it
        endpoint.health.probe_succeeded(now_s)
        if was_down and endpoint.health.condition is WorkerState.HALF_OPEN:
            self._forget_guesses(endpoint)
        self._update(endpoint, before, changed=changed)

    def restarted(self, endpoint_id: str, now_s: float) -> None:
        """Record that a new process, with an empty cache, answers at an endpoint that was not ejected."""
        endpoint = self._endpoints.get(endpoint_id)
        if endpoint is not None:
            self._forget_guesses(endpoint)
            endpoint.ranks.forget()
            self._goes_on(endpoint)
            _notify(self.on_process, endpoint, True, now_s)

    def continues(self, endpoint_id: str, asked_s: float) -> None:
        endpoint = self._endpoints.get(endpoint_id)
        if endpoint is not None:
            _notify(self.on_process, endpoint, False, asked_s)

    def probe_failed(self, endpoint_id: str, reason: str, now_s: float, *, late_since_s: float | None = None) -> None:
        """Record that a probe failed. With `late_since_s` it began then and timed out; see `Health.probe_late`."""
        endpoint = self._endpoints.get(endpoint_id)
        if endpoint is not None:
            before, was_down, first = endpoint.state, self.lost(endpoint), not endpoint.health.probed
            if late_since_s is None:
                endpoint.health.probe_failed(reason, now_s)
            else:
                endpoint.health.probe_late(reason, late_since_s, now_s, needed=self.needed(endpoint))
                self._under_pressure(endpoint)
            self._update(endpoint, before)
            if first:
                _notify(self.on_change)  # queued requests that waited for the first probe may now be refused
            if self.lost(endpoint) and not was_down:
                _notify(self.on_loss, endpoint)

    def load_reported(self, endpoint_id: str, report: LoadReport, now_s: float) -> None:
        endpoint = self._endpoints.get(endpoint_id)
        if endpoint is not None:
            endpoint.evidence.reported(report, now_s)
        for candidate in endpoint.candidates if endpoint else ():
            if candidate.rank == report.rank or candidate.rank is None:
                candidate.load = report
                _notify(self.on_load, candidate, report, now_s)

    # traffic

    def trial_started(self, endpoint: FleetEndpoint) -> None:
        endpoint.health.trial_running = True

    def trial_given_up(self, endpoint: FleetEndpoint) -> None:
        """End the trial without a result, for example because its client left. Another request may become the trial."""
        endpoint.health.trial_running = False
        if endpoint.state is WorkerState.HALF_OPEN:
            _notify(self.on_change)

    def traffic_succeeded(self, endpoint: FleetEndpoint, *, trial: bool, complete: bool) -> None:
        """Record a first token or, with `complete`, a complete answer, which may be a 4xx."""
        before = endpoint.state
        endpoint.health.traffic_succeeded(trial=trial, complete=complete)
        self._update(endpoint, before)

    def self_test_answered(self, endpoint: FleetEndpoint) -> None:
        """Record that the worker answered the self-test, which bypasses the dispatcher. It counts as a trial."""
        self.traffic_succeeded(endpoint, trial=True, complete=True)

    def traffic_failed(self, endpoint: FleetEndpoint, reason: str, now_s: float, *, trial: bool) -> None:
        before = endpoint.state
        endpoint.health.traffic_failed(reason, now_s, trial=trial)
        self._under_pressure(endpoint)
        self._update(endpoint, before)

    def traffic_late(self, endpoint: FleetEndpoint, reason: str, began_s: float, now_s: float, *, trial: bool) -> None:
        """Record that a request, placed at `began_s`, got no event in time.

        It does not count while the worker has done something else meanwhile, or is needed.
        """
        if self.evidence(endpoint, now_s).progress_s >= began_s or self.needed(endpoint):
            self.avoid(endpoint, None, now_s, trial=trial)
        else:
            self.traffic_failed(endpoint, reason, now_s, trial=trial)

    def avoid(self, endpoint: FleetEndpoint, retry_after_s: float | None, now_s: float, *, trial: bool) -> None:
        """Record an outcome that may not be the worker's fault: avoid it for the Retry-After, or for a moment."""
        endpoint.health.avoid(now_s, retry_after_s)
        self._under_pressure(endpoint)
        if trial:
            self.trial_given_up(endpoint)

    def stops(self, endpoint: FleetEndpoint, now_s: float, *, trial: bool) -> None:
        """Record that the worker answered that it shuts down. It gets no request until another process answers."""
        before = endpoint.state
        if endpoint.stopping_since_s is None:
            endpoint.stopping_since_s = now_s
        if trial:
            endpoint.health.trial_running = False
        self._update(endpoint, before)

    def _goes_on(self, endpoint: FleetEndpoint) -> None:
        before, endpoint.stopping_since_s = endpoint.state, None
        self._update(endpoint, before)

    def unknown_model(self, model: str) -> None:
        """Report that a request named a model that no worker serves, or that a worker lists and does not serve."""
        _notify(self.on_unknown_model, model)

    def doubt(self, endpoint: FleetEndpoint) -> None:
        _notify(self.on_doubt, endpoint)

    def refused(self, endpoint_id: str, now_s: float) -> None:
        endpoint = self._endpoints.get(endpoint_id)
        if endpoint is not None:
            endpoint.evidence.refused(now_s)
            _notify(self.on_refusal, endpoint)

    # models

    def resolve(self, on_request: OnRequest) -> None:
        """Use other rules for names that workers resolve on request. Queued requests may have a worker now."""
        self._on_request = on_request
        self._forget_candidate_sets()

    def base(self, model: str | None) -> str | None:
        """Return the model whose workers resolve `model` on request; None if `model` is a usual name.

        Without a rule for a name that the settings have and no worker lists, that is the fleet's only model. An adapter
        that only workers of its base list, because they have loaded it, may be loaded by the others, too.
        """
        if model is None:
            return None
        bases = self._bases
        if model not in bases:
            if len(bases) >= 1_024:  # bounded, because the names come from clients
                bases.clear()
            bases[model] = self._find_base(model)
        return bases[model]

    def _find_base(self, model: str) -> str | None:
        base = self._on_request.base(model)
        if base is None:
            models = self.different_models
            only = model in self._on_request.named and len(models) == 1 and not self.lists(model)
            return models[0] if only else None
        for endpoint in self._endpoints.values():
            for card in endpoint.facts.models if endpoint.facts is not None else ():
                if card.id == model and not (card.parent and endpoint.may_serve(base)):
                    return None
        return base

    def candidate_set(self, model: str | None) -> CandidateSet:
        """Return the endpoints and candidates that serve `model`; None stands for any model."""
        candidate_set = self._candidate_sets.get(model)
        if candidate_set is None:
            candidate_set = self._built(self._candidate_sets, model, prefill=False)
        return candidate_set

    def prefill_set(self, model: str | None) -> CandidateSet:
        """Return the endpoints and candidates that may compute prompts of `model` for other workers."""
        return self._prefill_sets.get(model) or self._built(self._prefill_sets, model, prefill=True)

    def needed(self, endpoint: FleetEndpoint) -> bool:
        """Return whether time-outs alone may not eject the endpoint, because too few others would be left."""
        role = self.only_prefills(endpoint)
        same_role = [one for one in self._endpoints.values() if self.only_prefills(one) is role]
        return is_needed(endpoint, same_role, self._health.panic_threshold)

    def only_prefills(self, endpoint: FleetEndpoint) -> bool:
        return self._connector is not None and endpoint.role == PREFILL

    def _takes(self, endpoint: FleetEndpoint, prefill: bool) -> bool:
        if prefill:
            return prefills(endpoint.role, endpoint.labels, self._connector)
        return not self.only_prefills(endpoint)

    def adapter(self, model: str | None) -> str | None:
        """Return `model` if it is a LoRA adapter on some worker, or a name that one resolves on request, else None."""
        adapters = self._adapters
        if adapters is None:
            adapters = self._adapters = frozenset(card.id for card in self._cards() if card.parent)
        return model if model in adapters or self.base(model) is not None else None

    def lists(self, model: str) -> bool:
        listed = self._listed
        if listed is None:
            listed = self._listed = frozenset(card.id for card in self._cards())
        return model in listed

    def models(self) -> tuple[ServedModel, ...]:
        """Return the models of all workers; of several cards with one id, the one with the longest context."""
        union: dict[str, ServedModel] = {}
        for card in self._cards():
            kept = union.get(card.id)
            if kept is None or (kept.max_model_len or 0) < (card.max_model_len or 0):
                union[card.id] = card
        return tuple(union.values())

    @property
    def different_models(self) -> tuple[str, ...]:
        """One name of each model. Adapters, and further names of a model by its `root`, do not count."""
        found = self._different_models
        if found is None:
            by_root: dict[str, str] = {}
            for card in self._cards():
                if not card.parent:
                    by_root.setdefault(card.root or card.id, card.id)
            found = self._different_models = tuple(by_root.values())
        return found

    def model_known(self, model: str) -> bool | None:
        """Return whether any worker serves `model`; None if that cannot be known yet.

        A worker that is down counts with the models that it listed last, and a worker that has never answered with
        none. The result is None in three cases: no worker has listed models yet, a first probe has not ended, or a
        worker does not list its models.
        """
        if any(card.id == model for card in self._cards()):
            return True
        endpoints = self._endpoints.values()
        open_ones = any(
            not endpoint.health.probed if endpoint.facts is None else not endpoint.facts.models
            for endpoint in endpoints
        )
        return False if any(endpoint.models_known for endpoint in endpoints) and not open_ones else None

    @property
    def unheard(self) -> tuple[FleetEndpoint, ...]:
        """Endpoints that have never answered a probe."""
        return tuple(endpoint for endpoint in self._endpoints.values() if endpoint.facts is None)

    def panics(self) -> dict[str, float]:
        """Return the models whose workers are kept in spite of their time-outs, and since when.

        A worker that does not list its models counts for the model "".
        """
        since: dict[str, float] = {}
        for endpoint in self._endpoints.values():
            kept_s = endpoint.health.kept_since_s
            if kept_s is not None:
                for model in endpoint.models or ("",):
                    since[model] = min(kept_s, since.get(model, kept_s))
        return since

    # internal

    def _cards(self) -> list[ServedModel]:
        known = [endpoint.facts for endpoint in self._endpoints.values() if endpoint.facts is not None]
        return [card for facts in known for card in facts.models]

    def _built(self, kept: dict[str | None, CandidateSet], model: str | None, *, prefill: bool) -> CandidateSet:
        candidate_set = self._build_candidate_set(model, prefill)
        if len(kept) >= 1_024:  # bounded, because the names come from clients
            kept.clear()
        kept[model] = candidate_set
        return candidate_set

    def _build_candidate_set(self, model: str | None, prefill: bool) -> CandidateSet:
        model = self.base(model) or model
        able = tuple(
            endpoint
            for endpoint in self._endpoints.values()
            if endpoint.may_serve(model) and self._takes(endpoint, prefill)
        )
        lengths = [endpoint.lengths[model] for endpoint in able if model is not None and model in endpoint.lengths]
        ready = tuple(c for endpoint in able if endpoint.state is WorkerState.READY for c in endpoint.candidates)
        half_open = tuple(endpoint for endpoint in able if endpoint.state is WorkerState.HALF_OPEN)
        return CandidateSet(able, ready, half_open, min(lengths, default=None), model)

    def _set_draining(self, endpoint_id: str, draining: bool) -> None:
        endpoint = self._endpoints.get(endpoint_id)
        if endpoint is not None:
            before = endpoint.state
            endpoint.draining = draining
            self._update(endpoint, before)

    def _update(self, endpoint: FleetEndpoint, before: WorkerState, *, changed: bool = False) -> None:
        if changed or endpoint.state is not before:
            self._forget_candidate_sets()
            if endpoint.state in SERVING:
                _notify(self.on_change)

    def _forget_candidate_sets(self) -> None:
        self._candidate_sets.clear()
        self._prefill_sets.clear()
        self._adapters = self._listed = None
        self._different_models = None
        self._bases.clear()

    def _under_pressure(self, endpoint: FleetEndpoint) -> None:
        health = endpoint.health
        self.pressure_until_s = max(self.pressure_until_s, health.avoid_until_s, health.refused_until_s)

    # candidates and their slots

    def _fit_candidates(self, endpoint: FleetEndpoint) -> None:
        facts = endpoint.facts
        assert facts is not None
        if len(endpoint.candidates) != facts.ranks:
            self._drop_candidates(endpoint)
            ranks = range(facts.ranks) if facts.ranks > 1 else (None,)
            endpoint.candidates = tuple(self._new_candidate(endpoint, rank) for rank in ranks)
        sources = {source.rank for source in facts.event_sources} if self._kv_events else set()
        for candidate in endpoint.candidates:
            rank = candidate.rank or 0
            if candidate.describe(facts.caches.get(rank), rank in sources):
                self._reconfigure(candidate)

    def _new_candidate(self, endpoint: FleetEndpoint, rank: int | None) -> Candidate:
        if None not in self._slots:
            self._slots.append(None)
        candidate = Candidate(endpoint, self._slots.index(None), rank)
        self._slots[candidate.slot] = candidate
        self._residency.add(candidate.slot, candidate.id, candidate.block_tokens, candidate.capacity_blocks, False)
        return candidate

    def _drop_candidates(self, endpoint: FleetEndpoint) -> None:
        for candidate in endpoint.candidates:
            candidate.live = False
            self._slots[candidate.slot] = None
            self._residency.remove(candidate.slot)
        endpoint.candidates = ()

    def _reconfigure(self, candidate: Candidate) -> None:
        self._residency.slot(candidate.slot).configure(
            block_size=candidate.block_tokens,
            capacity_blocks=candidate.capacity_blocks,
            events=candidate.events,
        )
        if not candidate.caches:
            reason = "prefix caching is switched off on this worker (--no-enable-prefix-caching)"
            self._residency.slot(candidate.slot).tested(Residency.OFF, reason)

    def _forget_guesses(self, endpoint: FleetEndpoint) -> None:
        for candidate in endpoint.candidates:
            if not candidate.events:
                slot, blocks = candidate.slot, candidate.capacity_blocks
                self._residency.remove(slot)
                self._residency.add(slot, candidate.id, candidate.block_tokens, blocks, False)
                self._reconfigure(candidate)


def _notify(callbacks: Iterable[Callable[..., None]], *event: object) -> None:
    for callback in tuple(callbacks):  # a callback may remove itself
        callback(*event)
