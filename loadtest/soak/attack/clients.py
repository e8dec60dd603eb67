"""Connections that send requests until a deadline, each in its own thread: one after the other, or without reading."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

from loadtest.soak.attack.shapes import Body

ANSWER_LIMIT_S = 60.0
_CHUNK = b"1\r\n%c\r\n"
_PIPELINED = 5_000
FLOODS: dict[str, bytes] = {
    "livez": b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n",
    "health": b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n",
    "version": b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n",
    "not_found": b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n",
    "unauthorized": b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
    "options": b"OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: x\r\nOrigin: http://x\r\n"
    b"Access-Control-Request-Method: POST\r\n\r\n",
}
"""One request of each kind that the gateway answers itself."""


@dataclass(slots=True)
class Sent:
    """Bytes sent and responses by status. ``closed`` in `statuses` counts connections that ended without a response."""

    bodies: int = 0
    body_bytes: int = 0
    statuses: Counter[str] = field(default_factory=Counter)


def head(body: Body, key: str | None, *, chunked: bool = False, close: bool = True) -> bytes:
    lines = [f"POST {body.path} HTTP/1.1", "Host: attacker", f"Content-Type: {body.content_type}"]
    lines.append("Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body.data)}")
    if key is not None:
        lines.append(f"Authorization: Bearer {key}")
    if close:
        lines.append("Connection: close")
    return "\r\n".join([*lines, "", ""]).encode()


def request(body: Body, key: str | None, *, chunked: bool = False) -> bytes:
    """Return a whole request. With `chunked` each byte of the body is one chunk."""
    data = b"".join(_CHUNK % byte for byte in body.data) + b"0\r\n\r\n" if chunked else body.data
    return head(body, key, chunked=chunked) + data


def post(address: str, data: bytes) -> str:
    """Send one request and read its answer; return the status, or ``closed``."""
    status = ""
    host, _, port = address.rpartition(":")
    with suppress(OSError), socket.create_connection((host, int(port)), ANSWER_LIMIT_S) as connection:
        with suppress(OSError):  # the gateway may refuse the request before its end; the answer can still be read
            connection.sendall(data)
        while piece := connection.recv(65_536):
            status = status or piece[9:12].decode("latin-1")
    return status or "closed"


def attack(address: str, requests: Callable[[int], bytes], connections: int, seconds: float, least: int = 1) -> Sent:
    """Send ``requests(0)``, ``requests(1)``, ... over `connections` for `seconds`, and at least `least` requests."""
    sent, lock, counter = Sent(), threading.Lock(), itertools.count()
    end_s = time.monotonic() + seconds

    def play() -> None:
        while True:
            number = next(counter)
            if number >= least and time.monotonic() >= end_s:
                return
            data = requests(number)
            status = post(address, data)
            with lock:
                sent.bodies += 1
                sent.body_bytes += len(data)
                sent.statuses[status] += 1

    threads = [threading.Thread(target=play, daemon=True) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sent


def flood(address: str, kind: str, connections: int, seconds: float) -> int:
    """Pipeline requests of one kind without reading, then close.

    Return the number of bytes that the gateway accepted.
    """
    data = FLOODS[kind] * _PIPELINED
    taken = [0] * connections
    end_s = time.monotonic() + seconds
    host, _, port = address.rpartition(":")

    def push(index: int, connection: socket.socket) -> None:
        rest = memoryview(data)
        while (left_s := end_s - time.monotonic()) > 0:
            connection.settimeout(left_s)
            try:
                sent = connection.send(rest)
            except OSError:
                return  # the gateway accepts no more, or has closed
            taken[index] += sent
            rest = rest[sent:] or memoryview(data)

    with ExitStack() as stack:
        threads = []
        for index in range(connections):
            connection = stack.enter_context(socket.create_connection((host, int(port)), 10))
            threads.append(threading.Thread(target=push, args=(index, connection), daemon=True))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        time.sleep(max(0.0, end_s - time.monotonic()))
    return sum(taken)
