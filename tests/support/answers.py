"""Responses of a worker, as bytes: JSON answers, streamed events, and the scripts that send them."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from tests.support.scripted_worker import Script

Answer = Callable[[Script], Awaitable[None]]

USAGE: dict[str, Any] = {
    "prompt_tokens": 40,
    "completion_tokens": 3,
    "prompt_tokens_details": {"cached_tokens": 32},
}
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ndate: today\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"X-Odd-Case: Kept \r\ntransfer-encoding: chunked\r\n\r\n"
)
DONE = b"data: [DONE]\n\n"
END = b"0\r\n\r\n"
"""The last chunk."""
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": {"content": text}}], "usage": None}).encode() + b"\n\n"


def usage_event() -> bytes:
    return b"data: " + json.dumps({"choices": [], "usage": USAGE}).encode() + b"\n\n"


def json_head(length: int, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, length)


async def silent(script: Script) -> None:
    """Answer nothing, and wait until the gateway closes the connection."""
    await script.gone()


async def die(script: Script) -> None:
    await script.die()


def after(go_on: asyncio.Event, answer: Answer | None = None) -> Answer:
    """Return a script that answers once `go_on` is set, in JSON if not with `answer`."""

    async def script(script: Script) -> None:
        await go_on.wait()
        await (answer or answer_json)(script)

    return script


def saying(*parts: bytes) -> Answer:
    """Return a script that writes `parts`, and waits until the gateway closes the connection."""

    async def script(script: Script) -> None:
        await script.say(*parts)
        await script.gone()

    return script


def says(*parts: bytes) -> Answer:
    """Return a script that writes `parts`."""

    async def script(script: Script) -> None:
        await script.say(*parts)

    return script


def dying(*parts: bytes) -> Answer:
    """Return a script that writes `parts`, and aborts the connection."""

    async def script(script: Script) -> None:
        await script.say(*parts)
        await script.die()

    return script


def stream_until(go_on: asyncio.Event) -> Answer:
    """Return a script of a stream that ends once `go_on` is set."""

    async def script(script: Script) -> None:
        await script.say(STREAM_HEAD, chunk(event("a")))
        await go_on.wait()
        await script.say(chunk(DONE), END)

    return script


def in_turn(*scripts: Answer, then: Answer | None = None) -> Answer:
    """Return a script that runs one of `scripts` for each request, in order, and `then` for the requests after them."""
    left = iter(scripts)

    async def script(script: Script) -> None:
        await next(left, then or answer_json)(script)

    return script


def once(first: Answer, then: Answer | None = None) -> list[Answer]:
    """Return two scripts: the first request on either gets `first`, all others `then`, or a stream."""
    return [in_turn(first, then=then or answer_stream)] * 2


async def answer_json(script: Script, status: bytes = b"200 OK", body: bytes | None = None) -> None:
    body = body if body is not None else json.dumps({"id": "x", "choices": [], "usage": USAGE}).encode()
    await script.say(json_head(len(body), status), body)


async def answer_stream(script: Script) -> None:
    """Answer with three events, the usage and the end, one write each."""
    await script.say(STREAM_HEAD)
    for text in ("a", "b", "c"):
        await script.say(chunk(event(text)))
    await script.say(chunk(usage_event()), chunk(DONE), END)
