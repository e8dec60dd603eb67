"""Requests as bytes, and a client that reads responses by their framing."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from router.security.keys import KeyEntry, digest_of
from tests.support.waiting import WAIT_S

PLAIN = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
"""The body of a chat request without a stream."""


def post(
    path: bytes = b"/v1/chat/completions",
    body: bytes = b'{"model":"m","messages":[],"stream":true}',
    extra: bytes = b"",
    version: bytes = b"1.1",
) -> bytes:
    """Return a POST; `extra` is further header lines, each with its end."""
    return b"POST %s HTTP/%s\r\nHost: gw\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n%s" % (
        path,
        version,
        extra,
        len(body),
        body,
    )


def bearer(key: str) -> bytes:
    """Return the header line of an API key."""
    return f"Authorization: Bearer {key}\r\n".encode()


def key_line(name: str, key: str) -> str:
    """Return the line of an API key in the settings."""
    return KeyEntry(name, digest_of(key.encode())).line


def get(path: bytes = b"/health", extra: bytes = b"", method: bytes = b"GET") -> bytes:
    """Return a request without a body; `extra` is further header lines, each with its end."""
    return b"%s %s HTTP/1.1\r\nHost: gw\r\n%s\r\n" % (method, path, extra)


@dataclass
class Reply:
    """One response. `raw` has the body's framing in it, `interim` the heads of 100 Continue before it."""

    status: int
    head: bytes
    body: bytes
    raw: bytes
    interim: list[bytes]

    def header(self, name: bytes) -> bytes | None:
        for line in self.head[:-4].split(b"\r\n")[1:]:
            key, _, value = line.partition(b":")
            if key.lower() == name:
                return value.strip()
        return None

    @property
    def code(self) -> Any:
        return msgspec.json.decode(self.body)["error"]["code"]


class Client:
    """Write bytes, read responses by their framing. `read` raises IncompleteReadError on truncation."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.reply: Reply | None = None
        """The last response as far as it has been read."""

    async def ask(self, raw: bytes, bodiless: bool = False, on_head: Callable[[], object] | None = None) -> Reply:
        """Send a request and read its response; `bodiless` is for answers to HEAD.

        `on_head` is called as soon as the response's head has arrived.
        """
        self.writer.write(raw)
        return await self.read(bodiless, on_head)

    async def read(self, bodiless: bool = False, on_head: Callable[[], object] | None = None) -> Reply:
        return await asyncio.wait_for(self._read(bodiless, on_head), WAIT_S)

    async def drip(self, raw: bytes, gap_s: float) -> None:
        """Write one byte every `gap_s`, until the gateway closes the connection."""
        for index in range(len(raw)):
            if self.writer.is_closing():
                break
            self.writer.write(raw[index : index + 1])
            await asyncio.sleep(gap_s)

    async def _read(self, bodiless: bool, on_head: Callable[[], object] | None) -> Reply:
        interim = []
        while True:
            head = await self.reader.readuntil(b"\r\n\r\n")
            status = int(head.split(b" ")[1])
            if status != 100:
                break
            interim.append(head)
        reply = self.reply = Reply(status, head, b"", head, interim)
        if on_head is not None:
            on_head()
        coding, length = reply.header(b"transfer-encoding"), reply.header(b"content-length")
        if bodiless or status in (101, 204, 304):
            return reply
        if coding:
            await self._chunks(reply)
        elif length is not None:
            reply.body = await self.reader.readexactly(int(length))
            reply.raw += reply.body
        else:
            reply.body = await self.reader.read(-1)
            reply.raw += reply.body
        return reply

    async def _chunks(self, reply: Reply) -> None:
        while True:
            line = await self.reader.readuntil(b"\r\n")
            size = int(line.split(b";")[0], 16)
            if not size:
                while line != b"\r\n":
                    reply.raw += line
                    line = await self.reader.readuntil(b"\r\n")
                reply.raw += line
                return
            piece = await self.reader.readexactly(size + 2)
            assert piece.endswith(b"\r\n")
            reply.raw += line + piece
            reply.body += piece[:-2]

    async def closed(self) -> bytes:
        with suppress(ConnectionError):
            return await asyncio.wait_for(self.reader.read(-1), WAIT_S)
        return b""

    def leave(self) -> None:
        self.writer.transport.abort()
