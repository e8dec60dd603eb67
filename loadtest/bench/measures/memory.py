"""Resident memory of a proxy's process tree, per idle client connection and per active stream, and as a whole.

The proxy has just started, because a process does not give back memory that it has used. Each connection first carries
one request and is then idle; later it carries a stream. A stream's figure includes its connection.
"""

from __future__ import annotations

import asyncio
import itertools

import psutil

from loadtest.bench.caller import ClosedLoop, Tally, ask, send_each_once
from loadtest.bench.measures.sample import Sample, Samples, Setting
from loadtest.bench.proxies.entrant import Proxy
from loadtest.bench.streams import Streams
from loadtest.load.http import Client

IDLE, STREAM = "idle connection", "active stream"
BEFORE, UNDER_LOAD, AFTER = "memory before", "memory under load", "memory after"
SETTLE_S = 0.3
RECOVERY_S = 1.0


async def connections(proxy: Proxy, setting: Setting) -> Samples:
    """Measure KiB per idle connection and per active stream."""
    count, requests = setting.memory_connections, proxy.requests()
    warm, tally = await send_each_once(proxy.url, requests, 8), Tally()
    streams = Streams(proxy.url, proxy.standin_url)
    before_kib = rss_kib(proxy.pid)
    idle = [Client(proxy.url) for _ in range(count)]
    for one, request in zip(idle, itertools.cycle(requests), strict=False):
        await ask(one, request, tally)
    await asyncio.sleep(SETTLE_S)
    idle_kib = rss_kib(proxy.pid)
    for one in idle:
        one.close()
    await streams.begin(count, proxy.stream_requests())
    await asyncio.sleep(SETTLE_S)
    streaming_kib = rss_kib(proxy.pid)
    await streams.finish()
    kib = {IDLE: idle_kib, STREAM: streaming_kib}
    return {name: Sample.of((used - before_kib) / count, 0.0, warm, tally, streams.tally) for name, used in kib.items()}


async def footprint(proxy: Proxy, setting: Setting) -> Samples:
    """Measure MiB before the first request, under load, and after the load."""
    if proxy.url == proxy.standin_url:
        return dict.fromkeys((BEFORE, UNDER_LOAD, AFTER), Sample(skipped="no proxy"))
    before_kib = rss_kib(proxy.pid)
    loop = ClosedLoop(proxy.url, itertools.cycle(proxy.requests()), setting.connections)
    await asyncio.sleep(setting.window_s)
    kib = {BEFORE: before_kib, UNDER_LOAD: rss_kib(proxy.pid)}
    await loop.stop()
    await asyncio.sleep(RECOVERY_S)
    kib[AFTER] = rss_kib(proxy.pid)
    rate = loop.tally.good / setting.window_s
    return {name: Sample.of(used / 1024, rate, loop.tally) for name, used in kib.items()}


def rss_kib(pid: int) -> float:
    """Return the resident KiB of a process and its living children."""
    root = psutil.Process(pid)
    return sum(process.memory_info().rss for process in (root, *root.children(recursive=True))) / 1024
