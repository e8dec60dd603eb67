"""Blocks of placed requests, which will soon be in a worker's cache and count as cached there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from router.residency.exact.drift import CacheMark, PredictedHit
from router.residency.prompt import Prompt


@dataclass(slots=True, eq=False)
class ResidencyReservation:
    """One placed request on one slot.

    `start` of the `usable` blocks were cached when the request was placed; `added` are the hashes after them.
    `predicted_tokens` includes blocks in flight; None if there was no prediction. `exact` says whether the prediction
    is exact. `clock` is the clock of the approximate cache at the placement. `reserved_blocks` is the part of that
    view's capacity that the running request takes. `mark` is the position of the events' view.
    """

    prompt: Prompt
    start: int
    usable: int
    block_size: int
    added: Sequence[int]
    predicted_tokens: int | None
    exact: bool
    clock: int
    mark: CacheMark | None
    reserved_blocks: int = 0
    running: bool = False
    done: bool = False

    def claim(self, ticket_id: int, block_size: int) -> PredictedHit | None:
        """Return the prediction about blocks known from events; None if it was about other blocks or there was none."""
        if self.mark is None or self.predicted_tokens is None or block_size != self.block_size:
            return None
        chain = self.prompt.chain(block_size)
        claimed = self.predicted_tokens // block_size
        return PredictedHit(ticket_id, self.mark, block_size, chain, self.usable, min(self.start, claimed), claimed)


class ReservedBlocks:
    """Reserved blocks over all slots: hash -> bits of slots, with a count where several reservations share a block.

    The size is bounded by the requests in flight: a reservation adds only blocks that were not cached when it was made.
    """

    def __init__(self) -> None:
        self.masks: dict[int, int] = {}
        """Block hash -> ``1 << slot`` of each slot on which it is reserved."""
        self._more: dict[int, dict[int, int]] = {}

    def add(self, bit: int, hashes: Sequence[int]) -> None:
        masks = self.masks
        more = self._more.setdefault(bit, {})
        for block_hash in hashes:
            mask = masks.get(block_hash, 0)
            if mask & bit:
                more[block_hash] = more.get(block_hash, 0) + 1
            else:
                masks[block_hash] = mask | bit

    def take_back(self, bit: int, hashes: Sequence[int]) -> None:
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
