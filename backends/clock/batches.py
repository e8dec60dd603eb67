"""The work of one vLLM step, read from its scheduler's output, in terms of `backends.engine`'s step times."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from backends.simulated.decoding.draws import SeededDraws, seeded_draws

EMPTY: tuple[int, ...] = ()
_LONGEST_CHARACTER = 4


@dataclass(slots=True)
class KnownRequest:
    """A request that the worker has seen. `prompt_tokens` is the length of its prompt, and `last_token` its latest
    token, after the few that are `before` it. `draws` is None if its tokens are random.
    """

    prompt_tokens: int
    last_token: int
    answered: bool = False
    draws: SeededDraws | None = None
    before: tuple[int, ...] = ()

    @classmethod
    def read(cls, tokens: Sequence[int], prompt_tokens: int, sampling: Any) -> KnownRequest:
        """Return a request with these tokens so far; `sampling` are vLLM's ``SamplingParams``."""
        draws = seeded_draws(getattr(sampling, "temperature", None), getattr(sampling, "seed", None))
        known = cls(prompt_tokens, 0, len(tokens) > prompt_tokens, draws)
        known.restart(tokens)
        return known

    def restart(self, tokens: Sequence[int]) -> None:
        """Go on from other tokens: vLLM may discard the last ones of a request that lost its blocks."""
        self.last_token = tokens[-1] if tokens else 0
        self.before = tuple(tokens[-_LONGEST_CHARACTER:-1])
        if self.draws is not None:
            self.draws = self.draws.afresh()
            self.draws.extend(array("I", tokens))

    def add(self, token: int) -> None:
        self.before = (*self.before, self.last_token)[1 - _LONGEST_CHARACTER :]
        self.last_token = token
        self.answered = True
        if self.draws is not None:
            self.draws.extend(array("I", (token,)))


@dataclass(slots=True)
class BatchShape:
    """One step. `producers` are the requests that get a token at its end; `chunks` are (new, cached) tokens as in
    `StepTiming.step_s`.
    """

    request_ids: list[str] = field(default_factory=list)
    producers: set[str] = field(default_factory=set)
    chunks: list[tuple[int, int]] = field(default_factory=list)
    decodes: int = 0
    decode_context_tokens: int = 0


class Batches:
    """Follow vLLM's requests from one ``SchedulerOutput`` to the next.

    A request gets a token in the step that computes the last of its known tokens. These are its prompt and its
    generated tokens; with async scheduling, they include tokens that earlier steps will have generated.
    """

    def __init__(self) -> None:
        self._requests: dict[str, KnownRequest] = {}

    def step(self, scheduled: Any) -> BatchShape:
        for request_id in scheduled.finished_req_ids:
            self._requests.pop(request_id, None)
        step = BatchShape()
        counts = scheduled.num_scheduled_tokens
        for new in scheduled.scheduled_new_reqs:
            prompt = new.prompt_token_ids or EMPTY
            # vLLM's second model runner sends a request that lost its blocks as a new one, with its answer so far.
            tokens = getattr(new, "prefill_token_ids", None) or prompt
            self._requests[new.req_id] = KnownRequest.read(tokens, len(prompt), getattr(new, "sampling_params", None))
            self._add(step, new.req_id, counts[new.req_id], new.num_computed_tokens, len(tokens))
        cached = scheduled.scheduled_cached_reqs
        for request_id in getattr(cached, "resumed_req_ids", ()):
            self._requests[request_id].restart(cached.all_token_ids.get(request_id, EMPTY))
        for request_id, computed, outputs in zip(
            cached.req_ids, cached.num_computed_tokens, cached.num_output_tokens, strict=True
        ):
            known = self._requests[request_id].prompt_tokens + outputs
            self._add(step, request_id, counts[request_id], computed, known)
        return step

    def _add(self, step: BatchShape, request_id: str, new: int, computed: int, known: int) -> None:
        step.request_ids.append(request_id)
        if new == 1 and computed >= self._requests[request_id].prompt_tokens:
            step.decodes += 1
            step.decode_context_tokens += computed + 1
        elif new:
            step.chunks.append((new, computed))
        if computed + new >= known:
            step.producers.add(request_id)

    def known(self, request_id: str) -> KnownRequest:
        return self._requests[request_id]


def allowed_tokens(bitmask_row: Sequence[int]) -> list[int]:
    """Return the token ids whose bits are set in a grammar's row of 32-bit words, lowest bit first."""
    ids = []
    for word_index, word in enumerate(bitmask_row):
        bits = int(word) & 0xFFFF_FFFF
        while bits:
            low = bits & -bits
            ids.append(word_index * 32 + low.bit_length() - 1)
            bits ^= low
    return ids
