"""Clients that request answers without streaming. They use little CPU, because they share the machine with the proxy.

Each answer is read to its end and checked: status 200, framed as announced, and the stand-in's whole text.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from loadtest.bench.bodies import address
from loadtest.bench.frames import TEXT

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_CLOSE = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)
_END_OF_CHUNKS = b"0\r\n\r\n"
_TEXT = TEXT.encode()


@dataclass(slots=True)
class Tally:
    """Results of the requests.

    `reasons` has some of the failures' reasons; `first_byte_s` counts from sending the request to the first body byte.
    """

    good: int = 0
    errors: int = 0
    reasons: list[str] = field(default_factory=list)
    first_byte_s: list[float] = field(default_factory=list)

    def fail(self, reason: str) -> None:
        """Count one failed request and keep its reason."""
        self.errors += 1
        if len(self.reasons) < 5:
            self.reasons.append(reason)


class Caller(asyncio.Protocol):
    """One keep-alive connection, which carries one request at a time.

    `on_free` is called after each request, answered or failed.
    """

    def __init__(self, tally: Tally, on_free: Callable[[Caller], None]) -> None:
        self._tally = tally
        self._on_free = on_free
        self._transport: asyncio.Transport | None = None
        self._busy = False
        self._sent_s = 0.0
        self._head = b""
        self._parts: list[bytes] = []
        self._missing = 0

    @property
    def open(self) -> bool:
        """Whether the connection can carry another request."""
        return self._transport is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def send(self, request: bytes) -> None:
        """Send a whole request. The previous one must have ended."""
        assert self._transport is not None
        self._busy = True
        self._sent_s = time.perf_counter()
        self._transport.write(request)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._busy:
            self._tally.fail(f"connection lost before the answer's end ({exc or 'closed'})")
            self._free()

    def data_received(self, data: bytes) -> None:
        if not self._busy:
            return
        if not self._head:
            self._begin(data)
        else:
            self._more(data)

    def _begin(self, data: bytes) -> None:
        if self._parts:
            data = b"".join(self._parts) + data
            self._parts.clear()
        end = data.find(b"\r\n\r\n")
        if end < 0:
            self._parts.append(data)
            return
        self._head, body = data[: end + 2], data[end + 4 :]
        length = _LENGTH.search(self._head)
        # -1: the body ends with the last chunk, or with the connection
        self._missing = int(length[1]) if length else -1
        if body or not self._missing:
            self._more(body)

    def _more(self, data: bytes) -> None:
        if not self._parts:
            self._tally.first_byte_s.append(time.perf_counter() - self._sent_s)
        self._parts.append(data)
        if self._missing >= 0:
            self._missing -= len(data)
            if self._missing <= 0:
                self._answered()
        elif _CHUNKED.search(self._head) and b"".join(self._parts[-2:]).endswith(_END_OF_CHUNKS):
            self._answered()

    def _answered(self) -> None:
        body, head = b"".join(self._parts), self._head
        if head[9:12] != b"200":
            self._tally.fail(f"{head[:40].decode('latin-1').splitlines()[0]}: {body[:200].decode('utf-8', 'replace')}")
        elif _TEXT not in body:
            self._tally.fail(f"the answer's text is not whole: {body[:200].decode('utf-8', 'replace')}")
        else:
            self._tally.good += 1
        if _CLOSE.search(head):
            self.close()
            self._transport = None
        self._free()

    def _free(self) -> None:
        self._busy = False
        self._head = b""
        self._parts = []
        self._on_free(self)


async def connect(url: str, tally: Tally, on_free: Callable[[Caller], None]) -> Caller:
    """Open a connection to the base URL `url`."""
    loop = asyncio.get_running_loop()
    _, caller = await loop.create_connection(lambda: Caller(tally, on_free), *address(url))
    return caller
