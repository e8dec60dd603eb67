"""CPU time per streamed token, over the tokens that arrived at the clients.

All streams are begun first and then released together, so that the window contains no start or end of a stream. On a
machine that is too slow for 50 tokens/s per stream they run slower, which the rate shows.
"""

from __future__ import annotations

import asyncio
import time

from loadtest.bench.measures.sample import Measure, Sample, Samples, Setting
from loadtest.bench.proxies.entrant import Proxy
from loadtest.bench.streams import Streams
from loadtest.fleet.cpu import tree_cpu_s

TOKENS_PER_S = 50
SETTLE_S = 0.5
"""Pause between the release of the streams and the window."""
KEEPS_UP = 0.9
"""A proxy that delivers less than this share of the tokens is considered at its limit."""
MAX_DRAIN_S = 15.0
"""A measure is skipped if the proxy would take longer to deliver the tokens queued at the end of the window."""


def tokens_of(count: int, figure: str) -> Measure:
    """Return the measure with `count` streams at a time."""

    async def measure(proxy: Proxy, setting: Setting) -> Samples:
        passes = proxy.tokens_per_s
        if passes is not None and _drain_s(passes, count, setting.window_s) > MAX_DRAIN_S:
            return {figure: Sample(skipped=f"not measured: passes {passes:,.0f} tokens/s at most")}
        sample = await _streamed(proxy, setting, count)
        if sample.rate < KEEPS_UP * count * TOKENS_PER_S:
            proxy.tokens_per_s = max(1.0, sample.rate)
        return {figure: sample}

    return measure


def _drain_s(passes: float, count: int, window_s: float) -> float:
    """Return the seconds that a proxy of `passes` tokens per second needs for the tokens queued in the window."""
    return (count * TOKENS_PER_S - passes) * (SETTLE_S + window_s) / passes


async def _streamed(proxy: Proxy, setting: Setting, count: int) -> Sample:
    streams = Streams(proxy.url, proxy.standin_url)
    await streams.begin(count, proxy.stream_requests())
    await asyncio.sleep(SETTLE_S)
    tokens, cpu_s, from_s = streams.tally.tokens, tree_cpu_s(proxy.pid), time.perf_counter()
    await asyncio.sleep(setting.window_s)
    passed, spent_s = streams.tally.tokens - tokens, tree_cpu_s(proxy.pid) - cpu_s
    took_s = time.perf_counter() - from_s
    if early := streams.tally.ended:
        streams.tally.fail(f"{early} streams ended by themselves")
    await streams.finish()
    if not passed:
        streams.tally.fail("no token within the window")
    return Sample.of(spent_s / max(1, passed) * 1e6, passed / took_s, streams.tally)
