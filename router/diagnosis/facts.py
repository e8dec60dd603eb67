"""What the gateway knows of its parts beside the metrics: the reasons that a finding names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from router.diagnosis.split_plan import PoolMember
from router.placement.fleet.fleet import Fleet, FleetEndpoint
from router.placement.fleet.health import SERVING
from router.residency.residency_map import ResidencyMap
from router.tokenization.prompt_identifier import PromptIdentifier

SLOW_PROMPTS = "worker's /tokenize"
"""How `router.tokenization` describes a model whose prompts a worker tokenises."""
MODELS_KEPT = 256
"""Models in the facts and in the metrics about models."""


class ViewFact(msgspec.Struct, frozen=True):
    """The view of one candidate's cache."""

    id: str
    residency: str
    reason: str


class WorkerFact(msgspec.Struct, frozen=True):
    """One worker, and why it is in its state. `publishes`: it publishes KV events.
    `cache_type` is that of its KV cache, and `connector` its KV connector, if it says so.
    """

    id: str
    name: str | None
    state: str
    reason: str
    models: list[str]
    views: list[ViewFact]
    publishes: bool
    cache_type: str | None = None
    connector: str | None = None

    @property
    def shown(self) -> str:
        return self.id if self.name is None else f"{self.name} ({self.id})"


class Facts(msgspec.Struct, frozen=True):
    """The workers, how the prompts of each model become tokens, and reasons by what they are about: a source of
    workers, `redis`, `state` or `replicas`. `pool` are the workers for a plan of their roles, and `link` is the
    `LinkSpeed` between two of them."""

    workers: list[WorkerFact] = []
    prompts: dict[str, str] = {}
    reasons: dict[str, str] = {}
    pool: list[PoolMember] = []
    link: tuple[float, float] | None = None

    def worker(self, name: str) -> WorkerFact | None:
        return next((one for one in self.workers if one.id == name), None)

    def is_out(self, candidate: str) -> bool:
        """Return whether a candidate's worker is known, and gets no requests."""
        found = self.worker(candidate.partition("#")[0])
        return found is not None and found.state not in SERVING

    def view(self, name: str) -> ViewFact | None:
        return next((view for one in self.workers for view in one.views if view.id == name), None)

    @property
    def publishing(self) -> bool:
        """Whether every worker publishes KV events."""
        return bool(self.workers) and all(one.publishes for one in self.workers)


def facts_of(fleet: Fleet, residency: ResidencyMap, identity: PromptIdentifier, reasons: Mapping[str, str]) -> Facts:
    workers = [_worker(endpoint, residency) for endpoint in fleet.endpoints]
    names = {model: None for worker in workers for model in worker.models}
    prompts = {model: identity.describe(model) for model in list(names)[:MODELS_KEPT]}
    return Facts(workers, prompts, dict(reasons))


def _worker(endpoint: FleetEndpoint, residency: ResidencyMap) -> WorkerFact:
    facts, report = endpoint.facts, endpoint.kv_report
    states = [(one, residency.slot(one.slot).state()) for one in endpoint.candidates]
    return WorkerFact(
        endpoint.id,
        endpoint.name,
        endpoint.state.value,
        endpoint.reason,
        [card.id for card in facts.models[:MODELS_KEPT]] if facts is not None else [],
        [ViewFact(one.id, state.residency.value, state.reason) for one, state in states],
        bool(facts is not None and facts.event_sources),
        report.cache_type,
        report.connector,
    )


def over_processes(parts: Mapping[int, Facts]) -> Facts:
    """Return the facts of several processes as one. A worker that processes see in several states has the worst one's
    reason, with the process that gave it."""
    if not parts:
        return Facts()
    by_id: dict[str, list[tuple[int, WorkerFact]]] = {}
    for process, facts in parts.items():
        for worker in facts.workers:
            by_id.setdefault(worker.id, []).append((process, worker))
    prompts = {model: way for facts in reversed(list(parts.values())) for model, way in facts.prompts.items()}
    reasons = {about: why for facts in reversed(list(parts.values())) for about, why in facts.reasons.items()}
    first, *_ = parts.values()
    return Facts([_one(seen) for seen in by_id.values()], prompts, reasons, first.pool, first.link)


def _one(seen: Iterable[tuple[int, WorkerFact]]) -> WorkerFact:
    (process, first), *others = sorted(seen, key=lambda one: (_RANK.get(one[1].state, 0), one[0]))
    differing = any(other.state != first.state for _, other in others)
    reason = f"{first.reason}, says process {process}" if differing else first.reason
    return msgspec.structs.replace(first, reason=reason)


_RANK = {"unhealthy": 0, "starting": 1, "asleep": 2, "draining": 3, "half_open": 4, "ready": 5}
