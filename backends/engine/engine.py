"""One vLLM worker as a pure state machine: requests in, steps out."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import accumulate

import msgspec

from backends.engine.cache import BlockCache
from backends.engine.events import CacheEvent
from backends.engine.profile import Profile
from backends.engine.request import EngineRequest, EngineRequestState, FinishReason, HashedText, RequestRefused
from backends.engine.scheduler import Batch, Scheduler
from backends.engine.timing import StepTiming

__all__ = [
    "Engine",
    "EngineRequest",
    "EngineRequestState",
    "FinishReason",
    "HashedText",
    "RequestRefused",
    "StepOutput",
    "StepResult",
]

UNNAMED_TOKEN = -1
"""Stands for a generated token of a request that is known by hashes alone."""
_LOOKED_AHEAD = 64
"""Number of steps timed at once. An event in between makes the remaining ones useless."""

StepOutput = tuple[str, int, FinishReason | None]
"""Request id, generated token id, and the reason if it was the request's last token."""


class StepResult(msgspec.Struct, frozen=True):
    """One engine step. Outputs and events belong to its end, ``started_s + duration_s``.

    `outputs` has one entry per request that produced a token. `prefill_tokens` were computed in `prefills` chunks,
    together with `decodes` single-token decodes. `preempted` counts requests that went back to the queue.
    """

    started_s: float
    duration_s: float
    outputs: list[StepOutput]
    events: list[CacheEvent]
    prefills: int
    prefill_tokens: int
    decodes: int
    preempted: int


