"""The order that the flags of ``warmroute load`` give."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from math import inf

from loadtest.load.arrivals import Rates
from loadtest.load.datasets import SYNTHETIC, TEXTS, TIMED
from loadtest.load.order import Dataset, Order, TrafficClass
from loadtest.workload.errors import WorkloadError
from loadtest.workload.source import GENERATOR

DEFAULT_PROMPTS = 1000
ENDPOINTS = {"openai": "/v1/completions", "openai-chat": "/v1/chat/completions"}


_OF_DATASETS: Mapping[str, Sequence[str]] = {
    "dataset_path": (*TEXTS, *TIMED),
    "input_len": SYNTHETIC,
    "output_len": (*SYNTHETIC, *TEXTS),
    "range_ratio": ("random",),
    "prefix_len": SYNTHETIC,
    "num_prefixes": ("prefix_repetition",),
    "disable_shuffle": TEXTS,
    "multi_turn": ("sharegpt",),
}
"""The datasets that a flag changes."""
_RAMP = ("ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps")
_OUTPUTS = ("records", "csv", "html", "save_detailed", "metric_percentiles", "checkpoints")
_NOT_IN_SEARCHES = (*_OUTPUTS, "users", "rate_series", *_RAMP)
"""A search has many runs with schedules of its own, and writes what it found."""


def order_of(args: argparse.Namespace, model: str) -> Order:
    """Return the order.

    Raises:
        WorkloadError: flags contradict each other, or the rate series is wrong.
    """
    name = args.dataset_name
    if args.checkpoints is not None and args.duration is None:
        raise WorkloadError("--checkpoints are for runs of a --duration")
    if args.checkpoints is not None and args.save_detailed:
        raise WorkloadError("--save-detailed would hold every request of a long run; the checkpoints have the records")
    rates = _rates(args)
    for where, names in _idle(args, rates):
        given = [name for name in names if getattr(args, name) != args.defaults[name]]
        if given:
            raise WorkloadError(f"{_flags(given)} would do nothing {where}")
    timed = rates is None and args.request_rate is None and args.users is None and args.max_concurrency is None
    return Order(
        url=args.url,
        model=model,
        dataset=Dataset(
            name=name,
            path=args.dataset_path,
            tokenizer=args.tokenizer,
            input_len=args.input_len,
            output_len=args.output_len,
            range_ratio=args.range_ratio,
            prefix_len=args.prefix_len,
            num_prefixes=args.num_prefixes,
            multi_turn=args.multi_turn,
            shuffle=not args.disable_shuffle,
        ),
        chat=args.backend == "openai-chat",
        endpoint=args.endpoint or ENDPOINTS[args.backend],
        headers=args.headers,
        session_header=args.session_header,
        classes=tuple(TrafficClass(*each) for each in args.classes),
        extra_body=args.extra_body,
        ignore_eos=name not in TEXTS if args.ignore_eos is None else args.ignore_eos,
        seed=args.seed,
        num_prompts=args.num_prompts or (None if args.duration else DEFAULT_PROMPTS),
        duration_s=args.duration,
        rates=rates,
        timed=timed and (name in TIMED or name.startswith(GENERATOR) or name == "custom"),
        burstiness=args.burstiness,
        max_concurrency=args.max_concurrency,
        users=args.users,
        think_s=args.think_time,
        limit_s=args.request_limit_s,
        processes=args.processes,
    )


def _idle(args: argparse.Namespace, rates: Rates | None) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield flags that have no effect, by their names in `args`, and where that is so."""
    dataset = args.dataset_name.partition(":")[0]
    yield f"with --dataset-name {dataset}", [name for name, used in _OF_DATASETS.items() if dataset not in used]
    if args.find is not None:
        yield "with --find", _NOT_IN_SEARCHES
    if args.find == "goodput":
        yield "with --find goodput, whose runs have a number of requests", ("duration",)
    if args.find == "knee":
        yield "with --find knee", ("request_rate", "burstiness", "goodput", "attainment")
    if rates is None and args.find is None:
        yield "without a rate", ("burstiness",)
    if args.users is None:
        yield "without --users", ("think_time",)
    else:
        yield "with --users, of which each has one request at a time", ("max_concurrency",)
    if args.checkpoints is None:
        yield "without --checkpoints", ("checkpoint_each", "watch_rss")
    if not args.goodput:
        yield "without --goodput", ("attainment",)
    if not (args.save_result or args.save_detailed):
        yield "without --save-result", ("result_dir", "result_filename")


def _flags(names: Sequence[str]) -> str:
    return " and ".join(f"--{name.replace('_', '-')}" for name in names)


def _rates(args: argparse.Namespace) -> Rates | None:
    """Return the rates of an open loop; None for a closed loop, users, and the dataset's own times."""
    ramp = tuple(getattr(args, name) for name in _RAMP)
    given = [
        flag
        for flag, there in (
            ("--request-rate", args.request_rate not in (None, inf)),
            ("--rate-series", args.rate_series is not None),
            ("--ramp-up-strategy", any(ramp)),
            ("--users", args.users is not None),
        )
        if there
    ]
    if len(given) > 1:
        raise WorkloadError(f"{' and '.join(given)} are different schedules; give one")
    if any(ramp):
        if not all(ramp) or args.duration is None:
            raise WorkloadError("a ramp needs --ramp-up-strategy, --ramp-up-start-rps, --ramp-up-end-rps, --duration")
        return Rates.ramp(ramp[1], ramp[2], args.duration, ramp[0] == "exponential")
    if args.rate_series is not None:
        return Rates.series(args.rate_series)
    endless = args.max_concurrency is None and args.users is None and args.duration is not None
    if args.request_rate == inf and endless:
        raise WorkloadError("--request-rate inf for a --duration sends without end; give --max-concurrency")
    return Rates.constant(args.request_rate) if given == ["--request-rate"] else None
