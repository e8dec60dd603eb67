"""The candidates of each endpoint, their slots, and what the residency map must know of them."""

from __future__ import annotations

from policies.view import Residency
from router.placement.fleet.endpoints import Candidate, FleetEndpoint
from router.placement.fleet.residency_source import ResidencySource


class CandidateSlots:
    """Makes a candidate for each data-parallel rank, and gives it the lowest free slot."""

    def __init__(self, residency: ResidencySource, *, kv_events: bool) -> None:
        self._residency = residency
        self._kv_events = kv_events
        self._slots: list[Candidate | None] = []

    def fit(self, endpoint: FleetEndpoint) -> None:
        facts = endpoint.facts
        assert facts is not None
        if len(endpoint.candidates) != facts.ranks:
            self.drop(endpoint)
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

    def drop(self, endpoint: FleetEndpoint) -> None:
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

    def forget_guesses(self, endpoint: FleetEndpoint) -> None:
        for candidate in endpoint.candidates:
            if not candidate.events:
                slot, blocks = candidate.slot, candidate.capacity_blocks
                self._residency.remove(slot)
                self._residency.add(slot, candidate.id, candidate.block_tokens, blocks, False)
                self._reconfigure(candidate)
