"""The parts of a fleet: endpoints, and the candidates behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from backends.worker import Endpoint, LoadReport, RankCache, WorkerFacts
from policies.view import WorkerId
from router.placement.fleet.evidence import WorkerEvidence
from router.placement.fleet.health import SERVING, Health, WorkerState
from router.placement.fleet.rank_numbers import RankNumbers

DEFAULT_BLOCK_TOKENS = 16
"""vLLM's default block size on CUDA, for workers whose /metrics does not state it."""


MIXED = "mixed"
"""The role of a worker that an operator gave none."""
PREFILL = "prefill"
"""The role of a worker that computes prompts for decode workers, where the setting `handover` has a connector."""
DECODE = "decode"
"""The role of a worker that receives the KV cache of prompts. It takes whole requests, too."""


@dataclass(slots=True, eq=False, repr=False)
class Candidate:
    """A place where a request can go: an endpoint, or one data-parallel rank of it. Compared by identity.

    `slot` is a small integer, unique among live candidates. It is reused after this candidate has left, so check
    `live` before a late use. `rank` is None if the endpoint has one rank. `load` is the rank's last report.
    """

    endpoint: FleetEndpoint
    slot: int
    rank: int | None
    block_tokens: int = DEFAULT_BLOCK_TOKENS
    capacity_blocks: int | None = None
    capacity_tokens: int = 0
    """Size of the KV cache; 0 if unknown."""
    caches: bool = True
    events: bool = False
    live: bool = True
    load: LoadReport | None = None
    id: WorkerId = field(init=False)

    def __post_init__(self) -> None:
        self.id = WorkerId(self.endpoint.id if self.rank is None else f"{self.endpoint.id}#{self.rank}")

    def describe(self, cache: RankCache | None, events: bool) -> bool:
        """Store a probe's report about this rank's cache; return True if anything changed."""
        before = (self.block_tokens, self.capacity_blocks, self.caches, self.events)
        if cache is not None:
            self.block_tokens = cache.hash_block_size or cache.block_size
            self.capacity_blocks = cache.capacity_tokens // self.block_tokens
            self.capacity_tokens = self.block_tokens * self.capacity_blocks
            self.caches = cache.prefix_caching
        self.events = events
        return before != (self.block_tokens, self.capacity_blocks, self.caches, self.events)


class KvReport(NamedTuple):
    """What a worker reports about its KV cache and its connector, as far as it does."""

    cache_type: str | None = None
    hash_algorithm: str | None = None
    connector: str | None = None
    model_type: str | None = None


def kv_report(facts: WorkerFacts) -> KvReport:
    cache, connector = next(iter(facts.caches.values()), None), facts.connector
    cached = (None, None) if cache is None else (cache.dtype, cache.hash_algorithm)
    return KvReport(*cached, *((None, None) if connector is None else (connector.name, connector.dtype)))


@dataclass(slots=True, eq=False, repr=False)
class FleetEndpoint:
    """One worker endpoint with its health, facts and candidates. `facts` is None until a probe has succeeded."""

    endpoint: Endpoint
    health: Health
    labels: Mapping[str, str] = field(default_factory=dict)
    """The operator's labels, for policies."""
    name: str | None = None
    weight: float = 1.0
    role: str = MIXED
    evidence: WorkerEvidence = field(default_factory=WorkerEvidence)
    facts: WorkerFacts | None = None
    kv_report: KvReport = field(default_factory=KvReport)
    ranks: RankNumbers = field(default_factory=RankNumbers)
    candidates: tuple[Candidate, ...] = ()
    draining: bool = False
    migrate_after_s: float | None = None
    """When answers leave it in a drain, in place of what their route says."""
    stopping_since_s: float | None = None
    """When the worker answered that it shuts down; None if its present process has not."""
    lengths: dict[str, int] = field(default_factory=dict)
    id: str = field(init=False)

    def __post_init__(self) -> None:
        self.id = self.endpoint.authority

    @property
    def state(self) -> WorkerState:
        if self.draining:
            return WorkerState.DRAINING
        if self.stopping_since_s is not None and self.health.condition in SERVING:
            return WorkerState.DRAINING
        if self.health.condition is not WorkerState.READY:
            return self.health.condition
        return WorkerState.ASLEEP if self.facts is not None and self.facts.sleeping else WorkerState.READY

    @property
    def reason(self) -> str:
        """The cause of this state, for operators."""
        state = self.state
        if state is WorkerState.DRAINING and not self.draining:
            return "shuts down: it answered that it takes no new requests"
        if state is WorkerState.DRAINING:
            return "drained by the operator: takes no new requests"
        if state is WorkerState.ASLEEP:
            return "the worker is in sleep mode; wake it up to use it"
        if self.health.kept_since_s is not None:
            return "its probes time out, and it does nothing; it stays in use because too few others are left"
        return self.health.reason

    @property
    def models(self) -> tuple[str, ...]:
        return () if self.facts is None else tuple(card.id for card in self.facts.models)

    @property
    def models_known(self) -> bool:
        return self.facts is not None and bool(self.facts.models)

    def may_serve(self, model: str | None) -> bool:
        if self.facts is None:
            return False
        if model is None or not self.facts.models:
            return True
        return any(card.id == model for card in self.facts.models)

    def learn(self, facts: WorkerFacts) -> None:
        """Store the facts from a probe. An adapter without a context length gets the length of its parent."""
        self.facts = facts
        self.kv_report = kv_report(facts)
        self.ranks.learn(facts.engines)
        own = {card.id: card.max_model_len for card in facts.models}
        lengths = {card.id: card.max_model_len or own.get(card.parent or "") for card in facts.models}
        self.lengths = {model: length for model, length in lengths.items() if length}
