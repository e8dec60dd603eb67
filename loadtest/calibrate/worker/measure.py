"""Carry a plan out on a worker."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence

from loadtest.calibrate.readings import CalibrationError, Reading, prefill_reading
from loadtest.calibrate.worker.calls import Calls
from loadtest.calibrate.worker.facts import MeasuredWorker
from loadtest.calibrate.worker.plan import REPEATS, Batch, CalibrationPlan
from loadtest.calibrate.worker.tokens import Arrival, decode_reading, mixed_reading

_IDS = range(300, 8_000)
"""Token ids of prompts. Every tokenizer has them, and the first 256 are often bytes."""
_WARM_TOKENS = 256
_SETTLED_TOKENS = 8
"""Tokens of each decode before a prompt comes beside it, and between two prompts."""
_POLL_S = 0.002


class Measurement:
    """The readings of one worker, in the order of the plan. `say` is called with each; `rng` draws the prompts.

    Times of prompts are the worker's own, from the start of the first step to the first token.
    """

    def __init__(self, calls: Calls, worker: MeasuredWorker, say: Callable[[str], None], rng: random.Random) -> None:
        self._calls = calls
        self._limits = worker.limits
        self._say = say
        self._rng = rng

    async def readings(self, plan: CalibrationPlan) -> list[Reading]:
        """Measure.

        Raises:
            CalibrationError: the worker failed, or served others meanwhile.
        """
        before = await self._calls.counted()
        await self._calls.answer(self._prompt(_WARM_TOKENS))
        before = await self._calls.counted_after(before)
        found = await self._prompts(plan)
        found += [self._told(await self._decode(batch)) for batch in plan.batches]
        found += map(self._told, await self._mixed(plan))
        others = (await self._calls.counted()).prompt_tokens - before.prompt_tokens - plan.prompt_tokens()
        if others:
            raise CalibrationError(f"the worker computed {others:,} prompt tokens of others meanwhile; drain it first")
        return found

    async def _prompts(self, plan: CalibrationPlan) -> list[Reading]:
        found, prompt = [], []
        for tokens in plan.prompts:
            for _ in range(REPEATS):
                prompt = self._prompt(tokens)
                found.append(self._told(await self._prefill(prompt)))
        if plan.extension_tokens is not None:
            found.append(self._told(await self._prefill(prompt)))
            found.append(self._told(await self._prefill(prompt + self._prompt(plan.extension_tokens))))
        return found

    async def _prefill(self, prompt: Sequence[int]) -> Reading:
        before = await self._calls.counted()
        await self._calls.answer(prompt)
        after = await self._calls.counted_after(before)
        prefills = after.prefills - before.prefills
        if prefills != 1:
            raise CalibrationError(f"the worker counted {prefills} prompts where one was sent; drain it first")
        cached, prefill_s = after.hit_tokens - before.hit_tokens, after.prefill_s - before.prefill_s
        budget_tokens = self._limits.max_num_batched_tokens
        return prefill_reading(prefill_s * 1e3, len(prompt) - cached, cached, budget_tokens)

    async def _decode(self, batch: Batch) -> Reading:
        arrivals: list[Arrival] = []
        await self._calls.stream(self._batch(batch), batch.output_tokens, arrivals.append)
        return decode_reading(batch, arrivals)

    async def _mixed(self, plan: CalibrationPlan) -> list[Reading]:
        batch, arrivals, sent = plan.mixed, list[Arrival](), list[tuple[int, float, float]]()
        decodes = self._calls.stream(self._batch(batch), batch.output_tokens, arrivals.append)
        streamed = asyncio.get_running_loop().create_task(decodes)
        try:
            for tokens in plan.mixed_prompts:
                await _settled(arrivals, len(arrivals) + _SETTLED_TOKENS * batch.sequences, streamed)
                sent_s = time.monotonic()
                await self._calls.answer(self._prompt(tokens))
                sent.append((tokens, sent_s, time.monotonic()))
            await streamed
        finally:
            streamed.cancel()
        return [mixed_reading(batch, arrivals, *one) for one in sent]

    def _batch(self, batch: Batch) -> list[list[int]]:
        return [self._prompt(batch.prompt_tokens) for _ in range(batch.sequences)]

    def _prompt(self, tokens: int) -> list[int]:
        return self._rng.choices(_IDS, k=tokens)

    def _told(self, reading: Reading) -> Reading:
        self._say(f"{reading.kind}: {reading.what}: {reading.ms:,.2f} ms")
        return reading


async def _settled(arrivals: Sequence[Arrival], count: int, streamed: asyncio.Task[None]) -> None:
    while len(arrivals) < count and not streamed.done():  # noqa: ASYNC110
        await asyncio.sleep(_POLL_S)
