"""Turns of conversations whose blocks decode workers keep, and which prefill workers can read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import unpack
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from router.placement.endpoints import Candidate
from router.placement.health import WorkerState
from router.placement.kv_formats import alike_formats
from router.residency.chain import TOKEN_BYTES

_END_BYTES: Final = 16 * TOKEN_BYTES
"""The end of a turn, which is compared first: turns that begin with one long text mostly differ there."""


class GivenPrompt(NamedTuple):
    """A prompt that a request gives as token ids, packed, with what else decides about its blocks."""

    model: str | None
    salt: bytes
    ids: bytes

    @property
    def tokens(self) -> int:
        return len(self.ids) // TOKEN_BYTES

    def has(self, ids: list[int] | None) -> bool:
        return ids is not None and list(unpack(f"<{self.tokens}I", self.ids)) == ids

    def extends(self, start: GivenPrompt) -> bool:
        """Return whether this prompt begins with the tokens of `start` and has more of them."""
        return self.begins_with(start.ids, len(start.ids)) and (self.model, self.salt) == (start.model, start.salt)

    def continues(self, turn: KeptTurn) -> bool:
        """Return whether this prompt begins with the tokens of a turn's request and has more of them."""
        asked = turn.asked_tokens * TOKEN_BYTES
        return self.begins_with(turn.prompt.ids, asked) and (self.model, self.salt) == turn.prompt[:2]

    def begins_with(self, ids: bytes, size: int) -> bool:
        """Return whether this prompt begins with the first `size` bytes of `ids` and has more of them."""
        end = max(0, size - _END_BYTES)
        return len(self.ids) > size and self.ids[end:size] == ids[end:size] and self.ids.startswith(ids[:size])


@dataclass(slots=True, eq=False)
class KeptTurn:
    """A turn whose blocks `owner` keeps. `prompt` are the tokens in these blocks, those of the answer included.

    The first `asked_tokens` are those of its request. `params` are the transfer parameters as JSON. From `end_s` on
    they are not used. `lost`: since then, the worker has restarted or was ejected.
    """

    prompt: GivenPrompt
    asked_tokens: int
    params: bytes
    owner: Candidate
    end_s: float
    lost: bool = False

    @property
    def size_bytes(self) -> int:
        return len(self.prompt.ids) + len(self.params)

    @property
    def there(self) -> bool:
        """Whether the worker that keeps it is ready, and has been since."""
        return not self.lost and self.owner.live and self.owner.endpoint.state is WorkerState.READY


def readable(turns: Sequence[KeptTurn], readers: Sequence[Candidate], model: str | None) -> NDArray[np.bool_]:
    """Return whether each turn (row) can be read by each prefill worker (column), as far as both are known."""
    there = np.array([turn.there for turn in turns])
    able = np.array([_may_read(reader) for reader in readers])
    alike = alike_formats([turn.owner for turn in turns], readers, model)
    found: NDArray[np.bool_] = alike & there[:, np.newaxis] & able[np.newaxis, :]
    return found


def _may_read(reader: Candidate) -> bool:
    """Return whether a worker reads turns. In vLLM, a prefill that should do so elsewhere waits for ever."""
    facts = reader.endpoint.facts
    return facts is None or facts.connector is None or facts.connector.bidirectional
