"""Leases and modelled transfers of the clock workers' KV connector. No bytes of KV cache move.

The `SideChannel` of a worker that keeps blocks answers the workers that read them over TCP, one JSON object a line. A
reader's `BlockLoad` runs in a thread, as NIXL's transfers run beside the engine.
"""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

import msgspec

from backends.foreign_json import json_decoder

RENEWALS = 6
"""Renewals within a lease, as in vLLM."""
_CONNECT_S = 5.0
_LINE_BYTES = 4_096


class BlockCall(msgspec.Struct, frozen=True):
    """A call of a reader: it waits for blocks or reads them, or has `done` with them."""

    engine_id: str
    request_id: str
    done: bool = False


class BlockAnswer(msgspec.Struct, frozen=True):
    """`known`: the call means this process. `held`: the blocks are still those of the request."""

    known: bool
    held: bool


_CALL = json_decoder(BlockCall)
_ANSWER = json_decoder(BlockAnswer)


class Leases:
    """Ended requests whose blocks wait for a reader. Any thread may call it."""

    def __init__(self, engine_id: str, lease_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine_id = engine_id
        self._lease_s = lease_s
        self._clock = clock
        self._lock = threading.Lock()
        self._ends_s: dict[str, float] = {}
        self._done: set[str] = set()
        self._late = 0

    def begin(self, request_id: str) -> None:
        with self._lock:
            self._ends_s[request_id] = self._clock() + self._lease_s

    def answer(self, call: BlockCall) -> BlockAnswer:
        if call.engine_id != self._engine_id:
            return BlockAnswer(known=False, held=False)
        with self._lock:
            if call.request_id not in self._ends_s:
                self._late += call.done
                return BlockAnswer(known=True, held=False)
            if call.done:
                del self._ends_s[call.request_id]
                self._done.add(call.request_id)
            else:
                self._ends_s[call.request_id] = self._clock() + self._lease_s
            return BlockAnswer(known=True, held=True)

    def take_ended(self) -> tuple[set[str], int, int]:
        """Return the requests whose blocks are free since the last call, how many of them expired unread, and how many
        reads ended after their lease."""
        with self._lock:
            now_s = self._clock()
            expired = {request_id for request_id, end_s in self._ends_s.items() if end_s <= now_s}
            for request_id in expired:
                del self._ends_s[request_id]
            ended, self._done = self._done | expired, set()
            late, self._late = self._late, 0
            return ended, len(expired), late


class SideChannel:
    def __init__(self, host: str, leases: Leases) -> None:
        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                with suppress(OSError, msgspec.MsgspecError):
                    while line := self.rfile.readline(_LINE_BYTES):
                        self.wfile.write(msgspec.json.encode(leases.answer(_CALL.decode(line))) + b"\n")

        class Server(socketserver.ThreadingTCPServer):
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
            daemon_threads = True

        self._server = Server((host, 0), Handler)
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, name="kv side channel", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@dataclass(frozen=True, slots=True)
class BlockSource:
    """Where blocks are: the side channel's address, the engine and its request."""

    host: str
    port: int
    engine_id: str
    request_id: str

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> Self | None:
        """Read a request's ``kv_transfer_params``; None if they are incomplete."""
        names = ("remote_host", "remote_port", "remote_engine_id", "remote_request_id", "remote_block_ids", "tp_size")
        if any(params.get(name) is None for name in names):
            return None
        host, port, engine_id, request_id, _, _ = (params[name] for name in names)
        if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65_536:
            return None
        return cls(str(host), port, str(engine_id), str(request_id))


class LoadFailed(Exception):
    """The blocks are on no running worker."""


class BlockLoad:
    """One prompt's blocks on their way. The lease is renewed from the start, and the transfer begins with `begin`."""

    def __init__(self, source: BlockSource, lease_s: float) -> None:
        self._source = source
        self._pause_s = lease_s / RENEWALS
        self._changed = threading.Condition()
        self._transfer_s: float | None = None
        self._left = False
        self.ended = self.failed = False
        """`failed` is valid once it has `ended`."""
        self.took_s = 0.0
        self._thread = threading.Thread(target=self._run, name="kv load", daemon=True)
        self._thread.start()

    def begin(self, transfer_s: float) -> None:
        with self._changed:
            self._transfer_s = transfer_s
            self._changed.notify()

    def leave(self) -> None:
        """Give up: the request has ended. The prefill worker is notified."""
        with self._changed:
            self._left = True
            self._changed.notify()

    @property
    def begun(self) -> bool:
        return self._transfer_s is not None

    def _run(self) -> None:
        began_s = time.monotonic()
        try:
            with socket.create_connection((self._source.host, self._source.port), _CONNECT_S) as connection:
                connection.settimeout(None)  # as NIXL's transfers, which wait for a worker that stands still
                self._load(connection)
        except (OSError, LoadFailed, msgspec.MsgspecError):
            self.failed = True
        self.took_s = time.monotonic() - began_s
        self.ended = True

    def _load(self, connection: socket.socket) -> None:
        lines = connection.makefile("rb")
        self._ask(connection, lines)
        while not self.begun and not self._left:
            self._wait(self._pause_s, until_begun=True)
            self._ask(connection, lines)
        end_s = time.monotonic() + (self._transfer_s or 0.0)
        while not self._left and (left_s := end_s - time.monotonic()) > 0.0:
            self._wait(min(left_s, self._pause_s))
            self._ask(connection, lines)
        with suppress(OSError, LoadFailed):  # the blocks are here
            self._ask(connection, lines, done=True)

    def _wait(self, longest_s: float, *, until_begun: bool = False) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._left or (until_begun and self.begun), longest_s)

    def _ask(self, connection: socket.socket, lines: Any, *, done: bool = False) -> None:
        call = BlockCall(self._source.engine_id, self._source.request_id, done)
        connection.sendall(msgspec.json.encode(call) + b"\n")
        line = lines.readline(_LINE_BYTES)
        answer = _ANSWER.decode(line) if line else None
        if answer is None or not answer.known:
            raise LoadFailed
