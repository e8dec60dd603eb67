"""CPU time per streamed token, over the tokens that were counted coming through.

All streams are begun first, then let run: neither their starts nor their ends are in the window. Where the machine is
too slow for 50 tokens/s on each, they run slower: the rate says so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from loadtest.bench.bodies import stream_requests
from loadtest.bench.measures.subject import Measure, Sample, Setting, Subject
from loadtest.bench.streams import Streams
from loadtest.peers.cpu import tree_cpu_s

PROMPT_CHARS = 2000
SETTLE_S = 0.5
"""After the streams were let run, before the window."""


def tokens_of(count: int, figure: str) -> Measure:
    """`count` streams at a time."""

    async def measure(subject: Subject, setting: Setting) -> Mapping[str, Sample]:
        streams = Streams(subject.url, subject.standin_url)
        await streams.connect(count)
        await streams.begin(stream_requests(subject.url, PROMPT_CHARS))
        await asyncio.sleep(SETTLE_S)
        tokens, cpu_s, from_s = streams.tally.tokens, tree_cpu_s(subject.pid), time.perf_counter()
        await asyncio.sleep(setting.window_s)
        passed, spent_s = streams.tally.tokens - tokens, tree_cpu_s(subject.pid) - cpu_s
        took_s = time.perf_counter() - from_s
        await streams.finish()
        errors, reasons = streams.tally.errors, tuple(streams.tally.reasons)
        if not passed:
            return {figure: Sample(0.0, 0, 0.0, max(1, errors), reasons or ("no token within the window",))}
        return {figure: Sample(spent_s / passed * 1e6, passed, passed / took_s, errors, reasons)}

    return measure
