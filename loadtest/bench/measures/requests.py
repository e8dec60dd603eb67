"""CPU time per request and the request rate in a closed loop, and what is added at a third of this rate.

Closed loop: each client sends its next request after the answer to its last one. Clients, stand-in and proxy share the
machine, so the load generator limits the rate of a cheap proxy.

Open loop: Poisson arrivals of the 2 kB request, at a third of the proxy's rate in the closed loop of the same round.
Then the stand-in directly gets requests at the same rate and times. The added time is the proxy's percentile minus the
stand-in's.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator, Sequence

from loadtest.bench.bodies import chats, next_turns
from loadtest.bench.caller import ClosedLoop, Tally, open_loop, send_each_once
from loadtest.bench.measures.sample import Measure, Sample, Samples, Setting
from loadtest.bench.proxies.entrant import Proxy
from loadtest.fleet.cpu import tree_cpu_s
from loadtest.report.summary import percentile

WARM_SHARE = 0.2
"""Length of the warm-up as a share of the window."""
KNOWN_TURNS = 32
"""Turns of the long conversation before the warm-up."""
P50, P99, CPU = "first byte p50", "first byte p99", "request at a third"


def requests_of(system_chars: int, figure: str) -> Measure:
    """Return the measure with bodies of about `system_chars` bytes."""

    async def measure(proxy: Proxy, setting: Setting) -> Samples:
        return {figure: await closed_loop(proxy, setting, proxy.requests(system_chars))}

    return measure


async def small_requests(proxy: Proxy, setting: Setting) -> Samples:
    """Measure requests of 2 kB, and how many the proxy passes."""
    sample = await closed_loop(proxy, setting, proxy.requests())
    proxy.capacity = sample.rate
    return {"request-2k": sample, "rate": Sample(sample.rate, sample.rate, sample.errors, sample.reasons)}


async def next_turn(proxy: Proxy, setting: Setting) -> Samples:
    """Measure new questions in a long conversation that is known."""
    requests = next_turns(proxy.url, proxy.headers)
    known = list(itertools.islice(requests, KNOWN_TURNS))
    return {"next-turn": await closed_loop(proxy, setting, known, requests)}


async def closed_loop(
    proxy: Proxy, setting: Setting, known: Sequence[bytes], requests: Iterator[bytes] | None = None
) -> Sample:
    """Measure CPU microseconds per request over the window.

    The stand-in knows the prompts of `known` when it begins, and `requests` are sent, without them `known` in turn.
    """
    first = await send_each_once(proxy.url, known, 8)
    loop = ClosedLoop(proxy.url, itertools.cycle(known) if requests is None else requests, setting.connections)
    await asyncio.sleep(setting.window_s * WARM_SHARE)
    before, cpu_s, from_s = loop.tally.good, tree_cpu_s(proxy.pid), time.perf_counter()
    await asyncio.sleep(setting.window_s)
    count, spent_s = loop.tally.good - before, tree_cpu_s(proxy.pid) - cpu_s
    took_s = time.perf_counter() - from_s
    await loop.stop()
    if not count:
        loop.tally.fail("no answer within the window")
    return Sample.of(spent_s / max(1, count) * 1e6, count / took_s, first, loop.tally)


async def capacity(proxy: Proxy, setting: Setting) -> float:
    """Return the proxy's requests per second in the closed loop; measure them if the round has not done so."""
    if proxy.capacity is None:
        proxy.capacity = (await closed_loop(proxy, setting, proxy.requests())).rate
    return max(1.0, proxy.capacity)


async def first_byte(proxy: Proxy, setting: Setting) -> Samples:
    """Measure the added milliseconds, median and 99th percentile, and CPU microseconds per request."""
    rate = await capacity(proxy, setting) / 3
    # The stand-in knows most of the prompts by now, but not if the proxy rewrites bodies.
    await send_each_once(proxy.standin_url, chats(proxy.standin_url, {}), 8)
    cpu_s = tree_cpu_s(proxy.pid)
    through = await poisson(proxy, proxy.url, rate, setting)
    spent_s = tree_cpu_s(proxy.pid) - cpu_s
    direct = await poisson(proxy, proxy.standin_url, rate, setting)
    return {
        P50: Sample.of(added_ms(through, direct, 0.5), rate, through, direct),
        P99: Sample.of(added_ms(through, direct, 0.99), rate, through, direct),
        CPU: Sample.of(spent_s / max(1, through.good) * 1e6, rate, through, direct),
    }


async def poisson(proxy: Proxy, url: str, rate: float, setting: Setting) -> Tally:
    """Send the proxy's requests to `url` in an open loop."""
    tally = await open_loop(url, itertools.cycle(proxy.requests()), rate, setting.window_s, proxy.seed)
    if not tally.first_byte_s:
        tally.fail("no answer within the window")
    return tally


def added_ms(through: Tally, direct: Tally, share: float) -> float:
    """Return a percentile of the first byte through the proxy minus that of the stand-in."""
    return (percentile(through.first_byte_s, share) - percentile(direct.first_byte_s, share)) * 1e3
