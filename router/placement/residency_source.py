"""What the core asks of whoever knows which worker holds which prefix."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from policies.view import Residency, WorkerId
from router.residency.difference import Difference
from router.residency.prompt import Prompt
from router.residency.view import Match


class ResidencySource(Protocol):
    """The part of `router.residency.residency_map.ResidencyMap` that the dispatcher and the fleet use.

    The simulator puts other routers' ways to know it in the same place, to measure ours against them.
    """

    def add(self, slot: int, worker: WorkerId, block_size: int, capacity_blocks: int | None, events: bool) -> None:
        """A candidate joined."""

    def configure(
        self,
        slot: int,
        *,
        block_size: int | None = None,
        capacity_blocks: int | None = None,
        events: bool | None = None,
    ) -> None:
        """More is known of its cache; None leaves a value as it is."""

    def remove(self, slot: int) -> None:
        """A candidate left."""

    def set_self_test(self, slot: int, verdict: Residency, reason: str) -> None:
        """What a trial showed of its cache."""

    def match(self, prompt: Prompt, slots: Iterable[int]) -> dict[int, Match]:
        """Cached tokens of `prompt` on each of `slots`."""
        ...

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
        """A request is on its way there; so much was predicted to be cached, if anything.

        `recomputes`: it reads no cache, and writes a copy of its own. `found` is what `match` has said just before.
        """

    def first_token(self, slot: int, ticket_id: int) -> None:
        """It runs."""

    def finished(
        self,
        slot: int,
        prompt: Prompt,
        generated_tokens: int | None,
        cached_tokens: int | None,
        ticket_id: int | None = None,
    ) -> Difference | None:
        """It was served to the end; tokens are None where the response did not say. Returns why other cached tokens
        were reported than predicted, None where there is nothing to tell; of what is pending word follows."""
        ...

    def release(self, slot: int, ticket_id: int) -> None:
        """It is over, whichever way."""
