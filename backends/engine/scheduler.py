"""Continuous batching: choose the tokens of each request that a step computes, and the blocks for their KV.

The order follows vLLM 0.33.0's V1 scheduler with its defaults (first come first served, chunked prefill, no watermark,
``scheduler_reserve_full_isl``).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from backends.engine.cache import BlockCache
from backends.engine.events import BlocksCached
from backends.engine.request import EngineRequestState


@dataclass(slots=True)
class Batch:
    """The work of one step, filled while it is scheduled.

    `producers` are the requests that get a token at the step's end, in batch order. `chunks` are the prefill pieces as
    (new, cached) tokens, including recomputed requests; `decodes` counts the single-token decodes beside them.
    """

    producers: list[EngineRequestState] = field(default_factory=list)
    chunks: list[tuple[int, int]] = field(default_factory=list)
    decodes: int = 0
    decode_context_tokens: int = 0
    preempted: int = 0

    def __bool__(self) -> bool:
        return bool(self.chunks or self.decodes)


class Scheduler:
    """Running and waiting requests over one block cache.

    Running requests come first, in the order of admission, then waiting ones, while the token budget lasts. A waiting
    request is admitted if its whole sequence fits; otherwise it blocks the requests behind it. If a running request
    finds no block, the last admitted request is preempted: it loses its blocks and goes to the front of the queue. No
    request is admitted in that step. Blocks are reusable from the moment their chunk is scheduled.

    With async scheduling, a batch is scheduled before the tokens of the batch before it are known. Tokens that a
    scheduled step will generate count as `pending_tokens`, and a request whose last token is pending is skipped. A
    block becomes reusable when the last token in it is known.
    """

    def __init__(self, cache: BlockCache, max_num_batched_tokens: int, max_num_seqs: int) -> None:
        for name, value in (("max_num_batched_tokens", max_num_batched_tokens), ("max_num_seqs", max_num_seqs)):
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        self._cache = cache
        self._block_size = cache.block_size
        self._max_num_batched_tokens = max_num_batched_tokens
        self._max_num_seqs = max_num_seqs
        self.running: list[EngineRequestState] = []
        self.waiting: deque[EngineRequestState] = deque()
        self._kept: dict[str, list[int]] = {}
        """Blocks that stay in use after the end of their request or are in use before it, by its id."""
        self._queue_stuck = False
        """Whether the head of the queue was refused, and no change since then could admit it."""
        self._prefix_queries_tokens = 0
        self._prefix_hits_tokens = 0
        self._preemptions = 0

    def add(self, state: EngineRequestState) -> None:
        """Queue a new request. One that has its space already (`make_room`) goes before those that have none.

        Otherwise a request that waits for space could wait for requests behind it.
        """
        kept = self._kept
        if state.id in kept:
            place = next((place for place, one in enumerate(self.waiting) if one.id not in kept), len(self.waiting))
            self.waiting.insert(place, state)
        else:
            self.waiting.append(state)
        self._queue_stuck = False

    def make_room(self, state: EngineRequestState) -> int | None:
        """Keep blocks for a prompt whose KV comes from another engine, until its request is admitted or `let_go`.

        Return the tokens that are cached here already, which need not come. Return None without effect while there is
        no space, or an earlier request waits for some.
        """
        if self._queue_stuck and self.waiting:
            return None
        cache, size = self._cache, self._block_size
        state.hash_blocks()
        matched = cache.match(state.block_hashes, (state.prompt_tokens - 1) // size)
        missing = -(-state.prompt_tokens // size) - len(matched)
        if not cache.fits(matched, missing):
            return None
        cache.take(matched)
        self._kept[state.id] = matched + cache.allocate(missing)
        return len(matched) * size

    def schedule(self, now_s: float) -> Batch:
        batch = Batch()
        budget = self._schedule_running(batch)
        if not batch.preempted:
            self._schedule_waiting(batch, budget, now_s)
        return batch

    def quiet_steps(self, most: int) -> int:
        """Return how many of the next steps, up to `most`, only give each running request one token.

        Such steps have no chunk, no admission, no block that fills or is allocated, and no last token. They only change
        the token counts of the requests (`skip`).
        """
        if len(self.running) > self._max_num_batched_tokens or (self.waiting and not self._queue_stuck):
            return 0
        for state in self.running:
            computed = state.computed_tokens
            if state.known_tokens + state.pending_tokens - computed != 1 or computed < state.prompt_tokens:
                return 0
            room = state.slots_left - 1
            left = state.output_limit - state.output_tokens - 1
            if room < left:
                left = room
            if left < most:
                if left < 1:
                    return 0
                most = left
        return most if self.running else 0

    def skip(self, steps: int) -> None:
        for state in self.running:
            state.computed_tokens += steps
            state.slots_left -= steps
            state.known_tokens += steps
            state.output_tokens += steps

    def drop(self, state: EngineRequestState) -> None:
        self._queue_stuck = False
        if state.blocks:
            self.running.remove(state)
            self.release(state)
        else:
            self.waiting.remove(state)

    def release(self, state: EngineRequestState) -> None:
        """Release a request's blocks; their content stays reusable until evicted."""
        self._queue_stuck = False
        self._cache.release(state.blocks)
        state.blocks = []
        state.computed_tokens = state.pending_tokens = state.stored_blocks = state.slots_left = 0

    def finish(self, state: EngineRequestState) -> None:
        """Release the blocks of a request that has its last token. The caller removes such requests from `running` once
        a step.
        """
        if state.blocks:
            # Do not wait for a step scheduled beyond the end: its tokens fill no block.
            computed = state.computed_tokens - state.pending_tokens
            self._store_known(state, computed)
            if state.request.keeps_blocks:
                kept = self._kept[state.id] = state.blocks[: -(-computed // self._block_size)]
                self._cache.take(kept)
            self.release(state)
        else:
            self.waiting.remove(state)  # preempted while its last token was pending
            self._queue_stuck = False

    def kept_blocks(self, request_id: str) -> list[int] | None:
        """Return the blocks kept for a request that has ended or will come, in the order of its prompt; None if none
        are.
        """
        return self._kept.get(request_id)

    def let_go(self, request_id: str) -> None:
        kept = self._kept.pop(request_id, None)
        if kept is not None:
            self._queue_stuck = False
            self._cache.release(kept)

    def statistics(self) -> dict[str, int | float]:
        """Return queue lengths and cumulative counts. As in vLLM, a look-up after a preemption does not count."""
        return {
            "running": len(self.running),
            "waiting": len(self.waiting),
            "prefix_queries_tokens": self._prefix_queries_tokens,
            "prefix_hits_tokens": self._prefix_hits_tokens,
            "preemptions": self._preemptions,
            "kept_blocks": sum(map(len, self._kept.values())),
        }

    def _schedule_running(self, batch: Batch) -> int:
        budget = self._max_num_batched_tokens
        running = self.running
        producers = batch.producers
        index = decodes = context_tokens = 0
        while index < len(running) and budget:
            state = running[index]
            index += 1
            computed = state.computed_tokens
            pending = state.pending_tokens
            if pending and state.output_tokens + pending >= state.request.max_tokens:
                continue
            uncomputed = state.known_tokens + pending - computed
            if uncomputed == 1 and state.slots_left > 1 and computed >= state.prompt_tokens:
                # The most common case by far: one decoded token into a block that it does not fill.
                state.slots_left -= 1
                state.computed_tokens = computed + 1
                state.pending_tokens = pending + 1
                producers.append(state)
                decodes += 1
                context_tokens += computed + 1
                budget -= 1
                continue
            new = min(uncomputed, budget)
            if not self._make_room(state, new, batch):
                break
            self._compute(state, new, batch)
            budget -= new
        batch.decodes += decodes
        batch.decode_context_tokens += context_tokens
        return budget

    def _make_room(self, state: EngineRequestState, new: int, batch: Batch) -> bool:
        """Give `state` slots for `new` tokens. Preempt requests from the end; return False if `state` itself is
        preempted.
        """
        blocks = self._missing_blocks(state, new)
        while not self._cache.fits((), blocks):
            victim = self.running.pop()
            self._preempt(victim)
            batch.preempted += 1
            if victim is state:
                return False
        self._extend(state, blocks)
        return True

    def _preempt(self, victim: EngineRequestState) -> None:
        self.release(victim)
        victim.preemptions += 1
        self._preemptions += 1
        self.waiting.appendleft(victim)

    def _schedule_waiting(self, batch: Batch, budget: int, now_s: float) -> None:
        while self.waiting and budget and len(self.running) < self._max_num_seqs:
            state = self.waiting[0]
            if not self._admit(state, budget):
                self._queue_stuck = not state.request.announces_reuse
                return
            self.waiting.popleft()
            self.running.append(state)
            if state.first_scheduled_s is None:
                state.first_scheduled_s = now_s
                state.cached_tokens = state.computed_tokens
            new = min(state.known_tokens - state.computed_tokens, budget)
            self._compute(state, new, batch)
            budget -= new
        self._queue_stuck = len(self.running) >= self._max_num_seqs

    def _admit(self, state: EngineRequestState, budget: int) -> bool:
        """Take the cached prefix and slots for the first chunk, if the whole sequence would fit."""
        cache = self._cache
        size = self._block_size
        total = state.known_tokens
        self.let_go(state.id)
        state.hash_blocks()
        matched = cache.match(state.block_hashes, (total - 1) // size)
        if matched and state.request.announces_reuse:
            # vLLM announces at every look-up, so once per step while the request waits for KV space at the queue's
            # head.
            cache.announce(self._run(state, 0, len(matched)))
        if not cache.fits(matched, -(-total // size) - len(matched)):
            return False
        cache.take(matched)
        cached = len(matched) * size
        state.blocks = matched
        state.stored_blocks = len(matched)
        state.computed_tokens = cached
        loaded = total - 1 if state.request.received else min(state.request.loaded_tokens, total - 1)
        received = 0 if state.preemptions else max(0, loaded - cached)
        self._extend(state, self._missing_blocks(state, total - cached if received else min(total - cached, budget)))
        state.computed_tokens += received
        state.slots_left -= received
        if not state.preemptions:
            self._prefix_queries_tokens += total
            self._prefix_hits_tokens += cached
        return True

    def _missing_blocks(self, state: EngineRequestState, new: int) -> int:
        return max(0, -(-(new - state.slots_left) // self._block_size))

    def _extend(self, state: EngineRequestState, blocks: int) -> None:
        if blocks:
            state.blocks += self._cache.allocate(blocks)
            state.slots_left += blocks * self._block_size

    def _compute(self, state: EngineRequestState, new: int, batch: Batch) -> None:
        computed = state.computed_tokens
        total = computed + new
        if new == 1 and computed >= state.prompt_tokens:
            batch.decodes += 1
            batch.decode_context_tokens += total
        else:
            batch.chunks.append((new, computed))
        state.computed_tokens = total
        state.slots_left -= new
        known = state.known_tokens
        self._store_known(state, min(total, known))
        if total == known + state.pending_tokens:
            batch.producers.append(state)
            state.pending_tokens += 1

    def _store_known(self, state: EngineRequestState, tokens: int) -> None:
        """Make the request's full blocks within its first `tokens` reusable, as one run."""
        full_blocks = tokens // self._block_size
        if full_blocks > state.stored_blocks:
            self._store(state, full_blocks)

    def _store(self, state: EngineRequestState, full_blocks: int) -> None:
        first = state.stored_blocks
        hashes = state.block_hashes
        if len(hashes) < full_blocks:
            state.hash_blocks()
        self._cache.store(state.blocks[first:full_blocks], self._run(state, first, full_blocks))
        state.stored_blocks = full_blocks

    def _run(self, state: EngineRequestState, first: int, last: int) -> BlocksCached:
        """Return the event for the blocks `first` to `last`, exclusive, of a request."""
        hashes, size = state.block_hashes, self._block_size
        return BlocksCached(
            hashes=tuple(hashes[first:last]),
            parent=hashes[first - 1] if first else None,
            token_ids=state.tokens[first * size : last * size].tolist(),
            block_size=size,
            lora_name=state.request.lora_name,
            extra_keys=state.hasher.extra_keys(first, last),
        )
