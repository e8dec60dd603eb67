"""A worker that reads any body, keeps none of it, and answers at once like a fast engine, or attacks the gateway.

    python -m loadtest.soak.attack.sink --model big --root /path/of/a/tokenizer

It prints ``sink HOST:PORT``. `--endless PATH` makes that path send bytes for ever.
"""

from __future__ import annotations

import argparse
import asyncio
import json

import uvloop

CONTEXT_TOKENS = 131_072
_LARGEST_BYTES = CONTEXT_TOKENS * 16
"""Longer bodies are refused, as vLLM refuses prompts that cannot fit."""
_PIECE = b"1," * 32_768


def _page(body: bytes, status: str = "200 OK", content_type: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _pages(model: str, root: str) -> dict[bytes, bytes]:
    card = {"id": model, "object": "model", "root": root, "max_model_len": CONTEXT_TOKENS}
    labels = f'engine="0",model_name="{model}"'
    metrics = [f"vllm:num_requests_running{{{labels}}} 0", f"vllm:num_requests_waiting{{{labels}}} 0"]
    metrics.append(f"vllm:kv_cache_usage_perc{{{labels}}} 0")
    metrics.append('vllm:cache_config_info{block_size="16",num_gpu_blocks="27500",enable_prefix_caching="True"} 1')
    return {
        b"/health": _page(b""),
        b"/version": _page(b'{"version":"0.33.0"}'),
        b"/v1/models": _page(json.dumps({"object": "list", "data": [card]}).encode()),
        b"/metrics": _page("\n".join([*metrics, ""]).encode(), content_type="text/plain"),
        b"/kv_event_sources": _page(b"{}", "404 Not Found"),
    }


def _error(message: str) -> bytes:
    return _page(json.dumps({"error": {"message": message, "type": "x", "code": 400}}).encode(), "400 Bad Request")


_TOO_LONG = _error("The prompt is longer than the model's context length.")
_USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
_CHOICE = {"index": 0, "message": {"role": "assistant", "content": "a"}, "text": "a", "finish_reason": "length"}
_ANSWER = _page(json.dumps({"id": "a", "object": "x", "choices": [_CHOICE], "usage": _USAGE}).encode())


def _tokens(body_bytes: int) -> bytes:
    """Return the answer of /tokenize: one token for every four bytes."""
    count = max(1, body_bytes // 4)
    return _page(b'{"count":%d,"max_model_len":131072,"tokens":[%b1]}' % (count, b"1," * (count - 1)))


class Sink:
    """Serves the gateway's connections, each one request after the other."""

    def __init__(self, model: str, root: str, endless: str) -> None:
        self._pages = _pages(model, root)
        self._endless = endless.encode()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await self._answer(reader, writer)
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError):
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        path = head.split(b" ", 2)[1]
        size = await _discard(reader, head)
        if path == self._endless:
            await self._never_end(writer)
        writer.write(self._pages.get(path) or _reply(path, size))
        await writer.drain()

    async def _never_end(self, writer: asyncio.StreamWriter) -> None:
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n{"tokens":[')
        while True:
            writer.write(_PIECE)
            await writer.drain()


def _reply(path: bytes, size: int) -> bytes:
    if path == b"/tokenize":
        return _tokens(size)
    return _TOO_LONG if size > _LARGEST_BYTES else _ANSWER


async def _discard(reader: asyncio.StreamReader, head: bytes) -> int:
    lines = head.lower().split(b"\r\n")
    if b"transfer-encoding: chunked" in lines:
        return await _discard_chunks(reader)
    lengths = [line for line in lines if line.startswith(b"content-length:")]
    size = left = int(lengths[0].partition(b":")[2]) if lengths else 0
    while left:
        left -= len(await _some(reader, left))
    return size


async def _some(reader: asyncio.StreamReader, most: int) -> bytes:
    data = await reader.read(min(most, 1 << 20))
    if not data:
        raise EOFError
    return data


async def _discard_chunks(reader: asyncio.StreamReader) -> int:
    total = 0
    while size := int(await reader.readuntil(b"\r\n"), 16):
        total += size
        await reader.readexactly(size + 2)
    await reader.readuntil(b"\r\n")
    return total


async def _main(args: argparse.Namespace) -> None:
    sink = Sink(args.model, args.root or args.model, args.endless)
    server = await asyncio.start_server(sink.serve, "127.0.0.1", 0, limit=1 << 20)
    host, port = server.sockets[0].getsockname()[:2]
    print(f"sink {host}:{port}", flush=True)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtest.soak.attack.sink", description=__doc__)
    parser.add_argument("--model", required=True, help="name of the served model")
    parser.add_argument("--root", help="model folder that it reports (default: the model's name)")
    parser.add_argument("--endless", default="", metavar="PATH", help="path that sends bytes for ever")
    uvloop.run(_main(parser.parse_args()))


if __name__ == "__main__":
    main()
