"""The requests that are sent, ready made."""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec

from loadtest.bench.frames import MODEL

VARIANTS = 64
"""Different questions behind the same system prompt; after the first time each one's whole prefix is cached."""
PATH = "/v1/chat/completions"
ENDLESS = 10_000_000
"""Tokens of a stream that ends only when the bench asks the stand-in to end it."""
_LINE = "Answer in one short paragraph and name the function you speak about. "


def chat_body(stream: bool, max_tokens: int, system_chars: int, tail: str) -> bytes:
    """A chat request whose prompt is a shared system text of `system_chars` characters and a short question."""
    system = (_LINE * (system_chars // len(_LINE) + 1))[:system_chars]
    messages = [{"role": "system", "content": system}, {"role": "user", "content": f"Question {tail}"}]
    return msgspec.json.encode({"model": MODEL, "messages": messages, "stream": stream, "max_tokens": max_tokens})


def post(url: str, body: bytes) -> bytes:
    """A whole request to the base URL `url`."""
    head = f"POST {PATH} HTTP/1.1\r\nhost: {urlsplit(url).netloc}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def plain_requests(url: str, system_chars: int) -> list[bytes]:
    """Return requests for answers that are not streamed."""
    return [post(url, chat_body(False, 16, system_chars, f"number {index}")) for index in range(VARIANTS)]


def stream_requests(url: str, system_chars: int) -> list[bytes]:
    """Return requests for streams that run until the stand-in is asked to end them."""
    return [post(url, chat_body(True, ENDLESS, system_chars, f"number {index}")) for index in range(VARIANTS)]


def address(url: str) -> tuple[str, int]:
    """Host and port of a base URL."""
    parts = urlsplit(url)
    return parts.hostname or "127.0.0.1", parts.port or 80
