"""The modelled workers and what is constant around them, and the flags of those that may vary."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields

from loadtest.arguments import above_zero, part, positive, seconds

NETWORK_S = 0.0005
"""One way, from client to router or from router to worker."""
TOKENISE_S = 0.004
"""From a request's arrival to its decision: rendering, tokenising, hashing."""
TIMEOUT_S = 300.0
"""Clients leave an incomplete answer after this time; these calls miss the service level."""


@dataclass(frozen=True, slots=True)
class Models:
    """What a command may change about a fleet, beside the trace, the rule and the load.

    None means the profile's own value; of `block_tokens` it means the trace's own.
    """

    chunk_tokens: int | None = None
    max_num_seqs: int | None = None
    kv_tokens: int | None = None
    block_tokens: int | None = None
    speed_spread: float = 0.1
    async_scheduling: bool = True
    step_time: float = 1.0
    jitter: float = 0.05
    warm_up_s: float = 240.0


def register_models(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("models", "the modelled workers, and the part that is measured")
    for flag, text in (
        (
            "--chunk-tokens",
            "tokens per engine step, with prefill chunks (default the profile's max_num_batched_tokens)",
        ),
        ("--max-num-seqs", "requests that run at a time on one worker (default the profile's)"),
        ("--kv-tokens", "tokens that each worker's KV cache holds (default the profile's)"),
        ("--block-tokens", "tokens per KV block (default the trace's own)"),
    ):
        group.add_argument(flag, type=positive, metavar="N", help=text)
    for flag, kind, metavar, text in (
        ("--speed-spread", part, "SHARE", "a seed draws each worker's speed: the profile's times 1 +- up to this"),
        ("--step-time", above_zero, "X", "factor on the profile's step times"),
        ("--jitter", part, "SHARE", "each step's time varies by up to this share"),
        ("--warm-up-s", seconds, "S", "calls of the first S seconds of the window are not measured; 0: cold start"),
    ):
        group.add_argument(flag, type=kind, metavar=metavar, help=f"{text} (default %(default)s)")
    text = "schedule each step while the step before it runs, as vLLM does by default (default %(default)s)"
    group.add_argument("--async-scheduling", action=argparse.BooleanOptionalAction, help=text)
    parser.set_defaults(**{one.name: one.default for one in fields(Models)})


def models_of(args: argparse.Namespace) -> Models:
    return Models(**{one.name: getattr(args, one.name) for one in fields(Models)})
