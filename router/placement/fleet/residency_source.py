from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Protocol

from policies.view import Residency, WorkerId
from router.residency.exact.difference import Difference
from router.residency.prompt import Prompt
from router.residency.slot_groups import Matches, Slots
from router.residency.view import Match


class CandidateCache(Protocol):
    """The cache of one candidate, as the dispatcher and the fleet use it (`router.residency.worker_cache`)."""

    def configure(
        self, *, block_size: int | None = None, capacity_blocks: int | None = None, events: bool | None = None
    ) -> None:
        """Change its known properties; None leaves a value unchanged."""

    def tested(self, verdict: Residency, reason: str) -> None: ...

    def reserve(
        self,
        prompt: Prompt,
        ticket_id: int,
        predicted_tokens: int | None = None,
        *,
        recomputes: bool = False,
        found: Match | None = None,
    ) -> None:
        """Reserve the blocks of a request that is being sent to the candidate."""

    def first_token(self, ticket_id: int) -> None: ...

    def finished(
        self, prompt: Prompt, generated_tokens: int | None, cached_tokens: int | None, ticket_id: int | None = None
    ) -> Difference | None:
        """Record a complete answer. Return why the reported cached tokens differ from the predicted ones; None if there
        is nothing to explain. Pending differences are explained later."""

    def release(self, ticket_id: int) -> None:
        """Release the blocks of a request that has ended, whatever its outcome."""


class ResidencySource(Protocol):
    """The part of `router.residency.residency_map.ResidencyMap` that the dispatcher and the fleet use.

    The simulator replaces it by other routers' methods, to compare them with Warmroute's.
    """

    def add(self, slot: int, worker: WorkerId, block_size: int, capacity_blocks: int | None, events: bool) -> None: ...
    def remove(self, slot: int) -> None: ...
    def slot(self, slot: int) -> CandidateCache: ...
    def match(self, prompt: Prompt, slots: Iterable[int]) -> dict[int, Match]: ...
    def match_all(self, prompt: Prompt, slots: Slots) -> Matches: ...

    def held_below(self, prompt: Prompt, slots: Iterable[int], media: Container[str]) -> dict[int, int]:
        """Return the tokens of the longest prefix of `prompt` that each of `slots` holds in slower tiers."""
