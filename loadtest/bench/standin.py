"""A stand-in worker for cost measurements: vLLM's HTTP with ready-made answers, as cheap as Python can be.

It computes nothing and publishes no KV events. Streams get one frame per `interval_s`, spread over the interval so
that a thousand streams do not tick at once. Run as ``python -m loadtest.bench.standin --port P``.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any, cast

import httptools
import msgspec
import uvloop

PHASES = 20
MODEL = "stand-in"

_JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
_STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _frame(delta: dict[str, str], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    body = {
        "id": "chatcmpl-bench",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": MODEL,
        "choices": [choice],
    }
    return _chunk(b"data: " + msgspec.json.encode(body) + b"\n\n")


FIRST = _STREAM + _frame({"role": "assistant", "content": ""})
TOKEN = _frame({"content": " token"})
LAST = _frame({}, "length") + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
ANSWER = msgspec.json.encode(
    {
        "id": "chatcmpl-bench",
        "object": "chat.completion",
        "created": 1,
        "model": MODEL,
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": " token" * 16}, "finish_reason": "length"}
        ],
        "usage": {
            "prompt_tokens": 600,
            "completion_tokens": 16,
            "total_tokens": 616,
            "prompt_tokens_details": {"cached_tokens": 592},
        },
    }
)
CONFIG_LABELS = 'block_size="16",num_gpu_blocks="27500",enable_prefix_caching="True",engine="0"'
METRICS = f"""vllm:num_requests_running{{engine="0",model_name="{MODEL}"}} 0
vllm:num_requests_waiting{{engine="0",model_name="{MODEL}"}} 0
vllm:kv_cache_usage_perc{{engine="0",model_name="{MODEL}"}} 0
vllm:cache_config_info{{{CONFIG_LABELS}}} 1
""".encode()
PAGES = {
    b"/v1/models": msgspec.json.encode({"object": "list", "data": [{"id": MODEL, "object": "model", "root": MODEL}]}),
    b"/health": b"{}",
    b"/version": b'{"version":"0.33.0"}',
    b"/kv_event_sources": b"{}",
    b"/metrics": METRICS,
}


class _Wanted(msgspec.Struct):
    stream: bool = False
    max_tokens: int = 16


class Ticker:
    """Calls each stream once per interval, in one of `PHASES` groups."""

    def __init__(self, interval_s: float) -> None:
        self._groups: list[set[Worker]] = [set() for _ in range(PHASES)]
        self._turn = 0
        self._step_s = interval_s / PHASES
        self._loop = asyncio.get_running_loop()
        self._due_s = self._loop.time()
        self._tick()

    def add(self, stream: Worker) -> None:
        min(self._groups, key=len).add(stream)

    def remove(self, stream: Worker) -> None:
        for group in self._groups:
            group.discard(stream)

    def _tick(self) -> None:
        for stream in tuple(self._groups[self._turn]):
            stream.token()
        self._turn = (self._turn + 1) % PHASES
        self._due_s += self._step_s
        self._loop.call_at(self._due_s, self._tick)


class Worker(asyncio.Protocol):
    """One connection."""

    def __init__(self, ticker: Ticker) -> None:
        self._ticker = ticker
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._body = b""
        self._left = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._ticker.remove(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._url, self._body = b"", b""

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        assert self._transport is not None
        page = PAGES.get(self._url)
        if page is not None:
            self._transport.write(_JSON % (len(page), page))
            return
        wanted = msgspec.json.decode(self._body, type=_Wanted)
        if not wanted.stream:
            self._transport.write(_JSON % (len(ANSWER), ANSWER))
            return
        self._left = wanted.max_tokens
        self._transport.write(FIRST)
        self._ticker.add(self)

    def token(self) -> None:
        """Send the next frame."""
        if self._transport is None:
            return
        if self._left:
            self._left -= 1
            self._transport.write(TOKEN)
        else:
            self._ticker.remove(self)
            self._transport.write(LAST)


async def serve(port: int, interval_s: float) -> None:
    """Serve on loopback until cancelled; prints the port once bound."""
    loop = asyncio.get_running_loop()
    ticker = Ticker(interval_s)
    server = await loop.create_server(lambda: Worker(ticker), "127.0.0.1", port, backlog=4096)
    print(f"listening on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


def main(arguments: list[str] | None = None) -> Any:
    """Command line of the stand-in."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--interval-s", type=float, default=0.02, help="time between two tokens of a stream")
    args = parser.parse_args(arguments)
    uvloop.run(serve(args.port, args.interval_s))


if __name__ == "__main__":
    main()
