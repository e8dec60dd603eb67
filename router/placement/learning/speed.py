"""How fast a worker prefills: the coefficients of its time to first token, and their median over a fleet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

SpeedSource: TypeAlias = Literal["learned", "fleet", "prior"]
"""Whose speed estimates use: the worker's own, the median of workers that have learned theirs, or the prior."""
PRIOR_TOKEN_S = 2.0**-14
"""Seconds per prompt token while no worker has learned its speed: 61 us, the next power of two to the 54.8 us of an 8B
model on an A100 (`backends/engine/profiles/llama-3.1-8b-a100.toml`). Multiples of a power of two are exact, so equal
tokens give equal times. It is the same for all workers, so it ranks them by tokens, whatever their real speed.
"""


def attention(uncached_tokens: int, cached_tokens: int) -> float:
    """Return the token pairs that a prefill of u uncached tokens after c cached ones attends to: u * (c + u / 2)."""
    return uncached_tokens * (cached_tokens + 0.5 * uncached_tokens)


@dataclass(frozen=True, slots=True)
class Speed:
    """Coefficients in seconds per token, seconds, seconds per token pair, seconds per context token.

    `relative_error` is the standard error of a predicted time to first token, as a share of it. It holds within the
    range of the observations, up to `reach_tokens`, twice their root mean square. Beyond that range the error of the
    token time (`token_error_s`) is added.
    """

    token_s: float
    fixed_s: float
    attention_s: float
    decode_s: float
    relative_error: float
    token_error_s: float = 0.0
    reach_tokens: float = 0.0

    def coefficients(self) -> tuple[float, ...]:
        return (
            self.token_s,
            self.fixed_s,
            self.attention_s,
            self.decode_s,
            self.relative_error,
            self.token_error_s,
            self.reach_tokens,
        )

    def prefill_s(self, uncached_tokens: int, attention: float) -> float:
        """Return the time of a prefill alone. `attention` is the result of the function of this name."""
        return self.token_s * uncached_tokens + self.attention_s * attention

    def error_s(self, seconds: float, tokens: float) -> float:
        """Return the standard error of a prediction of `seconds` for these tokens, queued and own.

        It approximates x' P x: the average over the observations is the relative error, and outside their range the
        error of the slope dominates.
        """
        beyond_tokens = tokens - self.reach_tokens
        error_s = self.relative_error * seconds
        return error_s if beyond_tokens <= 0.0 else error_s + self.token_error_s * beyond_tokens


def median_speed(speeds: list[Speed]) -> Speed:
    """Return the median of each coefficient; of two middle values the lower, so that unknown workers are tried.

    The medians of attention and decodes leave out workers where they are zero. The errors are the largest of all
    workers, the reach is the least.
    """
    return Speed(
        _middle([speed.token_s for speed in speeds]),
        _middle([speed.fixed_s for speed in speeds]),
        _middle([speed.attention_s for speed in speeds if speed.attention_s]),
        _middle([speed.decode_s for speed in speeds if speed.decode_s]),
        max([speed.relative_error for speed in speeds]),
        max([speed.token_error_s for speed in speeds]),
        min([speed.reach_tokens for speed in speeds]),
    )


def _middle(values: list[float]) -> float:
    values.sort()
    return values[(len(values) - 1) // 2] if values else 0.0
