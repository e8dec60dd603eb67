"""Tables of evidence, and the figures that several checks use."""

from __future__ import annotations

from collections.abc import Callable

from backends.vllm.histogram_bounds import ITL_S, TTFT_S
from router.diagnosis.finding import Cell, Evidence, table
from router.diagnosis.measured import Measured, WorkerMeasured
from router.telemetry.histogram import OUTPUT_TOKENS, PROMPT_TOKENS, named_buckets, quantile

MOST_ROWS = 10
"""Workers in a table: the worst ones."""


def mean(total: float, number: int) -> float | None:
    """Return the mean; None of nothing."""
    return total / number if number else None


def inputs(measured: Measured) -> Evidence:
    """Return the distribution of prompt lengths."""
    rows = zip(named_buckets(PROMPT_TOKENS), (one.requests for one in measured.prompts), strict=True)
    return table("Prompts by length", ["prompt tokens", "requests"], [list(row) for row in rows])


def outputs(measured: Measured) -> Evidence:
    """Return the distribution of answer lengths."""
    rows = zip(named_buckets(OUTPUT_TOKENS), measured.outputs, strict=True)
    return table("Answers by length", ["output tokens", "requests"], [list(row) for row in rows])


def first_tokens(measured: Measured) -> Evidence:
    """Return the times to first token by prompt length, and how long the requests waited before their own prefill."""
    columns = ["prompt tokens", "streams", "TTFT p50 s", "TTFT p95 s", "mean TTFT s", "mean wait s"]
    rows: list[list[Cell]] = []
    for name, one in zip(named_buckets(PROMPT_TOKENS), measured.prompts, strict=True):
        seen = sum(one.ttft)
        if seen:
            p50, p95 = quantile(one.ttft, TTFT_S, 0.5), quantile(one.ttft, TTFT_S, 0.95)
            rows.append([name, seen, p50, p95, one.ttft_s / seen, one.wait_s / seen])
    return table("Time to first token by prompt length", columns, rows)


def worst(measured: Measured, badness: Callable[[WorkerMeasured], float]) -> list[tuple[str, WorkerMeasured]]:
    """Return the workers with the highest `badness`, worst first."""
    ranked = sorted(measured.workers.items(), key=lambda one: (-badness(one[1]), one[0]))
    return ranked[:MOST_ROWS]


def gaps(measured: Measured) -> Evidence:
    """Return the gaps between tokens of the workers with the longest ones."""
    columns = ["worker", "gap p50 s", "gap p95 s", "gap p99 s", "p99 beside long prefills s", "mean running requests"]
    ranked = worst(measured, lambda one: quantile(one.alone, ITL_S, 0.95) or 0.0)
    rows: list[list[Cell]] = [
        [
            name,
            *(quantile(one.alone, ITL_S, share) for share in (0.5, 0.95, 0.99)),
            quantile(one.beside, ITL_S, 0.99),
            mean(one.running, one.reports),
        ]
        for name, one in ranked
    ]
    return table("Gaps between tokens by worker, without a long prompt in prefill there", columns, rows)


def caches(measured: Measured) -> Evidence:
    """Return the use of the KV caches of the fullest workers."""
    columns = ["worker", "mean KV use", "preemptions", "evicted share of earlier turns", "prefill utilisation"]
    rows: list[list[Cell]] = [
        [
            name,
            mean(one.kv_usage, one.reports),
            one.preemptions,
            mean(one.evicted_tokens, one.earlier_tokens),
            mean(one.utilisation, one.requests),
        ]
        for name, one in worst(measured, lambda one: mean(one.kv_usage, one.reports) or 0.0)
    ]
    return table("KV caches by worker", columns, rows)


def turns(measured: Measured) -> Evidence:
    """Return hit share and time to first token by the number of the turn."""
    columns = ["turn", "requests", "cached share", "reused share of earlier turns", "mean TTFT s"]
    rows: list[list[Cell]] = [
        [
            f"{number}" if number < len(measured.turns) else f"{number} or later",
            one.requests,
            mean(one.cached_tokens, one.prompt_tokens),
            mean(one.reused_tokens, one.earlier_tokens),
            mean(one.ttft_s, one.first_tokens),
        ]
        for number, one in enumerate(measured.turns, 1)
        if one.requests
    ]
    return table("Cached tokens by turn of the session", columns, rows)


def moves(measured: Measured) -> Evidence:
    """Return where further turns went, and why."""
    rows: list[list[Cell]] = [["to the same worker", measured.stayed]]
    rows += [[_MOVES[why], number] for why, number in sorted(measured.moved.items())]
    return table("Further turns by where they went", ["turn went", "requests"], rows)


_MOVES = {
    "unavailable": "elsewhere: the worker before took no requests",
    "cache_lost": "elsewhere: the worker before had no more of the prompt cached",
    "not_known": "elsewhere: it was not known what the worker before had cached",
    "cost": "elsewhere: the policy preferred another worker to the cached prompt",
}
