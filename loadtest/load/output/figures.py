"""The figures of a run as one JSON object, with the keys of `vllm bench serve` where they mean the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from loadtest.load.order import Order
from loadtest.load.records import MEASURES, Record
from loadtest.load.results import Findings, Results
from loadtest.load.tally import Tally

MS = 1e3


def figures(
    order: Order, results: Results, findings: Findings, shares: Sequence[float], about: Mapping[str, Any]
) -> dict[str, Any]:
    """Return all figures; `about` are the fields that the caller knows, such as the date. Unknown values are null."""
    tally, duration_s = results.tally, results.duration_s
    saturated, goal = findings.saturated, findings.goal
    return {
        **about,
        "backend": "openai-chat" if order.chat else "openai",
        "endpoint_type": "openai-chat" if order.chat else "openai",
        "model_id": order.model,
        "num_prompts": order.num_prompts,
        "burstiness": order.burstiness if isfinite(order.burstiness) else "inf",
        "max_concurrency": order.max_concurrency,
        "duration": _known(duration_s),
        "completed": tally.completed,
        "failed": tally.failed,
        "total_input_tokens": tally.prompt_tokens,
        "total_output_tokens": tally.completion_tokens,
        "request_throughput": _known(tally.completed / duration_s),
        "request_goodput": _known(tally.met / duration_s) if results.goals else None,
        "output_throughput": _known(tally.completion_tokens / duration_s),
        "total_token_throughput": _known((tally.prompt_tokens + tally.completion_tokens) / duration_s),
        "max_concurrent_requests": results.most_at_once(),
        **_measures(tally, shares),
        "steady": saturated is None,
        "piled_share": None if saturated is None else saturated.piled_share,
        "ttft_slope_ms_per_s": None if saturated is None else saturated.ttft.per_s * MS,
        "window_s": _known(results.window_s),
        "window_request_throughput": _known(results.window_rate()),
        "warm_up_requests": results.warm_up,
        "capped_requests": tally.capped,
        "uncounted_requests": tally.uncounted,
        "cached_share": tally.cached_share,
        "valid": not findings.void,
        "void_reason": findings.void or None,
        "client_lag_p99_ms": _known(results.lags.ordered().at(0.99) * MS),
        "goodput_goals_ms": {name: limit_s * MS for name, limit_s in results.goals.items()},
        "goodput_share": tally.met / tally.total if results.goals and tally.total else None,
        "verdict": None
        if goal is None
        else {
            "answer": findings.answer.name.lower(),
            "attainment": results.attainment,
            "late": goal.late,
            "total": goal.total,
            "needed_total": goal.needed,
        },
        "errors": dict(tally.errors.most_common(20)),
        "groups": {
            name: {"requests": each.total, "failed": each.failed, "cached_share": each.cached_share}
            | _measures(each, shares)
            for name, each in sorted(results.groups.items())
        },
        "definitions": {name: measure.definition for name, measure in MEASURES.items()},
    }


def detailed(records: Sequence[Record]) -> dict[str, list[Any]]:
    """Return the lists of `vllm bench serve --save-detailed`, in seconds, by the time of each request."""
    by_time = sorted(records, key=lambda one: one.intended_s)
    return {
        "input_lens": [one.prompt_tokens for one in by_time],
        "output_lens": [one.completion_tokens for one in by_time],
        "ttfts": [one.ttft_s or 0.0 for one in by_time],
        "itls": [one.itls_s for one in by_time],
        "latencies": [one.e2el_s for one in by_time],
        "start_times": [one.intended_s for one in by_time],
        "queue_times": [one.waited_s for one in by_time],
        "errors": [one.error for one in by_time],
    }


def _measures(tally: Tally, shares: Sequence[float]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, sample in tally.samples.items():
        values = sample.ordered()
        found[f"mean_{name}_ms"] = _known(sample.mean * MS)
        found[f"median_{name}_ms"] = _known(values.at(0.5) * MS)
        found[f"std_{name}_ms"] = _known(sample.std * MS)
        for share in shares:
            interval = values.interval(share)
            found[f"p{share * 100:g}_{name}_ms"] = _known(values.at(share) * MS)
            found[f"p{share * 100:g}_{name}_interval_ms"] = interval and [end * MS for end in interval]
        found[f"count_{name}"] = sample.count
    return found


def _known(value: float) -> float | None:
    return value if isfinite(value) else None
