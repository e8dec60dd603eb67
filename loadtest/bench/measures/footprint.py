"""Resident memory of a proxy's process tree: before its first request, under load, and after the load."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping

from loadtest.bench.bodies import plain_requests
from loadtest.bench.loops import ClosedLoop
from loadtest.bench.measures.memory import rss_kib
from loadtest.bench.measures.subject import Sample, Setting, Subject

BEFORE, UNDER_LOAD, AFTER = "memory before", "memory under load", "memory after"
PROMPT_CHARS = 2000
RECOVERY_S = 1.0


async def footprint(subject: Subject, setting: Setting) -> Mapping[str, Sample]:
    """Measure MiB. Take this measure first, while the proxy is fresh."""
    if subject.url == subject.standin_url:
        return dict.fromkeys((BEFORE, UNDER_LOAD, AFTER), Sample(0.0, 0, 0.0, 0, skipped="no proxy"))
    before = rss_kib(subject.pid)
    loop = ClosedLoop(subject.url, itertools.cycle(plain_requests(subject.url, PROMPT_CHARS, subject.lines)))
    await loop.start(setting.connections)
    await asyncio.sleep(setting.window_s)
    under_load = rss_kib(subject.pid)
    await loop.stop()
    await asyncio.sleep(RECOVERY_S)
    after, tally = rss_kib(subject.pid), loop.tally

    def sample(kib: float) -> Sample:
        return Sample(kib / 1024, tally.good, tally.good / setting.window_s, tally.errors, tuple(tally.reasons))

    return {BEFORE: sample(before), UNDER_LOAD: sample(under_load), AFTER: sample(after)}
