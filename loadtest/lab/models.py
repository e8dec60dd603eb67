"""What is modelled beside the engine's step times: one parameter per flag, each with its default and its doubts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from typing import Any


def parameter(
    default: object, help_: str, *others: object, metavar: str = "N", beside: Mapping[str, object] | None = None
) -> Any:
    """A model's parameter; `others` are the values that a sensitivity run tries besides.

    `beside` are other parameters without which this one does nothing, and the values that they then take from their
    defaults.
    """
    return field(
        default=default, metadata={"help": help_, "others": others, "metavar": metavar, "beside": beside or {}}
    )


@dataclass(frozen=True, slots=True)
class Models:
    """Everything about a fleet and its surroundings that is not the trace, the rule or the load.

    None is the profile's own value. Times are seconds, shares run from 0 to 1.
    """

    kv_late_s: float = parameter(
        0.002, "KV events reach the router so long after the step that made them", 0.0, 0.2, metavar="S"
    )
    kv_lost_share: float = parameter(0.0, "share of KV event batches that are lost on their way", 0.01, metavar="SHARE")
    kv_replay: bool = parameter(
        True,
        "lost batches are replayed once the gap is seen; else they stay lost, and the view of that worker is not exact",
        False,
        beside={"kv_lost_share": 0.01},
    )
    scrape_s: float = parameter(
        1.0,
        "workers' load gauges are read so often, and are up to so old; one router alone books everything itself",
        0.5,
        2.0,
        metavar="S",
        beside={"replicas": 2},
    )
    booking_s: float = parameter(
        0.0,
        "what a router has booked itself counts in its decisions so much later; 0: at once, as its ledger has it",
        0.1,
        1.0,
        metavar="S",
    )
    tokenise_s: float = parameter(
        0.004, "from a request's arrival to its decision: rendering, tokenising, hashing", 0.0, 0.008, metavar="S"
    )
    network_s: float = parameter(0.0005, "one way, client to router or router to worker", 0.00025, 0.001, metavar="S")
    chunk_tokens: int | None = parameter(
        None, "tokens per engine step, prefill chunks included (max_num_batched_tokens)", 0.5, 2.0
    )
    max_num_seqs: int | None = parameter(None, "requests that run at a time on one worker", 0.5, 2.0)
    kv_tokens: int | None = parameter(None, "tokens that each worker's KV cache holds", 0.5, 2.0)
    block_tokens: int | None = parameter(None, "tokens per KV block; default: the trace's own")
    speed_spread: float = parameter(
        0.1,
        "a seed draws each worker's speed: the profile's times 1 plus or minus up to this",
        0.0,
        0.2,
        metavar="SHARE",
    )
    async_scheduling: bool = parameter(
        True, "each step is scheduled while the one before it runs, vLLM's default", False
    )
    jitter: float = parameter(0.05, "each step's time varies by up to this share", 0.0, 0.1, metavar="SHARE")
    warm_up_s: float = parameter(
        240.0,
        "what is sent in the first so many seconds of the window (the trace's time) warms caches and estimates and is"
        " not measured; 0: cold start, all measured",
        0.0,
        480.0,
        metavar="S",
    )
    replicas: int = parameter(1, "routers in front of the fleet, each with an index and estimates of its own", 2)
    replica_delay_s: float = parameter(
        0.1,
        "what one replica has booked is seen by the others so much later",
        0.01,
        1.0,
        metavar="S",
        beside={"replicas": 2},
    )
    usage_share: float = parameter(
        1.0,
        "share of the answers that tell their usage: streams do if asked to, by their client or by the router",
        0.0,
        0.1,
        metavar="FRACTION",
        beside={"kv_lost_share": 0.01, "kv_replay": False},
    )
    timeout_s: float = parameter(
        300.0, "clients leave when their answer is not complete after so long; counted as missed", 150.0, metavar="S"
    )

    def variants(self, profile_values: dict[str, int]) -> Iterator[tuple[str, Models]]:
        """Each parameter changed, with those that it needs beside it: what was changed, and the models then.

        Where None stands for the profile's value, its `others` are factors of it, taken from `profile_values`.
        """
        for one in fields(self):
            now = getattr(self, one.name)
            for other in one.metadata["others"]:
                if one.name in profile_values:
                    other = round((now or profile_values[one.name]) * other)
                if other != now:
                    changed = {one.name: other, **self._beside(one)}
                    said = [_set(field_, changed[field_.name]) for field_ in fields(self) if field_.name in changed]
                    yield " ".join(said), replace(self, **changed)

    def _beside(self, one: Field[Any]) -> dict[str, object]:
        """What has to change with it, of what still is at its default."""
        defaults = {field_.name: default(field_) for field_ in fields(self)}
        needed: Mapping[str, object] = one.metadata["beside"]
        return {name: value for name, value in needed.items() if getattr(self, name) == defaults[name]}


def _set(one: Field[Any], value: Any) -> str:
    """How a command line would say it."""
    if isinstance(value, bool):
        return flag(one) if value else flag(one).replace("--", "--no-", 1)
    return f"{flag(one)} {value:g}" if isinstance(value, float) else f"{flag(one)} {value}"


def flag(one: Field[Any]) -> str:
    """The flag that sets a parameter."""
    return "--" + one.name.replace("_", "-")


def default(one: Field[Any]) -> Any:
    """The default of a parameter."""
    assert one.default is not MISSING
    return one.default
