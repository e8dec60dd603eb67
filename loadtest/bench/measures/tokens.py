"""CPU time per streamed token, over the tokens that arrived at the clients.

All streams are begun first and then released together, so that the window contains no start or end of a stream. On a
machine that is too slow for 50 tokens/s per stream they run slower, which the rate shows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from loadtest.bench.bodies import stream_requests
from loadtest.bench.measures.subject import Measure, Sample, Setting, Subject
from loadtest.bench.streams import StreamClient, Streams
from loadtest.fleet.cpu import tree_cpu_s

PROMPT_CHARS = 2000
TOKENS_PER_S = 50
SETTLE_S = 0.5
"""Pause between the release of the streams and the window."""
KEEPS_UP = 0.9
"""A proxy that delivers less than this share of the tokens is considered at its limit."""
MAX_DRAIN_S = 15.0
"""A measure is skipped if the proxy would take longer to deliver the tokens queued at the end of the window."""


def tokens_of(count: int, figure: str) -> Measure:
    """Return the measure with `count` streams at a time."""

    async def measure(subject: Subject, setting: Setting) -> Mapping[str, Sample]:
        passes = subject.tokens_per_s
        if passes is not None and _drain_s(passes, count, setting.window_s) > MAX_DRAIN_S:
            return {figure: Sample(0.0, 0, 0.0, 0, skipped=f"not measured: passes {passes:,.0f} tokens/s at most")}
        sample = await _streamed(subject, setting, count)
        # The proxy is at its limit. Measures with more streams are skipped if they would take too long to drain.
        if sample.rate < KEEPS_UP * count * TOKENS_PER_S:
            subject.tokens_per_s = max(1.0, sample.rate)
        return {figure: sample}

    return measure


def _drain_s(passes: float, count: int, window_s: float) -> float:
    """Return the seconds that a proxy of `passes` tokens per second needs for the tokens queued in the window."""
    return (count * TOKENS_PER_S - passes) * (SETTLE_S + window_s) / passes


async def _streamed(subject: Subject, setting: Setting, count: int) -> Sample:
    streams = Streams(subject.url, subject.standin_url, StreamClient)
    await streams.connect(count)
    await streams.begin(stream_requests(subject.url, PROMPT_CHARS, subject.lines))
    await asyncio.sleep(SETTLE_S)
    tokens, cpu_s, from_s = streams.tally.tokens, tree_cpu_s(subject.pid), time.perf_counter()
    await asyncio.sleep(setting.window_s)
    passed, spent_s = streams.tally.tokens - tokens, tree_cpu_s(subject.pid) - cpu_s
    took_s = time.perf_counter() - from_s
    if early := streams.tally.ended:
        streams.tally.fail(f"{early} streams ended by themselves")
    await streams.finish()
    errors, reasons = streams.tally.errors, tuple(streams.tally.reasons)
    if not passed:
        return Sample(0.0, 0, 0.0, max(1, errors), (*reasons, "no token within the window"))
    return Sample(spent_s / passed * 1e6, passed, passed / took_s, errors, reasons)