class Engine:
    """A vLLM worker's scheduler, cache and step times.

    The driver calls `step(now)` while `has_work`, waits `duration_s`, delivers outputs and events, and steps again. The
    state after `step` is that of the step's end, so `add`, `abort` and `reset_prefix_cache` may be called in between.
    They take effect with the next step, as in vLLM. `sample` returns a request's next token; it is called once per
    generated token, in batch order. The profile gives each option that is None, and `seed` draws the jitter.

    A driver that does not need every token may call `look_ahead`, which returns steps that only add a token to each
    request. Then it can `skip` the steps whose time has come. The result is bit-identical to that of single steps.

    With `async_scheduling` (vLLM's default since 0.14; here the default is ``--no-async-scheduling``) each step is
    scheduled when the one before it starts, so the GPU never waits for the scheduler. A request that arrives while step
    n runs is computed in step n + 2 instead of n + 1. The blocks of a finished request become free one step later. A
    request that ends by a stop token takes part in one more step. The events of a step come from the scheduling that
    happens during it. `abort` does not remove a request from a step that is already scheduled.
    """

    def __init__(
        self,
        profile: Profile,
        *,
        sample: Callable[[EngineRequestState], int],
        num_blocks: int | None = None,
        max_num_batched_tokens: int | None = None,
        max_num_seqs: int | None = None,
        seed: int = 0,
        jitter: float = 0.05,
        speed: float = 1.0,
        async_scheduling: bool = False,
    ) -> None:
        self.profile = profile
        self._sample = sample
        self._cache = BlockCache(profile.num_blocks if num_blocks is None else num_blocks, profile.block_size)
        self._scheduler = Scheduler(
            self._cache,
            profile.max_num_batched_tokens if max_num_batched_tokens is None else max_num_batched_tokens,
            profile.max_num_seqs if max_num_seqs is None else max_num_seqs,
        )
        self._timing = StepTiming(profile, random.Random(seed), jitter, speed)
        self._async_scheduling = async_scheduling
        self._ahead = Batch()
        """The next step; empty unless it is already scheduled."""
        self._foreseen_s: list[float] = []
        """Durations of the steps seen by `look_ahead`, valid until the next event."""
        self._states: dict[str, EngineRequestState] = {}
        self._prompt_tokens = 0
        self._prompt_cached_tokens = 0
        self._prefill_tokens = 0
        self._generation_tokens = 0
        self._finished = dict.fromkeys(FinishReason, 0)

    @property
    def has_work(self) -> bool:
        return bool(self._states or self._ahead)

    @property
    def block_size(self) -> int:
        return self._cache.block_size

    @property
    def num_blocks(self) -> int:
        """Blocks as in vLLM's ``num_gpu_blocks``, including the unusable one."""
        return self._cache.num_blocks

    @property
    def capacity_tokens(self) -> int:
        """Tokens that fit into the cache, which bounds the prompt and answer of one request."""
        return self._cache.usable_blocks * self._cache.block_size

    def add(self, request: EngineRequest, now_s: float) -> EngineRequestState:
        """Queue a request.

        Raises:
            RequestRefused: it is malformed, its id is in use, or it could never fit into the cache.
        """
        if request.id in self._states:
            raise RequestRefused(f"request id {request.id!r} is in use")
        state = self._state(request, now_s)
        self._foreseen_s = []
        self._states[request.id] = state
        self._scheduler.add(state)
        return state

    def check(self, request: EngineRequest) -> None:
        """Check that the request can run here.

        Raises:
            RequestRefused: it is malformed, or could never fit into the cache.
        """
        self._state(request, 0.0)

    def make_room(self, request: EngineRequest) -> int | None:
        """Keep blocks for the prompt of a `received` request, until it is added and admitted, or `let_go`.

        Return the tokens that are cached here already, which need not come. Return None without effect while there is
        no space, or an earlier request waits for some.

        Raises:
            RequestRefused: it is malformed, or could never fit into the cache.
        """
        state = self._state(request, 0.0)
        self._foreseen_s = []
        return self._scheduler.make_room(state)

    def _state(self, request: EngineRequest, now_s: float) -> EngineRequestState:
        if request.max_tokens < 1 or (request.stop_after is not None and request.stop_after < 1):
            raise RequestRefused("max_tokens and stop_after must be at least 1")
        try:
            state = EngineRequestState(request, self.block_size, now_s)
        except (OverflowError, TypeError) as error:
            raise RequestRefused(f"prompt_ids must be integers from 0 to 2**32 - 1: {error}") from None
        if not state.prompt_tokens:
            raise RequestRefused("prompt_ids is empty")
        if request.hashed is not None and not self._hashed_to_its_end(state):
            raise RequestRefused("hashed.chain does not reach to the end of the answer")
        # The last token's own KV is never computed, so it needs no slot.
        needed_tokens = state.prompt_tokens + request.max_tokens - 1
        if needed_tokens > self.capacity_tokens:
            raise RequestRefused(
                f"{state.prompt_tokens} prompt tokens and max_tokens {request.max_tokens} do not fit into the KV "
                f"cache of {self.capacity_tokens} tokens; shorten one of them"
            )
        return state

    def _hashed_to_its_end(self, state: EngineRequestState) -> bool:
        return len(state.block_hashes) >= (state.prompt_tokens + state.output_limit - 1) // self.block_size

    def abort(self, request_id: str) -> bool:
        """Drop a request and free its blocks; return False if the engine does not have it."""
        state = self._states.pop(request_id, None)
        if state is None:
            return False
        self._foreseen_s = []
        self._scheduler.drop(state)
        state.finish_reason = FinishReason.ABORT
        self._finished[FinishReason.ABORT] += 1
        return True

    def kept_blocks(self, request_id: str) -> list[int] | None:
        """Return the blocks kept for a request that has ended (`EngineRequest.keeps_blocks`) or will come
        (`make_room`); None if none are.
        """
        return self._scheduler.kept_blocks(request_id)

    def let_go(self, request_id: str) -> None:
        self._foreseen_s = []
        self._scheduler.let_go(request_id)

    def step(self, now_s: float) -> StepResult | None:
        """Run one step that starts now; return None if no request runs or waits."""
        if not self.has_work:
            return None
        self._foreseen_s = []
        batch = self._ahead or self._scheduler.schedule(now_s)
        if self._async_scheduling:
            self._ahead = self._scheduler.schedule(now_s)
        duration_s = self._timing.step_s(batch.chunks, batch.decodes, batch.decode_context_tokens)
        prefill_tokens = sum([new for new, _ in batch.chunks])
        self._prefill_tokens += prefill_tokens
        return StepResult(
            started_s=now_s,
            duration_s=duration_s,
            outputs=self._generate(batch.producers, now_s + duration_s),
            events=self._cache.take_events(),
            prefills=len(batch.chunks),
            prefill_tokens=prefill_tokens,
            decodes=batch.decodes,
            preempted=batch.preempted,
        )

    def look_ahead(self, now_s: float, most_steps: int = _LOOKED_AHEAD) -> list[float]:
        """Return the end times of the steps from `now_s` on that only give each running request another token.

        The result is empty if the next step does, or may do, more than that. The state does not change, and `add` or
        `abort` makes the result void. `skip` takes the number of steps that have begun before such a call.
        """
        scheduler, ahead = self._scheduler, self._ahead
        running = scheduler.running
        steps = scheduler.quiet_steps(most_steps)
        if steps < 1 or self._cache.has_events:
            return []
        if not self._async_scheduling:
            context_tokens = sum([state.computed_tokens + 1 for state in running])
        elif ahead.decodes == len(running) and ahead.producers == running and not (ahead.chunks or ahead.preempted):
            context_tokens = ahead.decode_context_tokens
        else:
            return []
        self._foreseen_s = self._timing.decode_steps_s(steps, len(running), context_tokens)
        return list(accumulate(self._foreseen_s, initial=now_s))[1:]

    def skip(self, steps: int) -> None:
        """Move to the state after the first `steps` of the last `look_ahead`. These steps have no `StepResult`.

        Raises:
            ValueError: `look_ahead` returned fewer steps, or an event has happened since.
        """
        taken_s = self._foreseen_s[:steps]
        if len(taken_s) != steps:
            raise ValueError(f"{steps} steps cannot be skipped: {len(self._foreseen_s)} were shown")
        self._foreseen_s = []
        self._timing.take(taken_s)
        self._scheduler.skip(steps)
        running = self._scheduler.running
        self._name_tokens([state for state in running if state.request.hashed is None], steps)
        self._generation_tokens += steps * len(running)
        if self._async_scheduling:
            self._ahead.decode_context_tokens += steps * len(running)

    @property
    def running(self) -> Sequence[EngineRequestState]:
        """Requests that have blocks, in batch order."""
        return self._scheduler.running

    @property
    def waiting_requests(self) -> int:
        return len(self._scheduler.waiting)

    @property
    def next_waiting_tokens(self) -> int:
        """Tokens of the request that is admitted next; 0 if none waits."""
        waiting = self._scheduler.waiting
        return waiting[0].known_tokens if waiting else 0

    @property
    def kv_usage(self) -> float:
        return self._cache.usage

    def has_room(self, tokens: int, beside_tokens: int = 0) -> bool:
        """Return whether blocks for a prompt of `tokens` are free beside those for `beside_tokens`.

        True for a prompt that the cache could never hold.
        """
        blocks, beside_blocks = (-(-count // self.block_size) for count in (tokens, beside_tokens))
        return blocks > self._cache.usable_blocks or blocks + beside_blocks <= self._cache.free_blocks

    def cached_tokens(self, chain: Sequence[int], prompt_tokens: int) -> int:
        """Return the cached tokens that a prompt with these block hashes would find now, without any effect."""
        usable_blocks = (prompt_tokens - 1) // self.block_size
        return len(self._cache.match(chain, usable_blocks)) * self.block_size

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks; return False without effect while any request holds blocks, as in vLLM.

        `CacheCleared` leaves with the next step's events, as in vLLM.
        """
        return self._cache.reset()

    def statistics(self) -> dict[str, int | float]:
        """Return gauges and cumulative counts, by vLLM's definitions.

        `prompt_tokens` and `prompt_cached_tokens` count at the first token of a request. `prefill_tokens` counts tokens
        computed in chunks, including recomputed ones. `finished_*` counts requests.
        """
        return {
            **self._scheduler.statistics(),
            **self._cache.statistics(),
            **self._timing.statistics(),
            "prompt_tokens": self._prompt_tokens,
            "prompt_cached_tokens": self._prompt_cached_tokens,
            "prefill_tokens": self._prefill_tokens,
            "generation_tokens": self._generation_tokens,
            **{f"finished_{reason}": count for reason, count in self._finished.items()},
        }

    def _generate(self, producers: list[EngineRequestState], end_s: float) -> list[StepOutput]:
        sample = self._sample
        outputs: list[StepOutput] = []
        finished = False
        for state in producers:
            if state.finish_reason is not None:
                continue  # stopped or aborted after this step was scheduled
            token = UNNAMED_TOKEN
            if state.request.hashed is None:
                token = sample(state)
                state.tokens.append(token)
            state.known_tokens += 1
            if state.pending_tokens:  # no token if it was preempted since
                state.pending_tokens -= 1
            generated = state.output_tokens = state.output_tokens + 1
            if generated == 1:
                self._first_token(state, end_s)
            if generated < state.output_limit:
                outputs.append((state.id, token, None))
            else:
                finished = True
                outputs.append((state.id, token, self._finish(state)))
        self._generation_tokens += len(outputs)
        if finished:
            scheduler = self._scheduler
            scheduler.running = [state for state in scheduler.running if state.finish_reason is None]
        return outputs

    def _name_tokens(self, states: list[EngineRequestState], steps: int) -> None:
        """Sample the tokens of skipped steps, in the order of stepping."""
        for state in states:
            state.output_tokens -= steps
        for _ in range(steps if states else 0):
            for state in states:
                state.tokens.append(self._sample(state))
                state.output_tokens += 1

    def _first_token(self, state: EngineRequestState, end_s: float) -> None:
        state.first_token_s = end_s
        self._prompt_tokens += state.prompt_tokens
        self._prompt_cached_tokens += state.cached_tokens or 0

    def _finish(self, state: EngineRequestState) -> FinishReason:
        state.finish_reason = reason = state.natural_end
        self._finished[reason] += 1
        self._scheduler.finish(state)
        del self._states[state.id]
        return reason
