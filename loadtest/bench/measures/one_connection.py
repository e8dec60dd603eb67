"""Added time to the first body byte at one connection: paired differences between the proxy and its stand-in.

One client sends the same request through the proxy and to the stand-in in turn, and begins with either in turn. The
added percentile is the proxy's minus the stand-in's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from loadtest.bench.bodies import plain_requests
from loadtest.bench.caller import Caller, Tally, connect
from loadtest.bench.loops import send_each_once
from loadtest.bench.measures.subject import Sample, Setting, Subject
from loadtest.report.summary import percentile

P50, P99 = "one connection p50", "one connection p99"
PROMPT_CHARS = 2000


class _Client:
    """One connection, and the times of its answers."""

    def __init__(self, url: str, lines: str) -> None:
        self.tally = Tally()
        self._requests = plain_requests(url, PROMPT_CHARS, lines)
        self._url = url
        self._caller: Caller | None = None
        self._answered = asyncio.Event()

    async def ask(self, number: int) -> None:
        """Send one request and wait for its answer."""
        if self._caller is None or not self._caller.open:
            self._caller = await connect(self._url, self.tally, lambda caller: self._answered.set())
        self._answered.clear()
        self._caller.send(self._requests[number % len(self._requests)])
        await self._answered.wait()

    def close(self) -> None:
        if self._caller is not None:
            self._caller.close()


async def one_connection(subject: Subject, setting: Setting) -> Mapping[str, Sample]:
    """Measure the added milliseconds, median and 99th percentile."""
    warm = await send_each_once(subject.url, plain_requests(subject.url, PROMPT_CHARS, subject.lines), 1)
    through, direct = _Client(subject.url, subject.lines), _Client(subject.standin_url, subject.lines)
    end_s, number = time.monotonic() + setting.window_s, 0
    while time.monotonic() < end_s:
        for client in (through, direct) if number % 2 else (direct, through):
            await client.ask(number)
        number += 1
    through.close()
    direct.close()
    errors = warm.errors + through.tally.errors + direct.tally.errors
    reasons = (*warm.reasons, *through.tally.reasons, *direct.tally.reasons)

    def added(share: float) -> Sample:
        slower_s = percentile(through.tally.first_byte_s, share) - percentile(direct.tally.first_byte_s, share)
        return Sample(slower_s * 1e3, number, number / setting.window_s, errors, reasons)

    return {P50: added(0.5), P99: added(0.99)}
