"""One row of numbers per policy, from the timings of its requests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from loadtest.drive.seen import Seen


@dataclass(frozen=True, slots=True)
class Row:
    """One policy's run. `cached_share` is cached over prompt tokens; `prefill_tokens` is what the workers computed."""

    policy: str
    requests: int
    errors: int
    ttft_mean_ms: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    tpot_p50_ms: float
    tpot_p99_ms: float
    cached_share: float
    prefill_tokens: int


def percentile(values: Sequence[float], share: float) -> float:
    """Interpolate linearly between the two nearest ranks; 0 for no values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summarise(policy: str, timings: Iterable[Seen]) -> Row:
    """Return the row of one policy. Failed requests count as errors and nowhere else."""
    all_ = list(timings)
    good = [timing for timing in all_ if timing.error is None]
    ttft = [timing.ttft_s * 1e3 for timing in good if timing.ttft_s is not None]
    tpot = [timing.tpot_s * 1e3 for timing in good if timing.tpot_s is not None]
    prompt = sum(timing.prompt_tokens for timing in good)
    cached = sum(timing.cached_tokens for timing in good)
    return Row(
        policy=policy,
        requests=len(all_),
        errors=len(all_) - len(good),
        ttft_mean_ms=sum(ttft) / len(ttft) if ttft else 0.0,
        ttft_p50_ms=percentile(ttft, 0.5),
        ttft_p99_ms=percentile(ttft, 0.99),
        tpot_p50_ms=percentile(tpot, 0.5),
        tpot_p99_ms=percentile(tpot, 0.99),
        cached_share=cached / prompt if prompt else 0.0,
        prefill_tokens=prompt - cached,
    )
