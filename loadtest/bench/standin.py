"""A stand-in worker for cost measurements: vLLM's HTTP with ready-made answers, as cheap as Python can be.

It computes nothing. Streams get one frame per `interval_s`, each in a write of its own, as from vLLM. The writes are
spread over the interval, so that a thousand streams do not send at once. With ``--kv-events`` it keeps a prefix cache
of the prompts and publishes vLLM's KV events (`blocks`). Run as ``python -m loadtest.bench.standin --port P``. With
several ports it is a worker at each of them, with a prefix cache of its own, and one control of all their streams.

Under ``/standin/`` a bench controls the streams: ``hold`` keeps new ones at their first frame, ``go`` lets them run,
``finish`` ends every one properly, ``sent`` says how many tokens have been written.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from functools import partial
from typing import cast

import httptools
import uvloop

from loadtest.bench import frames
from loadtest.bench.asked import Asked, Prompts
from loadtest.bench.blocks import Blocks, Generated

CONTROL = b"/standin/"
BLOCK_MASK = 15
"""A token whose number has these bits clear fills a block: every 16th token."""
PHASES = 20


class Ticker:
    """Calls each stream once per interval, in one of `PHASES` groups. It does not run while there is no stream."""

    def __init__(self, interval_s: float) -> None:
        self._groups: list[dict[Worker, None]] = [{} for _ in range(PHASES)]
        self._place: dict[Worker, int] = {}
        self._turn = 0
        self._interval_s = interval_s
        self._step_s = interval_s / PHASES
        self._loop = asyncio.get_running_loop()
        self._due_s = 0.0
        self._ticking = False
        self._held = False
        self.sent = 0
        """Number of tokens sent on streams that have ended."""

    def order(self, word: str) -> None:
        """Carry out ``hold``, ``go`` or ``finish``; any other word does nothing."""
        if word in ("hold", "go"):
            self._held = word == "hold"
            self._start()
        elif word == "finish":
            for stream in tuple(self._place):
                stream.finish()

    def add(self, stream: Worker) -> None:
        """Call `stream` from the next interval on."""
        self._place[stream] = place = len(self._place) % PHASES
        self._groups[place][stream] = None
        self._start()

    def remove(self, stream: Worker, sent: int) -> None:
        """Remove `stream`, which has written `sent` tokens."""
        place = self._place.pop(stream, None)
        if place is not None:
            del self._groups[place][stream]
            self.sent += sent

    def _start(self) -> None:
        if not self._ticking and self._place and not self._held:
            self._ticking = True
            self._due_s = self._loop.time()
            self._loop.call_soon(self._tick)

    def _tick(self) -> None:
        if self._held or not self._place:
            self._ticking = False
            return
        for stream in tuple(self._groups[self._turn]):
            stream.token()
        self._turn = (self._turn + 1) % PHASES
        # On a machine that is too slow, streams run slower. Without this limit, late frames would add up and then be
        # sent in a burst, which no worker does.
        self._due_s = max(self._due_s + self._step_s, self._loop.time() - self._interval_s)
        self._loop.call_at(self._due_s, self._tick)


class Worker(asyncio.Protocol):
    """One connection, and the stream on it."""

    def __init__(self, ticker: Ticker, prompts: Prompts) -> None:
        self._ticker = ticker
        self._prompts = prompts
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._body: list[bytes] = []
        self._left = 0
        self._sent = 0
        self._generated: Generated | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._end()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            # A router may first try another protocol.
            assert self._transport is not None
            self._transport.close()

    def on_message_begin(self) -> None:
        self._url = b""
        self._body.clear()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        assert self._transport is not None
        if self._parser.get_method() == b"GET":
            self._transport.write(self._page())
            return
        asked = self._prompts.read(self._url, b"".join(self._body))
        self._transport.write(asked.answer)
        if asked.stream:
            self._begin(asked)

    def _page(self) -> bytes:
        if not self._url.startswith(CONTROL):
            return self._prompts.page(self._url)
        self._ticker.order(self._url.removeprefix(CONTROL).decode())
        return frames.json_response(b'{"sent":%d}' % self._ticker.sent)

    def _begin(self, asked: Asked) -> None:
        self._left, self._sent = asked.max_tokens, 0
        self._generated = Generated(asked.chain) if asked.chain is not None else None
        self._ticker.add(self)

    def token(self) -> None:
        """Send the next frame."""
        if self._transport is None:
            return
        if not self._left:
            self.finish()
            return
        self._left -= 1
        self._sent += 1
        self._transport.write(frames.TOKENS[self._sent % frames.DIFFERENT_TOKENS])
        if self._generated is not None and not self._sent & BLOCK_MASK:
            self._generated.block()

    def finish(self) -> None:
        self._end()
        if self._transport is not None:
            self._transport.write(frames.LAST)

    def _end(self) -> None:
        self._ticker.remove(self, self._sent)
        self._sent = 0
        if self._generated is not None:
            self._generated.release()
            self._generated = None


async def serve(ports: Sequence[int], interval_s: float, kv_events: bool) -> None:
    """Serve until cancelled, the first port last."""
    loop = asyncio.get_running_loop()
    ticker = Ticker(interval_s)
    for port in reversed(ports):
        make = partial(Worker, ticker, Prompts(Blocks() if kv_events else None))
        await loop.create_server(make, "127.0.0.1", port, backlog=4096)
    await loop.create_future()


def main() -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, nargs="+", required=True, help="one worker per port")
    parser.add_argument("--interval-s", type=float, default=0.02, help="time between two tokens of a stream")
    parser.add_argument("--kv-events", action="store_true", help="publish KV events, and report the true cached tokens")
    args = parser.parse_args()
    uvloop.run(serve(args.port, args.interval_s, args.kv_events))


if __name__ == "__main__":
    main()
