"""What a proxy adds at one connection, and the load at which it gives way.

The stand-in and the clients share the machine with the proxy: the row without a proxy is their own limit.
"""

from __future__ import annotations

import asyncio
import time

from loadtest.bench.caller import Tally, ask, send_each_once
from loadtest.bench.measures.requests import added_ms, capacity, poisson
from loadtest.bench.measures.sample import Sample, Samples, Setting
from loadtest.bench.proxies.entrant import Proxy
from loadtest.bench.streams import Streams
from loadtest.load.http import Client
from loadtest.report.summary import percentile

P50, P99 = "one connection p50", "one connection p99"
RATE = "bounded rate"
TAIL_S = 0.05
"""The bound of the 99th percentile."""
STEPS = (0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
STREAMS = "streams without a stall"
STALL_S = 0.2
"""Ten times the interval between two tokens."""
LEAST, MOST = 16, 2048
SETTLE_S = 0.3


async def one_connection(proxy: Proxy, setting: Setting) -> Samples:
    """Measure the milliseconds that the proxy adds to the first body byte at one connection.

    One client sends the same request through the proxy and to the stand-in in turn, and begins with either in turn. The
    added percentile is the proxy's minus the stand-in's.
    """
    requests = proxy.requests()
    warm = await send_each_once(proxy.url, requests, 1)
    through, direct = Tally(), Tally()
    clients = [(Client(proxy.url), through), (Client(proxy.standin_url), direct)]
    end_s, number = time.monotonic() + setting.window_s, 0
    while time.monotonic() < end_s:
        for client, tally in clients if number % 2 else reversed(clients):
            await ask(client, requests[number % len(requests)], tally)
        number += 1
    for client, _ in clients:
        client.close()
    added = {P50: added_ms(through, direct, 0.5), P99: added_ms(through, direct, 0.99)}
    return {name: Sample.of(added[name], 0.0, warm, through, direct) for name in added}


async def bounded_rate(proxy: Proxy, setting: Setting) -> Samples:
    """Measure the highest requests per second at which the first body byte's 99th percentile is within a bound.

    Poisson arrivals in steps of shares of the proxy's own closed-loop rate. The first step beyond the bound ends the
    measure, and so does a request that fails. 0 if the first step is beyond the bound.
    """
    most, held = await capacity(proxy, setting), 0.0
    for share in STEPS:
        tally = await poisson(proxy, proxy.url, most * share, setting)
        if tally.errors:
            return {RATE: Sample.of(0.0, held, tally)}
        if percentile(tally.first_byte_s, 0.99) > TAIL_S:
            break
        held = tally.good / setting.window_s
    return {RATE: Sample(held, held)}


async def stalls(proxy: Proxy, setting: Setting) -> Samples:
    """Measure the number of streams at a time until the first stall; 0 if the first one stalls.

    The streams bring 50 tokens/s each. Their number doubles until the gap between two reads of any stream exceeds
    `STALL_S`, or until `MOST`.
    """
    held, count = 0, LEAST
    while count <= MOST:
        streams = Streams(proxy.url, proxy.standin_url)
        await streams.begin(count, proxy.stream_requests())
        await asyncio.sleep(SETTLE_S)
        for stream in streams.streams:
            stream.watch()
        await asyncio.sleep(setting.window_s)
        longest_s = max((stream.longest_gap_s() for stream in streams.streams), default=0.0)
        await streams.finish()
        if streams.tally.errors:
            return {STREAMS: Sample.of(0.0, 0.0, streams.tally)}
        if longest_s > STALL_S:
            break
        held, count = count, count * 2
    return {STREAMS: Sample(float(held))}
