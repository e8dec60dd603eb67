"""Endless requests on connections whose answers nobody reads."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import ExitStack

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
