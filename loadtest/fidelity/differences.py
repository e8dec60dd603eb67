"""Why two runs of one scenario reported different cached tokens for a request.

Under load the two sides do not step at exactly the same moments. On one side a request may look up a block just before
it is stored, or just after it is evicted. The other side may have the block at that time. The block's history on the
side that missed it shows the cause.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from backends.engine.chain import BlockHasher
from loadtest.fidelity.outcome import Outcome, Played


class Cause(StrEnum):
    """Why a block was missed on one side and hit on the other."""

    EVICTED = "evicted by then on one side"
    NOT_YET_COMPUTED = "not yet computed on one side"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Difference:
    """One request's cached tokens on each side, and the cause at the first block that only one side hit."""

    id: str
    modelled: int
    served: int
    cause: Cause


def differences(
    modelled: Played, served: Played, prompts: Mapping[str, Sequence[int]], block_size: int
) -> list[Difference]:
    """Return one entry per request whose cached tokens differ."""
    found = []
    for ours, theirs in zip(modelled.outcomes, served.outcomes, strict=True):
        if ours.cached_tokens != theirs.cached_tokens:
            missed = modelled if ours.cached_tokens < theirs.cached_tokens else served
            block = min(ours.cached_tokens, theirs.cached_tokens) // block_size
            at_miss = ours if missed is modelled else theirs
            cause = _cause(missed, at_miss, _block_hash(prompts[ours.id], block, block_size))
            found.append(Difference(ours.id, ours.cached_tokens, theirs.cached_tokens, cause))
    return found


def _cause(missed: Played, outcome: Outcome, block_hash: int) -> Cause:
    """Return why the side that missed the block had no copy of it when it looked up the request.

    The look-up was between the request's arrival and its first token. A copy that existed all that time would have been
    hit.
    """
    history, arrived_s = missed.history, outcome.arrived_s
    if not history.stored_before(block_hash, arrived_s):
        return Cause.NOT_YET_COMPUTED
    if history.fewest_copies(block_hash, arrived_s, outcome.first_token_s) == 0:
        return Cause.EVICTED
    return Cause.OTHER


def _block_hash(prompt_ids: Sequence[int], block: int, block_size: int) -> int:
    hashes: list[int] = []
    BlockHasher(block_size, None, None).extend(hashes, array("I", prompt_ids[: (block + 1) * block_size]))
    return hashes[block]
