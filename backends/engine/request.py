"""A request to the engine, and its state there."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from backends.engine.chain import BlockHasher


class FinishReason(StrEnum):
    """Why a request ended, in vLLM's words."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class RequestRefused(ValueError):
    """The request can never run on this engine; the message says why."""


@dataclass(frozen=True, slots=True)
class HashedText:
    """A prompt and its answer as a length and block hashes, which is all that a cache needs.

    `chain` has one chained hash per full block (of the engine's block size) of the prompt followed by the answer, and
    is not changed. Equal hashes mean equal prefixes, in this engine and for all readers of its events. The keys that
    split the cache (adapter, salt) must be in the hashes already.
    """

    prompt_tokens: int
    chain: list[int]


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A request to run: a prompt and the length of its answer.

    Generation ends after `stop_after` tokens with reason "stop" (drawn by the caller; None = never) or after
    `max_tokens` with reason "length", whichever comes first. On a tie it is "stop", since vLLM tests for the
    end-of-sequence token first. `lora_name` and `cache_salt` split the cache as in vLLM. `announces_reuse`: reused
    cached blocks of the prompt are announced again (``kv_cache_report_mode: full``).

    `keeps_blocks`: the computed blocks stay in use after the request's end, until `Engine.let_go`. `received`: the KV
    of the prompt comes from another engine, so only its last token is computed. `loaded_tokens` at its start, whole
    blocks, come from elsewhere and are not computed either. After a preemption all of it is.

    With `hashed` there are no token ids: `prompt_ids` is empty, no token is sampled, and `BlocksCached` has none.
    """

    id: str
    prompt_ids: Sequence[int]
    max_tokens: int
    stop_after: int | None = None
    lora_name: str | None = None
    cache_salt: str | None = None
    announces_reuse: bool = False
    keeps_blocks: bool = False
    received: bool = False
    loaded_tokens: int = 0
    hashed: HashedText | None = None


class EngineRequestState:
    """One request inside the engine; returned by `Engine.add`, readable after the end. Read-only for callers.

    Times are the driving clock's `now_s` (of a step's start for scheduling, of its end for tokens), None until the
    event. `cached_tokens` is the prefix hit at the first scheduling (vLLM's
    ``cached_tokens``), None before it.
    """

    def __init__(self, request: EngineRequest, block_size: int, arrived_s: float) -> None:
        self.request = request
        self.id = request.id
        hashed = request.hashed
        self.tokens = array("I", request.prompt_ids)
        """Prompt and generated ids; none if the request is `hashed`."""
        self.prompt_tokens = len(self.tokens) if hashed is None else hashed.prompt_tokens
        self.known_tokens = self.prompt_tokens
        """Prompt and generated tokens."""
        self.output_tokens = 0
        self.output_limit = min(request.max_tokens, request.stop_after or request.max_tokens)
        self.arrived_s = arrived_s
        self.first_scheduled_s: float | None = None
        self.first_token_s: float | None = None
        self.finish_reason: FinishReason | None = None
        self.cached_tokens: int | None = None
        self.preemptions = 0

        self.hasher = BlockHasher(block_size, request.lora_name, request.cache_salt)
        self.block_hashes: list[int] = [] if hashed is None else hashed.chain
        """Hashes of all full blocks of `tokens`, by `hash_blocks`; of a `hashed` request, including the whole
        answer.
        """
        self.blocks: list[int] = []
        self.computed_tokens = 0
        """Tokens with computed KV once the scheduled steps have run."""
        self.pending_tokens = 0
        """Generated tokens that scheduled steps will add to `tokens` (vLLM's output placeholders)."""
        self.slots_left = 0
        """Slots of `blocks` beyond `computed_tokens`."""
        self.stored_blocks = 0
        """Blocks at the front of `blocks` that can be reused."""

    def hash_blocks(self) -> None:
        if self.request.hashed is None:
            self.hasher.extend(self.block_hashes, self.tokens)

    @property
    def natural_end(self) -> FinishReason:
        stop_after = self.request.stop_after
        stops = stop_after is not None and stop_after <= self.request.max_tokens
        return FinishReason.STOP if stops else FinishReason.LENGTH
