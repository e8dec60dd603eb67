"""The models beside the engine's step times: one parameter per flag, with its default and values to vary it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from typing import Any


def parameter(
    default: object, help_: str, *others: object, metavar: str = "N", beside: Mapping[str, object] | None = None
) -> Any:
    """Declare a model's parameter; `others` are the further values of a sensitivity run.

    Without the parameters in `beside` this one has no effect. A sensitivity run sets each of them to the value given
    there, unless the user has set it.
    """
    return field(
        default=default, metadata={"help": help_, "others": others, "metavar": metavar, "beside": beside or {}}
    )


@dataclass(frozen=True, slots=True)
class Models:
    """Everything about a fleet and its surroundings except the trace, the rule and the load.

    None means the profile's own value. Times are in seconds, shares run from 0 to 1.
    """

    kv_late_s: float = parameter(0.002, "delay of KV events between their step and the router", 0.0, 0.2, metavar="S")
    kv_lost_share: float = parameter(0.0, "share of KV event batches that are lost on their way", 0.01, metavar="SHARE")
    kv_replay: bool = parameter(
        True,
        "replay lost batches once the gap is seen; otherwise they stay lost, and the view of that worker is not exact",
        False,
        beside={"kv_lost_share": 0.01},
    )
    scrape_s: float = parameter(
        1.0,
        "interval between reads of workers' load gauges; one router alone knows all load without them",
        0.5,
        2.0,
        metavar="S",
        beside={"replicas": 2},
    )
    reservation_delay_s: float = parameter(
        0.0,
        "delay until a router's own reservations count in its decisions; 0: at once, as in its ledger",
        0.1,
        1.0,
        metavar="S",
    )
    tokenise_s: float = parameter(
        0.004, "time from a request's arrival to its decision: rendering, tokenising, hashing", 0.0, 0.008, metavar="S"
    )
    network_s: float = parameter(
        0.0005, "time of one way, from client to router or from router to worker", 0.00025, 0.001, metavar="S"
    )
    chunk_tokens: int | None = parameter(
        None, "tokens per engine step, with prefill chunks (max_num_batched_tokens)", 0.5, 2.0
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
        True, "schedule each step while the step before it runs, as vLLM does by default", False
    )
    jitter: float = parameter(0.05, "each step's time varies by up to this share", 0.0, 0.1, metavar="SHARE")
    warm_up_s: float = parameter(
        240.0,
        "calls of the first S seconds of the window (the trace's time) warm caches and estimates and are not"
        " measured; 0: cold start, all measured",
        0.0,
        480.0,
        metavar="S",
    )
    replicas: int = parameter(1, "routers in front of the fleet, each with an index and estimates of its own", 2)
    replica_delay_s: float = parameter(
        0.1,
        "delay until the other replicas see a replica's reservations",
        0.01,
        1.0,
        metavar="S",
        beside={"replicas": 2},
    )
    usage_share: float = parameter(
        1.0,
        "share of answers that report usage: streams do if their client or the router requests it",
        0.0,
        0.1,
        metavar="FRACTION",
        beside={"kv_lost_share": 0.01, "kv_replay": False},
    )
    timeout_s: float = parameter(
        300.0,
        "time after which clients leave an incomplete answer; these calls miss the SLO",
        150.0,
        metavar="S",
    )

    def variants(self, profile_values: dict[str, int]) -> Iterator[tuple[str, Models]]:
        """Yield the models with each parameter changed, and the flags that say so.

        A parameter in `profile_values` takes the profile's value where it is None, and its `others` are factors.
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
        """Return the parameters that must change with `one` and still have their defaults."""
        defaults = {field_.name: default(field_) for field_ in fields(self)}
        needed: Mapping[str, object] = one.metadata["beside"]
        return {name: value for name, value in needed.items() if getattr(self, name) == defaults[name]}


def _set(one: Field[Any], value: Any) -> str:
    if isinstance(value, bool):
        return flag(one) if value else flag(one).replace("--", "--no-", 1)
    return f"{flag(one)} {value:g}" if isinstance(value, float) else f"{flag(one)} {value}"


def flag(one: Field[Any]) -> str:
    return "--" + one.name.replace("_", "-")


def default(one: Field[Any]) -> Any:
    assert one.default is not MISSING
    return one.default
