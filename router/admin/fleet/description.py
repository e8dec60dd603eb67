"""Workers as documents, from fleet, decision core, residency map and watcher."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, cast

import msgspec

from backends.worker import ConnectorFacts, WorkerFacts
from router.admin.fleet.sources import with_source
from router.admin.fleet.worker_documents import (
    CandidateDocument,
    Estimates,
    Events,
    KvConnector,
    LinkDocument,
    Load,
    PredictedCached,
    SelfTestDocument,
    ServedModelDocument,
    Worker,
)
from router.admin.system import ProcessView
from router.placement.fleet.endpoints import kv_report
from router.placement.fleet.fleet import Candidate, FleetEndpoint
from router.placement.handover.links import Link

Counters = dict[str, Any]

LINKS_SHOWN: Final = 32


def describe_workers(system: ProcessView, endpoints: Iterable[FleetEndpoint]) -> list[Worker]:
    describing = _Describing(system)
    return [with_source(system, describing.worker(endpoint)) for endpoint in endpoints]


class _Describing:
    """The statistics of all parts, read once for several endpoints."""

    def __init__(self, system: ProcessView) -> None:
        self._system = system
        self._loads = _loads(system)
        self._views = cast("dict[int, Counters]", system.residency.statistics()["slots"])
        self._in_flight = system.in_flight()
        self._links = _links(system)
        self._watches: Counters = system.watcher.statistics()["endpoints"]

    def worker(self, endpoint: FleetEndpoint) -> Worker:
        facts = endpoint.facts
        watch = self._watches.get(endpoint.id, {})
        return Worker(
            id=endpoint.id,
            url=endpoint.endpoint.url,
            state=endpoint.state.value,
            reason=endpoint.reason,
            version=facts.version if facts else None,
            restarts=watch.get("restarts", 0),
            in_flight=self._in_flight.get(endpoint.id, 0),
            models=self._models(endpoint),
            candidates=[self._candidate(candidate, watch) for candidate in endpoint.candidates],
            notes=list(facts.notes) if facts else [],
            labels=dict(endpoint.labels),
            name=endpoint.name,
            weight=endpoint.weight,
            role=endpoint.role,
            kv_connector=_kv_connector(facts) if facts else None,
        )

    def _models(self, endpoint: FleetEndpoint) -> list[ServedModelDocument]:
        describe = self._system.identity.describe
        return [
            ServedModelDocument(
                id=card.id,
                root=card.root,
                parent=card.parent,
                max_model_len=card.max_model_len,
                prompts=describe(card.id),
            )
            for card in (endpoint.facts.models if endpoint.facts else ())
        ]

    def _candidate(self, candidate: Candidate, watch: Counters) -> CandidateDocument:
        view = self._system.residency.slot(candidate.slot).state()
        load = self._loads.get(candidate.id, {})
        subscription = watch.get("subscriptions", {}).get(candidate.id)
        self_test = watch.get("self_tests", {}).get(candidate.id)
        followed = {**self._views.get(candidate.slot, {}), **subscription} if subscription else None
        return CandidateDocument(
            id=candidate.id,
            rank=candidate.rank,
            residency=view.residency.value,
            reason=view.reason,
            blocks=view.blocks,
            block_size=view.block_size,
            capacity_blocks=view.capacity_blocks,
            capacity_tokens=None if view.capacity_blocks is None else view.capacity_blocks * view.block_size,
            load=msgspec.convert(load, Load),
            estimates=msgspec.convert(load, Estimates),
            predicted_cached=msgspec.convert(load.get("predicted_cached", {}), PredictedCached),
            events=msgspec.convert(followed, Events | None),
            self_test=msgspec.convert(self_test, SelfTestDocument | None),
            links=[
                LinkDocument(link.sender.id, link.kind, link.tokens_per_s, link.latency_s, link.transfers)
                for link in self._links.get(candidate, ())[:LINKS_SHOWN]
            ],
        )


def _links(system: ProcessView) -> dict[Candidate, list[Link]]:
    """Return the links to each candidate, slowest first."""
    found: dict[Candidate, list[Link]] = {}
    for link in sorted(system.core.planner.known_links(system.now_s()), key=lambda link: link.tokens_per_s):
        found.setdefault(link.receiver, []).append(link)
    return found


def _loads(system: ProcessView) -> dict[str, Counters]:
    """Return reserved load and learned speeds of each candidate, with the estimates for a new request."""
    loads: dict[str, Counters] = system.core.loads.statistics(system.fleet.candidates)
    now_s = system.now_s()
    candidates = system.fleet.candidates
    sources = {one.id: system.core.loads.speed_source(one, now_s) for one in candidates}
    for view in system.core.loads.shown(candidates, now_s):
        loads[view.id] |= {
            "queue_wait_s": view.queue_wait_s,
            "utilisation": view.utilisation,
            "speed": sources[view.id],
        }
    return loads


def _kv_connector(facts: WorkerFacts) -> KvConnector:
    report, known = kv_report(facts), facts.connector or ConnectorFacts()
    same = ("name", "role", "load_failure_policy", "lease_s", "side_host", "side_port")
    return KvConnector(
        cache_type=report.cache_type,
        hash_algorithm=report.hash_algorithm,
        model_type=known.dtype,
        **{name: getattr(known, name) for name in same},
    )
