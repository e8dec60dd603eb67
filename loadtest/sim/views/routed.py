"""What was sent where, as far as a rule remembers it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from policies.view import Residency, WorkerId
from router.residency.cache_view import usable_chain
from router.residency.prompt import Prompt
from router.residency.view import Match


class Memory(Protocol):
    """Blocks sent to one worker."""

    residency: Residency

    def remember(self, chain: Sequence[int]) -> None:
        """A prompt goes there."""

    def known(self, chain: Sequence[int]) -> int:
        """Blocks of the longest prefix that is remembered."""
        ...

    def statistics(self) -> dict[str, int]:
        """How much that is."""
        ...


class RoutedPrefixes:
    """Believes that a prompt is cached where it was sent, from then on, for as long as `Memory` says.

    Takes the place of `router.residency.residency_map.ResidencyMap`
    (`router.placement.residency_source.ResidencySource`). Answers, reports and failures teach it nothing.
    """

    def __init__(self, make_memory: Callable[[int], Memory]) -> None:
        self._make_memory = make_memory
        self._slots: dict[int, tuple[int, Memory]] = {}

    def add(self, slot: int, worker: WorkerId, block_size: int, capacity_blocks: int | None, events: bool) -> None:
        """Begin with nothing; `make_memory` is given the block size."""
        self._slots[slot] = block_size, self._make_memory(block_size)

    def configure(
        self,
        slot: int,
        *,
        block_size: int | None = None,
        capacity_blocks: int | None = None,
        events: bool | None = None,
    ) -> None:
        """Only the block size matters: prompts of another one cannot be compared."""
        if block_size is not None and self._slots[slot][0] != block_size:
            self._slots[slot] = block_size, self._make_memory(block_size)

    def remove(self, slot: int) -> None:
        """Forget the worker."""
        self._slots.pop(slot, None)

    def set_self_test(self, slot: int, verdict: Residency, reason: str) -> None:
        """These rules make no trials."""

    def match(self, prompt: Prompt, slots: Iterable[int]) -> dict[int, Match]:
        """The longest remembered prefix on each of `slots`."""
        return {slot: self._match(prompt, slot) for slot in slots}

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
        """Believed to be there from this moment."""
        block_size, memory = self._slots[slot]
        memory.remember(prompt.chain(block_size))

    def first_token(self, slot: int, ticket_id: int) -> None:
        """Nothing to learn."""

    def finished(
        self,
        slot: int,
        prompt: Prompt,
        generated_tokens: int | None,
        cached_tokens: int | None,
        ticket_id: int | None = None,
    ) -> None:
        """Nothing to learn."""

    def release(self, slot: int, ticket_id: int) -> None:
        """Nothing is taken back."""

    def statistics(self) -> dict[int, dict[str, int]]:
        """Per slot."""
        return {slot: memory.statistics() for slot, (_, memory) in self._slots.items()}
