"""Added time to the first body byte at a third of the proxy's own capacity.

Open loop, Poisson arrivals of the 2 kB request, at a third of the rate that the proxy reached in the closed loop of
the same round. The stand-in is then asked directly at the same rate and times, and its percentile taken off.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from loadtest.bench.bodies import plain_requests
from loadtest.bench.caller import Tally
from loadtest.bench.loops import OpenLoop, send_each_once
from loadtest.bench.measures.requests import closed_loop
from loadtest.bench.measures.subject import Sample, Setting, Subject
from loadtest.report.summary import percentile

P50, P99 = "first byte p50", "first byte p99"
PROMPT_CHARS = 2000
SHARE = 1 / 3
_READY_CONNECTIONS = 16


async def first_byte(subject: Subject, setting: Setting) -> Mapping[str, Sample]:
    """Milliseconds added, median and 99th percentile."""
    if subject.capacity is None:
        requests = plain_requests(subject.url, PROMPT_CHARS)
        probe = await closed_loop(subject, requests, setting.connections, setting.window_s / 2)
        subject.capacity = probe.rate
    rate = max(1.0, subject.capacity * SHARE)
    through = await _asked(subject.url, rate, setting, subject.seed)
    direct = await _asked(subject.standin_url, rate, setting, subject.seed)
    errors, reasons = through.errors + direct.errors, (*through.reasons, *direct.reasons)
    return {
        figure: Sample(_added_ms(through, direct, share), len(through.first_byte_s), rate, errors, reasons)
        for figure, share in ((P50, 0.5), (P99, 0.99))
    }


async def _asked(url: str, rate: float, setting: Setting, seed: int) -> Tally:
    requests = plain_requests(url, PROMPT_CHARS)
    await send_each_once(url, requests, 8)
    loop = OpenLoop(url, itertools.cycle(requests))
    await loop.run(rate, setting.window_s, _READY_CONNECTIONS, seed)
    if not loop.tally.first_byte_s:
        loop.tally.fail("no answer within the window")
    return loop.tally


def _added_ms(through: Tally, direct: Tally, share: float) -> float:
    return (percentile(through.first_byte_s, share) - percentile(direct.first_byte_s, share)) * 1e3
