"""The measures by name, and the figures they give."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from loadtest.bench.measures import events, limits, memory, picker, requests, texts
from loadtest.bench.measures.sample import Measure
from loadtest.bench.measures.tokens import tokens_of

STREAMS = {f"tokens-{count}": count for count in (64, 200, 512, 2_000)}


@dataclass(frozen=True, slots=True)
class Figure:
    """One column of the results.

    With `relative` the figures of two proxies are shown as a ratio. Differences near zero have no meaningful ratio.
    """

    title: str
    unit: str
    relative: bool = True
    digits: int = 1


FIGURES: Mapping[str, Figure] = {
    "request-2k": Figure("CPU per request, 2 kB body", "us"),
    "rate": Figure("requests/s in a closed loop", "1/s", digits=0),
    "request-200k": Figure("CPU per request, 200 kB body", "us"),
    "next-turn": Figure("CPU per request, next turn of a known conversation of 20,000 tokens", "us"),
    texts.FIGURE: Figure("CPU per request, 2 kB body, prompts known by text", "us"),
    **{name: Figure(f"CPU per streamed token, {count:,} streams", "us") for name, count in STREAMS.items()},
    requests.CPU: Figure("CPU per request, a third of its capacity", "us"),
    requests.P50: Figure("added time to first body byte, p50", "ms", relative=False, digits=2),
    requests.P99: Figure("added time to first body byte, p99", "ms", relative=False, digits=2),
    memory.IDLE: Figure("memory per idle connection", "KiB", relative=False),
    memory.STREAM: Figure("memory per active stream", "KiB", relative=False),
    limits.P50: Figure("added time to first body byte at one connection, p50", "ms", relative=False, digits=3),
    limits.P99: Figure("added time to first body byte at one connection, p99", "ms", relative=False, digits=3),
    limits.RATE: Figure(
        f"requests/s with a p99 of {limits.TAIL_S * 1e3:.0f} ms to the first body byte", "1/s", digits=0
    ),
    limits.STREAMS: Figure(f"streams at a time without a gap of {limits.STALL_S} s", "streams", digits=0),
    memory.BEFORE: Figure("memory before the first request", "MiB", relative=False),
    memory.UNDER_LOAD: Figure("memory under load", "MiB", relative=False),
    memory.AFTER: Figure("memory after the load", "MiB", relative=False),
    events.WITHOUT: Figure("time to first body byte, two processes without KV events, p99", "ms", digits=2),
    **{
        name: Figure(f"the same beside {rate:,} blocks/s of KV events, as a multiple", "x", relative=False, digits=2)
        for name, rate in events.RATES.items()
    },
    **{name: Figure(name, "1/s", digits=0) for name in picker.RATES},
    **{name: Figure(name, "us") for name in picker.CPU},
    **{name: Figure(name, "ms", relative=False) for name in picker.TAILS},
    events.CPU: Figure(f"CPU time of {events.CPU_RATE:,} blocks/s of KV events in {events.CPU_S:g} s", "s", digits=2),
}


@dataclass(frozen=True, slots=True)
class Kind:
    """One part of the measure `group`, and the figures it gives."""

    group: str
    name: str
    figures: tuple[str, ...]
    measure: Measure


KINDS = (
    # First, while the proxy is fresh: a process does not give back memory that it has used.
    Kind("memory", "connections", (memory.IDLE, memory.STREAM), memory.connections),
    Kind("overhead", "footprint", (memory.BEFORE, memory.UNDER_LOAD, memory.AFTER), memory.footprint),
    Kind("requests", "request-2k", ("request-2k", "rate"), requests.small_requests),
    Kind("requests", "request-200k", ("request-200k",), requests.requests_of(200_000, "request-200k")),
    Kind("requests", "next-turn", ("next-turn",), requests.next_turn),
    Kind("texts", "texts", (texts.FIGURE,), texts.by_text),
    *(Kind("tokens", name, (name,), tokens_of(count, name)) for name, count in STREAMS.items()),
    Kind("first-byte", "first-byte", (requests.P50, requests.P99, requests.CPU), requests.first_byte),
    Kind("overhead", "one-connection", (limits.P50, limits.P99), limits.one_connection),
    Kind("overhead", "bounded-rate", (limits.RATE,), limits.bounded_rate),
    Kind("overhead", "stalls", (limits.STREAMS,), limits.stalls),
    Kind("picker", "picker", (*picker.RATES, *picker.CPU, *picker.TAILS), picker.picks),
    Kind("events", "events", (events.WITHOUT, *events.RATES, events.CPU), events.events),
)
NAMES = ("requests", "tokens", "first-byte", "memory", "events", "overhead", "picker", "texts")
"""The measures."""


def chosen(names: Collection[str]) -> list[Kind]:
    """Return the measures and parts with these names, in the order in which they are taken."""
    return [kind for kind in KINDS if kind.name in names or kind.group in names]
