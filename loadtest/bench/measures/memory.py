"""Resident memory per idle client connection and per active stream of a proxy that has just started.

Each connection first carries one request and is then idle; later it carries a stream. A stream's figure includes its
connection. The figures are sums over the proxy's process tree.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import psutil

from loadtest.bench.bodies import plain_requests, stream_requests
from loadtest.bench.caller import Caller, Tally, connect
from loadtest.bench.loops import send_each_once
from loadtest.bench.measures.subject import Sample, Setting, Subject
from loadtest.bench.streams import StreamClient, Streams

IDLE, STREAM = "idle connection", "active stream"
PROMPT_CHARS = 2000
SETTLE_S = 0.3
STREAM_S = 0.3


async def memory(subject: Subject, setting: Setting) -> Mapping[str, Sample]:
    """Measure KiB per idle connection and per active stream."""
    count = setting.memory_connections
    warm = await send_each_once(subject.url, plain_requests(subject.url, PROMPT_CHARS, subject.lines), 8)
    streams = Streams(subject.url, subject.standin_url, StreamClient)
    before = rss_kib(subject.pid)
    idle, tally = await _rest(subject, count)
    await asyncio.sleep(SETTLE_S)
    idle_kib = rss_kib(subject.pid)
    for caller in idle:
        caller.close()
    await streams.connect(count)
    await streams.begin(stream_requests(subject.url, PROMPT_CHARS, subject.lines))
    await asyncio.sleep(STREAM_S)
    streaming = rss_kib(subject.pid)
    await streams.finish()
    errors = warm.errors + tally.errors + streams.tally.errors
    reasons = (*warm.reasons, *tally.reasons, *streams.tally.reasons)
    return {
        IDLE: Sample((idle_kib - before) / count, count, 0.0, errors, reasons),
        STREAM: Sample((streaming - before) / count, count, 0.0, errors, reasons),
    }


async def _rest(subject: Subject, count: int) -> tuple[list[Caller], Tally]:
    """Open connections, send one request over each, and leave them idle."""
    tally = Tally()
    answered = asyncio.Semaphore(0)
    requests = plain_requests(subject.url, PROMPT_CHARS, subject.lines)
    callers: list[Caller] = []
    for place in range(count):
        callers.append(await connect(subject.url, tally, lambda caller: answered.release()))
        callers[-1].send(requests[place % len(requests)])
        await answered.acquire()
    return callers, tally


def rss_kib(pid: int) -> float:
    """Return the resident KiB of a process and its living children."""
    root = psutil.Process(pid)
    return sum(process.memory_info().rss for process in (root, *root.children(recursive=True))) / 1024
