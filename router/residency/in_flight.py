"""Blocks of booked requests: on their way into a worker's cache, so they count as there.

vLLM makes a block hittable when it is scheduled, before it is computed: a second request with the same prompt, sent
right behind the first, finds it.
"""

from __future__ import annotations

from collections.abc import Sequence

from router.residency.drift import PredictedHit, ViewMark
from router.residency.prompt import Prompt


class ResidencyReservation:
    """One booked request on one slot.

    `start` blocks of the `usable` ones were resident when it was booked; `added` are the hashes behind them.
    `predicted_tokens` counts what was in flight, too, and is None where nobody asked; `exact` says whether it was no
    guess. `clock` is the approximate view's time then, `reserved_blocks` what the running request takes from that
    view's capacity; `mark` is where the view made from events stood.
    """

    __slots__ = (
        "added",
        "block_size",
        "clock",
        "done",
        "exact",
        "mark",
        "predicted_tokens",
        "prompt",
        "reserved_blocks",
        "running",
        "start",
        "usable",
    )

    def __init__(
        self,
        prompt: Prompt,
        start: int,
        usable: int,
        block_size: int,
        predicted_tokens: int | None,
        *,
        exact: bool,
        clock: int,
        mark: ViewMark | None,
    ) -> None:
        self.prompt = prompt
        self.start = start
        self.usable = usable
        self.block_size = block_size
        self.added = prompt.chain(block_size)[start:]
        self.predicted_tokens = predicted_tokens
        self.exact = exact
        self.clock = clock
        self.mark = mark
        self.reserved_blocks = 0
        self.running = False
        self.done = False

    def claim(self, ticket_id: int, block_size: int) -> PredictedHit | None:
        """What was claimed of the blocks that events tell of; None where these were others, or nobody told of any."""
        if self.mark is None or self.predicted_tokens is None or block_size != self.block_size:
            return None
        chain = self.prompt.chain(block_size)
        claimed = self.predicted_tokens // block_size
        return PredictedHit(ticket_id, self.mark, block_size, chain, self.usable, min(self.start, claimed), claimed)


class ReservedBlocks:
    """Booked blocks over all slots: hash -> bits of slots, counted where several bookings share a block.

    Bounded by what is in flight: a booking adds only blocks that were not resident when it was made.
    """

    __slots__ = ("_more", "masks")

    def __init__(self) -> None:
        self.masks: dict[int, int] = {}
        """Block hash -> ``1 << slot`` of each slot that has it booked."""
        self._more: dict[int, dict[int, int]] = {}

    def add(self, bit: int, hashes: Sequence[int]) -> None:
        """A booking on the slot of `bit` adds `hashes`."""
        masks = self.masks
        more = self._more.setdefault(bit, {})
        for block_hash in hashes:
            mask = masks.get(block_hash, 0)
            if mask & bit:
                more[block_hash] = more.get(block_hash, 0) + 1
            else:
                masks[block_hash] = mask | bit

    def take_back(self, bit: int, hashes: Sequence[int]) -> None:
        """The booking that added `hashes` is over."""
        masks = self.masks
        more = self._more.get(bit, {})
        for block_hash in hashes:
            count = more.get(block_hash)
            if count is not None:
                if count == 1:
                    del more[block_hash]
                else:
                    more[block_hash] = count - 1
                continue
            mask = masks.get(block_hash, 0) & ~bit
            if mask:
                masks[block_hash] = mask
            else:
                masks.pop(block_hash, None)
        if not more:
            self._more.pop(bit, None)

    def statistics(self) -> dict[str, int]:
        """Blocks booked and not yet resident when they were."""
        return {"reserved_blocks": len(self.masks)}
