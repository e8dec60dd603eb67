"""The highest rate of requests at which the 99th percentile of the time to the first body byte is within a bound.

Poisson arrivals of the 2 kB request, in steps of shares of the proxy's own closed-loop rate. The first step beyond the
bound ends the measure, and so does a request that fails.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from loadtest.bench.bodies import plain_requests
from loadtest.bench.loops import OpenLoop
from loadtest.bench.measures.requests import closed_loop
from loadtest.bench.measures.subject import Sample, Setting, Subject
from loadtest.report.summary import percentile

RATE = "bounded rate"
TAIL_S = 0.05
"""The bound."""
STEPS = (0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
PROMPT_CHARS = 2000
_READY_CONNECTIONS = 16


async def bounded_rate(subject: Subject, setting: Setting) -> Mapping[str, Sample]:
    """Measure requests per second; 0 if the first step is beyond the bound."""
    requests = plain_requests(subject.url, PROMPT_CHARS, subject.lines)
    most = await closed_loop(subject, requests, setting.connections, setting.window_s / 2)
    if not most.counts:
        return {RATE: most}
    held, count = 0.0, 0
    for share in STEPS:
        loop = OpenLoop(subject.url, itertools.cycle(requests))
        await loop.run(most.rate * share, setting.window_s, _READY_CONNECTIONS, subject.seed)
        tally = loop.tally
        if tally.errors:
            return {RATE: Sample(0.0, tally.good, held, tally.errors, tuple(tally.reasons))}
        if not tally.first_byte_s or percentile(tally.first_byte_s, 0.99) > TAIL_S:
            break
        held, count = tally.good / setting.window_s, tally.good
    return {RATE: Sample(held, count, held, 0)}
