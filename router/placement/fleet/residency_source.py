from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Protocol

from policies.view import Residency, WorkerId
from router.residency.exact.difference import Difference
from router.residency.prompt import Prompt
from router.residency.slot_groups import Matches, Slots
from router.residency.view import Match


class ResidencySource(Protocol):
    """The part of `router.residency.residency_map.ResidencyMap` that the dispatcher and the fleet use.

    The simulator replaces it by other routers' methods, to compare them with Warmroute's.
    """

    def add(self, slot: int, worker: WorkerId, block_size: int, capacity_blocks: int | None, events: bool) -> None: ...

    def configure(
        self,
        slot: int,
        *,
        block_size: int | None = None,
        capacity_blocks: int | None = None,
        events: bool | None = None,
    ) -> None:
        """Change the known properties of a candidate's cache; None leaves a value unchanged."""

    def remove(self, slot: int) -> None: ...
    def set_self_test(self, slot: int, verdict: Residency, reason: str) -> None: ...
    def match(self, prompt: Prompt, slots: Iterable[int]) -> dict[int, Match]: ...
    def match_all(self, prompt: Prompt, slots: Slots) -> Matches: ...

    def held_below(self, prompt: Prompt, slots: Iterable[int], media: Container[str]) -> dict[int, int]:
        """Return the tokens of the longest prefix of `prompt` that each of `slots` holds in slower tiers."""

    def reserve(
        self,
        slot: int,
        prompt: Prompt,
        ticket_id: int,
        predicted_tokens: int | None = None,
        *,
        recomputes: bool = False,
        found: Match | None = None,
    ) -> None:
        """Reserve the blocks of a request that is being sent to a candidate.

        `predicted_tokens` is the number of cached tokens predicted, if known. `recomputes`: the request reads no
        cache, and writes a copy of its own. `found` is the result of the `match` just before.
        """

    def first_token(self, slot: int, ticket_id: int) -> None: ...

    def finished(
        self,
        slot: int,
        prompt: Prompt,
        generated_tokens: int | None,
        cached_tokens: int | None,
        ticket_id: int | None = None,
    ) -> Difference | None:
        """Record a complete answer; numbers of tokens are None if the response did not report them.

        Return the reason why the reported cached tokens differ from the predicted ones, or None if there is nothing to
        explain. Pending differences are explained later.
        """

    def release(self, slot: int, ticket_id: int) -> None:
        """Release the blocks of a request that has ended, whatever its outcome."""
