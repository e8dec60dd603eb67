"""Everything that decides what is sent, and when: one value, which every process of a run receives."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Any

import msgspec

from loadtest.load.arrivals import Rates


class Dataset(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset by the names that `vllm bench serve` has for it; lengths are in tokens."""

    name: str = "random"
    path: Path | None = None
    tokenizer: Path | None = None
    input_len: int = 1024
    output_len: int | None = None
    range_ratio: float = 0.0
    prefix_len: int | None = None
    num_prefixes: int = 10
    multi_turn: bool = False
    shuffle: bool = True


class TrafficClass(msgspec.Struct, frozen=True):
    """A class of traffic: its weight among all sessions, and the headers of its requests."""

    name: str
    weight: float
    headers: Mapping[str, str] = {}


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """One run. The schedule is one of: `rates`, the dataset's own times (`timed`), `users`, or a closed loop.

    A closed loop has `max_concurrency` requests at a time; an open one has at most that many, and what comes beyond
    waits, with its latency counted. `seed` draws times and texts.
    """

    url: str
    model: str
    dataset: Dataset
    chat: bool = False
    endpoint: str = "/v1/completions"
    headers: Mapping[str, str] = {}
    session_header: str | None = None
    classes: tuple[TrafficClass, ...] = ()
    extra_body: Mapping[str, Any] = {}
    ignore_eos: bool = False
    seed: int = 0
    num_prompts: int | None = 1000
    duration_s: float | None = None
    rates: Rates | None = None
    timed: bool = False
    burstiness: float = 1.0
    max_concurrency: int | None = None
    users: int | None = None
    think_s: float = 0.0
    limit_s: float = 600.0
    processes: int = 1

    @property
    def length_s(self) -> float:
        return inf if self.duration_s is None else self.duration_s

    @property
    def is_closed(self) -> bool:
        """Whether a request waits for the answer before it, so that a slow endpoint gets less load."""
        return self.users is not None or (self.rates is None and not self.timed and self.max_concurrency is not None)
