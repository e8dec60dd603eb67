"""The fleet: endpoints, their states, and the candidates for a request."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from backends.worker import Endpoint, LoadReport, WorkerFacts
from router.config.model import HealthConfig
from router.config.on_request import OnRequest
from router.placement.fleet.candidate_sets import CandidateSet, CandidateSets
from router.placement.fleet.endpoints import Candidate, FleetEndpoint
from router.placement.fleet.evidence import WorkerEvidence
from router.placement.fleet.health import SERVING, Health, WorkerState
from router.placement.fleet.models import FleetModels
from router.placement.fleet.notify import notify
from router.placement.fleet.panic import is_needed
from router.placement.fleet.residency_source import ResidencySource
from router.placement.fleet.slots import CandidateSlots

__all__ = ["Candidate", "CandidateSet", "Fleet", "FleetEndpoint", "WorkerState"]

EVIDENCE_S = 0.1
"""How old the last reads in `Fleet.evidence` may be, so that many quiet streams cost no more than one."""


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
        self._slots = CandidateSlots(residency, kv_events=kv_events)
        self._endpoints: dict[str, FleetEndpoint] = {}
        self._connector = connector
        self._gathered_s = -math.inf
        self.models = FleetModels(self._endpoints)
        self.candidate_sets = CandidateSets(self._endpoints, self.models, connector)

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
            notify(self.on_evidence)
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
            self._slots.drop(gone)
            self._forget_candidate_sets()
            if not gone.draining and gone.stopping_since_s is None:
                notify(self.on_loss, gone)
            notify(self.on_removal, gone)

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
                notify(self.on_change)
        if (endpoint.labels, endpoint.weight) != (labels, weight):
            endpoint.labels, endpoint.weight = labels, weight
            self._forget_candidate_sets()

    def drain(self, endpoint_id: str, migrate_after_s: float | None = None) -> None:
        """Send no new requests. Answers in progress move `migrate_after_s` later; None: as their route says."""
        self._set_draining(endpoint_id, True)
        endpoint = self._endpoints.get(endpoint_id)
        if endpoint is not None:
            endpoint.migrate_after_s = migrate_after_s

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
        self._slots.fit(endpoint)
        endpoint.evidence.answered(now_s)
        if endpoint.stopping_since_s is not None and endpoint.evidence.refused_s > endpoint.stopping_since_s:
            endpoint.stopping_since_s = None  # its port was closed: another process has opened it
        endpoint.health.probe_succeeded(now_s)
        if was_down and endpoint.health.condition is WorkerState.HALF_OPEN:
            self._slots.forget_guesses(endpoint)
        self.update(endpoint, before, changed=changed)

    def restarted(self, endpoint_id: str, now_s: float) -> None:
        """Record that a new process, with an empty cache, answers at an endpoint that was not ejected."""
        endpoint = self._endpoints.get(endpoint_id)
        if endpoint is not None:
            self._slots.forget_guesses(endpoint)
            endpoint.ranks.forget()
            self._goes_on(endpoint)
            notify(self.on_process, endpoint, True, now_s)

    def continues(self, endpoint_id: str, asked_s: float) -> None:
        endpoint = self._endpoints.get(endpoint_id)
        if endpoint is not None:
            notify(self.on_process, endpoint, False, asked_s)

    def probe_failed(self, endpoint_id: str, reason: str, now_s: float, *, late_since_s: float | None = None) -> None:
        """Record that a probe failed. With `late_since_s` it began then and timed out; see `Health.probe_late`."""
        endpoint = self._endpoints.get(endpoint_id)
        if endpoint is not None:
            before, was_down, first = endpoint.state, self.lost(endpoint), not endpoint.health.probed
            if late_since_s is None:
                endpoint.health.probe_failed(reason, now_s)
            else:
                endpoint.health.probe_late(reason, late_since_s, now_s, needed=self.needed(endpoint))
                self.under_pressure(endpoint)
            self.update(endpoint, before)
            if first:
                notify(self.on_change)  # queued requests that waited for the first probe may now be refused
            if self.lost(endpoint) and not was_down:
                notify(self.on_loss, endpoint)

    def load_reported(self, endpoint_id: str, report: LoadReport, now_s: float) -> None:
        endpoint = self._endpoints.get(endpoint_id)
        if endpoint is not None:
            endpoint.evidence.reported(report, now_s)
        for candidate in endpoint.candidates if endpoint else ():
            if candidate.rank == report.rank or candidate.rank is None:
                candidate.load = report
                notify(self.on_load, candidate, report, now_s)

    # traffic

    def _goes_on(self, endpoint: FleetEndpoint) -> None:
        before, endpoint.stopping_since_s = endpoint.state, None
        self.update(endpoint, before)

    def unknown_model(self, model: str) -> None:
        """Report that a request named a model that no worker serves, or that a worker lists and does not serve."""
        notify(self.on_unknown_model, model)

    def doubt(self, endpoint: FleetEndpoint) -> None:
        notify(self.on_doubt, endpoint)

    def refused(self, endpoint_id: str, now_s: float) -> None:
        endpoint = self._endpoints.get(endpoint_id)
        if endpoint is not None:
            endpoint.evidence.refused(now_s)
            notify(self.on_refusal, endpoint)

    def needed(self, endpoint: FleetEndpoint) -> bool:
        """Return whether time-outs alone may not eject the endpoint, because too few others would be left."""
        role = self.candidate_sets.only_prefills(endpoint)
        same_role = [one for one in self._endpoints.values() if self.candidate_sets.only_prefills(one) is role]
        return is_needed(endpoint, same_role)

    def resolve(self, on_request: OnRequest) -> None:
        """Use other rules for names that workers resolve on request. Queued requests may have a worker now."""
        self.models.resolve(on_request)
        self.candidate_sets.forget()

    @property
    def unheard(self) -> tuple[FleetEndpoint, ...]:
        """Endpoints that have never answered a probe."""
        return tuple(endpoint for endpoint in self._endpoints.values() if endpoint.facts is None)

    # internal

    def _set_draining(self, endpoint_id: str, draining: bool) -> None:
        endpoint = self._endpoints.get(endpoint_id)
        if endpoint is not None:
            before = endpoint.state
            endpoint.draining = draining
            self.update(endpoint, before)

    def update(self, endpoint: FleetEndpoint, before: WorkerState, *, changed: bool = False) -> None:
        if changed or endpoint.state is not before:
            self._forget_candidate_sets()
            if endpoint.state in SERVING:
                notify(self.on_change)

    def _forget_candidate_sets(self) -> None:
        self.models.forget()
        self.candidate_sets.forget()

    def under_pressure(self, endpoint: FleetEndpoint) -> None:
        health = endpoint.health
        self.pressure_until_s = max(self.pressure_until_s, health.avoid_until_s, health.refused_until_s)
