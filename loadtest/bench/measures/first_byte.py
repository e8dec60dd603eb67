"""Added time to the first body byte, and CPU time per request, at a third of the proxy's own capacity.

Open loop: Poisson arrivals of the 2 kB request, at a third of the proxy's rate in the closed loop of the same round.
Then the stand-in directly gets requests at the same rate and times. The result is the proxy's percentile minus the
stand-in's.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from loadtest.bench.bodies import plain_requests
from loadtest.bench.caller import Tally
from loadtest.bench.loops import OpenLoop, send_each_once
from loadtest.bench.measures.requests import closed_loop
from loadtest.bench.measures.subject import Sample, Setting, Subject
from loadtest.fleet.cpu import tree_cpu_s
from loadtest.report.summary import percentile

P50, P99, CPU = "first byte p50", "first byte p99", "request at a third"
ADDED = (P50, P99)
"""The figures of the added time."""
PROMPT_CHARS = 2000
SHARE = 1 / 3
_READY_CONNECTIONS = 16


async def first_byte(subject: Subject, setting: Setting) -> Mapping[str, Sample]:
    """Measure the added milliseconds, median and 99th percentile, and CPU microseconds per request."""
    capacity = await find_capacity(subject, setting)
    # The stand-in knows most of the prompts by now, but not if the proxy rewrites bodies.
    await send_each_once(subject.standin_url, plain_requests(subject.standin_url, PROMPT_CHARS), 8)
    rate = max(1.0, capacity * SHARE)
    cpu_s = tree_cpu_s(subject.pid)
    through = await _asked(subject.url, rate, setting, subject)
    spent_s = tree_cpu_s(subject.pid) - cpu_s
    direct = await _asked(subject.standin_url, rate, setting, subject)
    errors, reasons = through.errors + direct.errors, (*through.reasons, *direct.reasons)

    def sample(value: float) -> Sample:
        return Sample(value, through.good, rate, errors, reasons)

    return {
        P50: sample(_added_ms(through, direct, 0.5)),
        P99: sample(_added_ms(through, direct, 0.99)),
        CPU: sample(spent_s / max(1, through.good) * 1e6),
    }


async def find_capacity(subject: Subject, setting: Setting) -> float:
    """Return the proxy's requests per second in the closed loop; measure them if the round has not done so."""
    if subject.capacity is None:
        requests = plain_requests(subject.url, PROMPT_CHARS, subject.lines)
        probe = await closed_loop(subject, requests, setting.connections, setting.window_s / 2)
        subject.capacity = probe.rate
    return subject.capacity


async def _asked(url: str, rate: float, setting: Setting, subject: Subject) -> Tally:
    requests = plain_requests(url, PROMPT_CHARS, subject.lines)
    loop = OpenLoop(url, itertools.cycle(requests))
    await loop.run(rate, setting.window_s, _READY_CONNECTIONS, subject.seed)
    if not loop.tally.first_byte_s:
        loop.tally.fail("no answer within the window")
    return loop.tally


def _added_ms(through: Tally, direct: Tally, share: float) -> float:
    return (percentile(through.first_byte_s, share) - percentile(direct.first_byte_s, share)) * 1e3
