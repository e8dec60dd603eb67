"""A relay between the workers' KV events and the gateway, which can lose batches."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import zmq

_POLL_MS = 50


@dataclass(slots=True)
class _Line:
    source: zmq.Socket[bytes]
    sink: zmq.Socket[bytes]
    endpoint: str
    to_drop: int = 0
    dropped: int = 0


class LossyRelays:
    """One relay per publisher, all in one thread, to keep the work off the load's event loop.

    A publisher may return at its address after a restart. `lose` drops batches. The publisher's replay socket, which
    has no relay, may still have them.
    """

    def __init__(self, sources: Sequence[str]) -> None:
        self._context = zmq.Context()
        self._lines = [self._line(source) for source in sources]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._pump, name="relays")
        self._thread.start()

    def _line(self, address: str) -> _Line:
        source = self._context.socket(zmq.SUB)
        source.setsockopt(zmq.RECONNECT_IVL, 50)
        source.connect(address)
        source.subscribe(b"")
        sink = self._context.socket(zmq.PUB)
        port = sink.bind_to_random_port("tcp://127.0.0.1")
        return _Line(source, sink, f"tcp://127.0.0.1:{port}")

    @property
    def endpoints(self) -> list[str]:
        """Addresses to which the gateway subscribes, in the order of the sources."""
        return [line.endpoint for line in self._lines]

    def lose(self, index: int, batches: int) -> None:
        self._lines[index].to_drop = batches

    def dropped(self, index: int) -> int:
        return self._lines[index].dropped

    def _pump(self) -> None:
        poller = zmq.Poller()
        for line in self._lines:
            poller.register(line.source, zmq.POLLIN)
        while not self._stop.is_set():
            ready = dict(poller.poll(_POLL_MS))
            for line in self._lines:
                if line.source in ready:
                    _pass_on(line)

    def close(self) -> None:
        if not self._stop.is_set():
            self._stop.set()
            self._thread.join()
            self._context.destroy(linger=0)


def _pass_on(line: _Line) -> None:
    while True:
        try:
            frames = line.source.recv_multipart(zmq.DONTWAIT)
        except zmq.Again:
            return
        if line.to_drop:
            line.to_drop -= 1
            line.dropped += 1
        else:
            line.sink.send_multipart(frames)
