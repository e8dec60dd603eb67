"""The figures of one contender's run, and their summary over rounds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from loadtest.drive.chat import Timing
from loadtest.peers.workers import BLOCK_TOKENS, Counters
from loadtest.report.summary import percentile
from loadtest.workload.conversations import Conversation


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources used from the start of the first request to the end of the last one.

    `workers` are the differences of each worker's counters. `machine_cpu_s` is the CPU time that all cores of the
    machine offered, and `busy_cpu_s` the part that any process used. `client_lag_p99_s` is the delay of the load
    generator's loop.
    """

    duration_s: float
    router_cpu_s: float
    client_cpu_s: float
    busy_cpu_s: float
    machine_cpu_s: float
    client_lag_p99_s: float
    workers: tuple[Counters, ...]


@dataclass(frozen=True, slots=True)
class Figures:
    """One contender in one round. Shares are from 0 to 1. Failed requests count as errors and nowhere else.

    `cached_share` comes from the responses, `looked_up_share` from the workers' hits over queries. `imbalance` is the
    largest worker's computed prompt tokens over the mean. CPU is per answered request. `busy_share` is the part of the
    machine's CPU time that any process used, `own_share` the part that this comparison used. The difference is foreign
    load, which makes the times of a run worse.
    """

    contender: str
    round: int
    requests: int
    errors: int
    duration_s: float
    prompt_tokens: int
    prefill_tokens: int
    cached_share: float
    looked_up_share: float
    imbalance: float
    ttft_mean_ms: float
    ttft_p50_ms: float
    ttft_p90_ms: float
    ttft_p99_ms: float
    tpot_p50_ms: float
    tpot_p99_ms: float
    router_cpu_ms: float
    workers_cpu_ms: float
    client_cpu_ms: float
    busy_share: float
    own_share: float
    client_lag_p99_ms: float


def figures(contender: str, number: int, timings: Sequence[Timing], usage: Usage) -> Figures:
    good = [timing for timing in timings if timing.error is None]
    ttft = [timing.ttft_s * 1e3 for timing in good if timing.ttft_s is not None]
    tpot = [timing.tpot_s * 1e3 for timing in good if timing.tpot_s is not None]
    prompt = sum(timing.prompt_tokens for timing in good)
    cached = sum(timing.cached_tokens for timing in good)
    workers_cpu_s = sum(worker.cpu_s for worker in usage.workers)
    own_cpu_s = usage.router_cpu_s + usage.client_cpu_s + workers_cpu_s
    computed = [worker.queries - worker.hits for worker in usage.workers]
    return Figures(
        contender=contender,
        round=number,
        requests=len(timings),
        errors=len(timings) - len(good),
        duration_s=usage.duration_s,
        prompt_tokens=prompt,
        prefill_tokens=prompt - cached,
        cached_share=_share(cached, prompt),
        looked_up_share=_share(
            sum(worker.hits for worker in usage.workers), sum(worker.queries for worker in usage.workers)
        ),
        imbalance=_share(max(computed, default=0) * len(computed), sum(computed)),
        ttft_mean_ms=statistics.fmean(ttft) if ttft else 0.0,
        ttft_p50_ms=percentile(ttft, 0.5),
        ttft_p90_ms=percentile(ttft, 0.9),
        ttft_p99_ms=percentile(ttft, 0.99),
        tpot_p50_ms=percentile(tpot, 0.5),
        tpot_p99_ms=percentile(tpot, 0.99),
        router_cpu_ms=_share(usage.router_cpu_s * 1e3, len(good)),
        workers_cpu_ms=_share(workers_cpu_s * 1e3, len(good)),
        client_cpu_ms=_share(usage.client_cpu_s * 1e3, len(good)),
        busy_share=_share(usage.busy_cpu_s, usage.machine_cpu_s),
        own_share=_share(own_cpu_s, usage.machine_cpu_s),
        client_lag_p99_ms=usage.client_lag_p99_s * 1e3,
    )


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def reusable_share(
    conversations: Sequence[Conversation], timings: Sequence[Timing], system_tokens: int
) -> float | None:
    """Return the share that a single worker with an unlimited cache would have found, if requests ran one at a time.

    `timings` are the result of `play`. The first turn of a conversation finds its group's system prompt if an earlier
    conversation had it. A later turn finds all earlier tokens but the last. Both are rounded down to whole blocks. Text
    that conversations share by chance does not count. The result is None if a request failed.
    """
    if len(timings) != sum(len(conversation.turns) for conversation in conversations):
        return None
    if any(timing.error is not None for timing in timings):
        return None
    rest = iter(timings)
    seen: set[str] = set()
    found = 0
    for conversation in conversations:
        known = system_tokens if conversation.system in seen else 0
        seen.add(conversation.system)
        for _ in conversation.turns:
            found += known // BLOCK_TOKENS * BLOCK_TOKENS
            timing = next(rest)
            known = timing.prompt_tokens + timing.completion_tokens - 1
    return _share(found, sum(timing.prompt_tokens for timing in timings))


class Spread(NamedTuple):
    """Median, lowest and highest value of one figure over rounds."""

    median: float
    least: float
    most: float


def spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


def ratios(runs: Sequence[Figures], baseline: Sequence[Figures], key: str) -> list[float]:
    """Return a figure's ratio to the baseline in the same round, for every round that has both."""
    base = {run.round: float(getattr(run, key)) for run in baseline}
    return [float(getattr(run, key)) / base[run.round] for run in runs if base.get(run.round)]
