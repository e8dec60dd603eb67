"""CPU time per request, and the request rate at the same time.

Closed loop: each client sends its next request after the answer to its last one. The setting has the number of clients.
Clients, stand-in and proxy share the machine, so the load generator limits the rate of a cheap proxy.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence

from loadtest.bench.bodies import next_turns, plain_requests
from loadtest.bench.loops import ClosedLoop, send_each_once
from loadtest.bench.measures.subject import Measure, Sample, Setting, Subject
from loadtest.fleet.cpu import tree_cpu_s

WARM_SHARE = 0.2
"""Length of the warm-up as a share of the window."""
KNOWN_TURNS = 32
"""Turns of the long conversation before the warm-up."""


def requests_of(system_chars: int, figure: str, rate_figure: str | None = None) -> Measure:
    """Return the measure with bodies of about `system_chars` bytes. With `rate_figure` the rate is a figure, too."""

    async def measure(subject: Subject, setting: Setting) -> Mapping[str, Sample]:
        requests = plain_requests(subject.url, system_chars, subject.lines)
        sample = await closed_loop(subject, requests, setting.connections, setting.window_s)
        if rate_figure is None:
            return {figure: sample}
        subject.capacity = sample.rate
        rate = Sample(sample.rate, sample.count, sample.rate, sample.errors, sample.reasons)
        return {figure: sample, rate_figure: rate}

    return measure


def next_turn_of(figure: str) -> Measure:
    """Return the measure of new questions in a long conversation that is known."""

    async def measure(subject: Subject, setting: Setting) -> Mapping[str, Sample]:
        requests = next_turns(subject.url, subject.lines)
        known = list(itertools.islice(requests, KNOWN_TURNS))
        return {figure: await _closed_loop(subject, known, requests, setting.connections, setting.window_s)}

    return measure


async def closed_loop(subject: Subject, requests: Sequence[bytes], connections: int, window_s: float) -> Sample:
    """Measure CPU microseconds per request over the window. The stand-in knows every prompt when it begins."""
    return await _closed_loop(subject, requests, itertools.cycle(requests), connections, window_s)


async def _closed_loop(
    subject: Subject, known: Sequence[bytes], requests: Iterator[bytes], connections: int, window_s: float
) -> Sample:
    """Send each of `known` once, then `requests` in the loop."""
    first = await send_each_once(subject.url, known, 8)
    loop = ClosedLoop(subject.url, requests)
    await loop.start(connections)
    await asyncio.sleep(window_s * WARM_SHARE)
    before, cpu_s, from_s = loop.tally.good, tree_cpu_s(subject.pid), time.perf_counter()
    await asyncio.sleep(window_s)
    count, spent_s = loop.tally.good - before, tree_cpu_s(subject.pid) - cpu_s
    took_s = time.perf_counter() - from_s
    await loop.stop()
    errors = first.errors + loop.tally.errors
    reasons = (*first.reasons, *loop.tally.reasons)
    if not count:
        return Sample(0.0, 0, 0.0, max(1, errors), reasons or ("no answer within the window",))
    return Sample(spent_s / count * 1e6, count, count / took_s, errors, reasons)
