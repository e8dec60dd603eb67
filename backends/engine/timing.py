from __future__ import annotations

import random
from collections.abc import Sequence
from functools import reduce
from operator import add

from backends.engine.profile import Profile

_DRAWN_AT_ONCE = 256


class StepTiming:
    """Step time of one worker, from its profile's linear fits.

    A step that mixes chunks and decodes costs the decode step plus the chunks without their fixed part, because the
    weights are read once. Several chunks in a step share one fixed part for the same reason. `jitter` j multiplies each
    step by a uniform draw from [1 - j, 1 + j]; `speed` divides it (2.0 = twice as fast as the profile).
    """

    def __init__(self, profile: Profile, rng: random.Random, jitter: float = 0.0, speed: float = 1.0) -> None:
        if not 0.0 <= jitter < 1.0:
            raise ValueError(f"jitter is {jitter}; it must be at least 0 and below 1")
        if not speed > 0.0:
            raise ValueError(f"speed is {speed}; it must be above 0")
        self._prefill = profile.prefill
        self._decode = profile.decode
        self._rng = rng
        self._jitter = jitter
        self._drawn: list[float] = []
        """Factors of the next steps, from `_next` on. `look_ahead` may see factors that are used later."""
        self._next = 0
        self._per_ms = 1e-3 / speed
        self._steps = 0
        self._total_s = 0.0

    def step_s(self, prefill: Sequence[tuple[int, int]], decodes: int, decode_context_tokens: int) -> float:
        """Return seconds for one step with these chunks, as (new, cached) tokens, beside `decodes` decodes.

        `decode_context_tokens` is the sum of the decodes' context lengths. A step without chunks and decodes takes no
        time.
        """
        if not prefill and not decodes:
            return 0.0
        step_ms = self.prefill_ms(prefill) if prefill else 0.0
        if decodes:
            cost = self._decode
            step_ms += cost.fixed_ms(decodes) + cost.k_ns * 1e-6 * decode_context_tokens
            if prefill:
                step_ms -= self._prefill.a_ms
        step_s = step_ms * self._per_ms
        if self._jitter:
            if self._next == len(self._drawn):
                self._draw(1)
            step_s *= self._drawn[self._next]
            self._next += 1
        self._steps += 1
        self._total_s += step_s
        return step_s

    def decode_steps_s(self, steps: int, decodes: int, decode_context_tokens: int) -> list[float]:
        """Return the durations of the next `steps` steps without chunks, bit-identical to the results of `step_s`.

        Each step has the same `decodes` and one context token more per decode. The state does not change until `take`.
        """
        cost, per_ms = self._decode, self._per_ms
        fixed_ms, token_ms = cost.fixed_ms(decodes), cost.k_ns * 1e-6
        contexts = range(decode_context_tokens, decode_context_tokens + steps * decodes, decodes)
        if not self._jitter:
            return [(fixed_ms + token_ms * context) * per_ms for context in contexts]
        if len(self._drawn) - self._next < steps:
            self._draw(steps)
        factors = self._drawn[self._next : self._next + steps]
        return [
            (fixed_ms + token_ms * context) * per_ms * factor for context, factor in zip(contexts, factors, strict=True)
        ]

    def take(self, steps_s: Sequence[float]) -> None:
        """Consume the jitter factors of the first `steps` of the last `decode_steps_s`."""
        if self._jitter:
            self._next += len(steps_s)
        self._steps += len(steps_s)
        self._total_s = reduce(add, steps_s, self._total_s)

    def _draw(self, steps: int) -> None:
        draw, jitter = self._rng.random, self._jitter
        del self._drawn[: self._next]
        self._next = 0
        wanted = max(steps - len(self._drawn), _DRAWN_AT_ONCE)
        self._drawn += [1.0 + jitter * (2.0 * draw() - 1.0) for _ in range(wanted)]

    def prefill_ms(self, chunks: Sequence[tuple[int, int]]) -> float:
        """Return milliseconds for a step of these chunks alone, by the profile, without speed and jitter."""
        cost = self._prefill
        new_tokens = sum([new for new, _ in chunks])
        return cost.a_ms + cost.b_us * 1e-3 * new_tokens + cost.d_ns * 1e-6 * attended_pairs(chunks)

    def statistics(self) -> dict[str, int | float]:
        return {"steps": self._steps, "busy_s": self._total_s}


def attended_pairs(chunks: Sequence[tuple[int, int]]) -> float:
    return sum([new * (cached + 0.5 * new) for new, cached in chunks])
