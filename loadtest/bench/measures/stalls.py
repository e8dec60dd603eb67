"""The number of streams at a time until the first stall.

The streams bring 50 tokens/s each. Their number doubles until the gap between two reads of any stream exceeds
`STALL_S`, or until `MOST`. The stand-in and the clients share the machine: the row without a proxy is their own limit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from loadtest.bench.bodies import stream_requests
from loadtest.bench.measures.subject import Sample, Setting, Subject
from loadtest.bench.streams import StreamClient, Streams, StreamTally

STREAMS = "streams without a stall"
STALL_S = 0.2
"""Ten times the interval between two tokens."""
LEAST, MOST = 16, 2048
PROMPT_CHARS = 2000
SETTLE_S = 0.3


class _GapClient(StreamClient):
    """A stream that notes its longest gap between two reads while `watched` is set."""

    watched = False
    longest_s = 0.0
    _last_s = 0.0

    def __init__(self, tally: StreamTally) -> None:
        super().__init__(tally)
        self.watch(False)

    def watch(self, watched: bool) -> None:
        """Begin or end to note gaps."""
        self.watched, self._last_s = watched, time.perf_counter()

    def seen(self) -> float:
        """Return the longest gap so far, the one that lasts still included."""
        return max(self.longest_s, time.perf_counter() - self._last_s)

    def data_received(self, data: bytes) -> None:
        if self.watched:
            now_s = time.perf_counter()
            self.longest_s, self._last_s = max(self.longest_s, now_s - self._last_s), now_s
        super().data_received(data)


async def stalls(subject: Subject, setting: Setting) -> Mapping[str, Sample]:
    """Measure the last number of streams without a stall; 0 if the first one stalls."""
    held, count = 0, LEAST
    while count <= MOST:
        streams = Streams(subject.url, subject.standin_url, _GapClient)
        longest_s = await _longest_gap_s(subject, setting, streams, count)
        if streams.tally.errors:
            return {STREAMS: Sample(0.0, held, 0.0, streams.tally.errors, tuple(streams.tally.reasons))}
        if longest_s > STALL_S:
            break
        held, count = count, count * 2
    return {STREAMS: Sample(float(held), held, 0.0, 0)}


async def _longest_gap_s(subject: Subject, setting: Setting, streams: Streams[_GapClient], count: int) -> float:
    clients = await streams.connect(count)
    await streams.begin(stream_requests(subject.url, PROMPT_CHARS, subject.lines))
    await asyncio.sleep(SETTLE_S)
    for client in clients:
        client.watch(True)
    await asyncio.sleep(setting.window_s)
    longest_s = max(client.seen() for client in clients)
    for client in clients:
        client.watch(False)
    await streams.finish()
    return longest_s
