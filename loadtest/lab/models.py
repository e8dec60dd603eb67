"""The modelled workers: one parameter per flag, with its default."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields
from typing import Any

from loadtest.arguments import above_zero, checked, positive, seconds

NETWORK_S = 0.0005
"""One way, from client to router or from router to worker."""
TOKENISE_S = 0.004
"""From a request's arrival to its decision: rendering, tokenising, hashing."""
TIMEOUT_S = 300.0
"""Clients leave an incomplete answer after this time; these calls miss the service level."""


def parameter(default: object, help_: str, *, metavar: str = "N") -> Any:
    return field(default=default, metadata={"help": help_, "metavar": metavar})


@dataclass(frozen=True, slots=True)
class Models:
    """What a command may change about a fleet, beside the trace, the rule and the load.

    None means the profile's own value. Times are in seconds, shares run from 0 to 1.
    """

    chunk_tokens: int | None = parameter(None, "tokens per engine step, with prefill chunks (max_num_batched_tokens)")
    max_num_seqs: int | None = parameter(None, "requests that run at a time on one worker")
    kv_tokens: int | None = parameter(None, "tokens that each worker's KV cache holds")
    block_tokens: int | None = parameter(None, "tokens per KV block; default: the trace's own")
    speed_spread: float = parameter(
        0.1, "a seed draws each worker's speed: the profile's times 1 plus or minus up to this", metavar="SHARE"
    )
    async_scheduling: bool = parameter(
        True, "schedule each step while the step before it runs, as vLLM does by default"
    )
    step_time: float = parameter(1.0, "factor on the profile's step times", metavar="X")
    jitter: float = parameter(0.05, "each step's time varies by up to this share", metavar="SHARE")
    warm_up_s: float = parameter(
        240.0,
        "calls of the first S seconds of the window (the trace's time) warm caches and estimates and are not"
        " measured; 0: cold start, all measured",
        metavar="S",
    )


def flag(one: Field[Any]) -> str:
    return "--" + one.name.replace("_", "-")


def register_models(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("models", "the modelled workers, and the part that is measured")
    for one in fields(Models):
        value: Any = one.default
        text = f"{one.metadata['help']} (default {'the profile' + chr(39) + 's' if value is None else value})"
        if isinstance(value, bool):
            group.add_argument(flag(one), action=argparse.BooleanOptionalAction, default=value, help=text)
        else:
            metavar = one.metadata["metavar"]
            group.add_argument(flag(one), type=_KINDS[metavar], default=value, metavar=metavar, help=text)


def models_of(args: argparse.Namespace) -> Models:
    return Models(**{one.name: getattr(args, one.name) for one in fields(Models)})


_KINDS: dict[str, Callable[[str], float]] = {
    "SHARE": checked(float, lambda value: 0.0 <= value < 1.0, "a share; write a number from 0 to below 1"),
    "N": positive,
    "X": above_zero,
    "S": seconds,
}
"""Types of the models' flags, by their metavar."""
