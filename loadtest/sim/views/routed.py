"""Which prompts were sent to which worker, as far as a rule remembers."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Protocol

from policies.view import Residency, WorkerId
from router.residency.cache_view import usable_chain
from router.residency.prompt import Prompt
from router.residency.slot_groups import Matches, Slots, matches_of
from router.residency.view import Match


class Memory(Protocol):
    """The blocks sent to one worker, as far as they are remembered."""

    residency: Residency

    def remember(self, chain: Sequence[int]) -> None:
        """Note the blocks of a prompt that is sent to the worker."""

    def known(self, chain: Sequence[int]) -> int:
        """Return the number of blocks of the longest remembered prefix."""
        ...

    def statistics(self) -> dict[str, int]:
        """Return the size of the memory."""
        ...


class RoutedPrefixes:
    """Believes that a prompt is cached on the worker it was sent to, from then on, for as long as `Memory` says.

    It takes the place of `router.residency.residency_map.ResidencyMap` as the
    `router.placement.residency_source.ResidencySource`.
    It learns nothing from answers, usage reports and failures.
    """

    def __init__(self, make_memory: Callable[[int], Memory]) -> None:
        self._make_memory = make_memory
        self._slots: dict[int, tuple[int, Memory]] = {}

    def add(self, slot: int, worker: WorkerId, block_size: int, capacity_blocks: int | None, events: bool) -> None:
        """Begin with an empty memory from `make_memory(block_size)`."""
        self._slots[slot] = block_size, self._make_memory(block_size)

    def configure(
        self,
        slot: int,
        *,
        block_size: int | None = None,
        capacity_blocks: int | None = None,
        events: bool | None = None,
    ) -> None:
        """Begin again if the block size changes, because prompts of another block size cannot be compared."""
        if block_size is not None and self._slots[slot][0] != block_size:
            self._slots[slot] = block_size, self._make_memory(block_size)

    def remove(self, slot: int) -> None:
        """Forget the worker."""
        self._slots.pop(slot, None)

    def set_self_test(self, slot: int, verdict: Residency, reason: str) -> None:
        """Ignore the verdict: these rules have no self-test."""

    def match(self, prompt: Prompt, slots: Iterable[int]) -> dict[int, Match]:
        """Return the longest remembered prefix on each of `slots`."""
        return {slot: self._match(prompt, slot) for slot in slots}

    def match_all(self, prompt: Prompt, slots: Slots) -> Matches:
        """Return the same as arrays."""
        return matches_of(self.match(prompt, slots.tolist()), slots)

    def held_below(self, prompt: Prompt, slots: Iterable[int], media: Container[str]) -> dict[int, int]:
        """Return nothing: these rules know no slower tiers."""
        return {}

    def _match(self, prompt: Prompt, slot: int) -> Match:
        block_size, memory = self._slots[slot]
        chain, usable = usable_chain(prompt, block_size)
        return Match(min(memory.known(chain), usable) * block_size, 0, memory.residency)

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
        """Remember the prompt, which counts as cached from this moment."""
        block_size, memory = self._slots[slot]
        memory.remember(prompt.chain(block_size))

    def first_token(self, slot: int, ticket_id: int) -> None:
        """Do nothing: these rules learn nothing from it."""

    def finished(
        self,
        slot: int,
        prompt: Prompt,
        generated_tokens: int | None,
        cached_tokens: int | None,
        ticket_id: int | None = None,
    ) -> None:
        """Do nothing: these rules learn nothing from it."""

    def release(self, slot: int, ticket_id: int) -> None:
        """Do nothing: these rules keep the prompt."""

    def statistics(self) -> dict[int, dict[str, int]]:
        """Return the size of each slot's memory."""
        return {slot: memory.statistics() for slot, (_, memory) in self._slots.items()}
