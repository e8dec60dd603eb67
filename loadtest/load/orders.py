"""The order that the flags of ``warmroute load`` give."""

from __future__ import annotations

import argparse
from math import inf

from loadtest.load.arrivals import Rates
from loadtest.load.datasets import TEXTS, TIMED
from loadtest.load.order import Dataset, Order, TrafficClass
from loadtest.workload.errors import WorkloadError
from loadtest.workload.source import GENERATOR

DEFAULT_PROMPTS = 1000
ENDPOINTS = {"openai": "/v1/completions", "openai-chat": "/v1/chat/completions"}


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
    if args.watch_rss is not None and args.checkpoints is None:
        raise WorkloadError("--watch-rss needs --checkpoints, whose windows have the memory")
    rates = _rates(args)
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


def _rates(args: argparse.Namespace) -> Rates | None:
    """Return the rates of an open loop; None for a closed loop, users, and the dataset's own times."""
    ramp = (args.ramp_up_strategy, args.ramp_up_start_rps, args.ramp_up_end_rps)
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
