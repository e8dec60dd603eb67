"""The gateway's rig, and a worker that records every byte it gets."""

from dataclasses import dataclass

import pytest

from tests.conformance.corpus import MAX_BODY_BYTES, MAX_HEADER_BYTES
from tests.router.gateway.conftest import pytest_asyncio_loop_factories, rig
from tests.support.scripted_worker import SocketWorker

__all__ = ["pytest_asyncio_loop_factories", "rig"]

ANSWER_BODY = b'{"id":"x","choices":[]}'
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(ANSWER_BODY)


@dataclass
class Received:
    lines: list[bytes]
    body: bytes

    @property
    def names(self):
        return [line.partition(b":")[0].lower() for line in self.lines[1:]]

    def values(self, name):
        return [line.partition(b":")[2].strip() for line in self.lines[1:] if line.lower().startswith(name + b":")]


def take(raw):
    """Return the first request of `raw` and the bytes after it, or None if it is incomplete.

    The only shape that the gateway may send is accepted: one Content-Length, no transfer coding.
    """
    head, end, rest = raw.partition(b"\r\n\r\n")
    if not end:
        return None
    received = Received(head.split(b"\r\n"), b"")
    assert received.values(b"transfer-encoding") == []
    lengths = received.values(b"content-length")
    assert len(lengths) <= 1
    length = int(lengths[0]) if lengths else 0
    if len(rest) < length:
        return None
    received.body = rest[:length]
    return received, rest[length:]


class RecordingWorker(SocketWorker):
    """Answers every complete request with the same JSON, and keeps all bytes by connection."""

    def __init__(self):
        super().__init__()
        self.received = []
        self.connections = []

    async def serve(self, reader, writer):
        pending = bytearray()
        self.connections.append(pending)
        while data := await reader.read(65_536):
            pending += data
            while (taken := take(bytes(pending))) is not None:
                self.received.append(taken[0])
                pending[:] = taken[1]
                head = taken[0].lines[0].startswith(b"HEAD ")
                writer.write(ANSWER if head else ANSWER + ANSWER_BODY)

    @property
    def left_over(self):
        return b"".join(self.connections)


@pytest.fixture
async def recording(rig):
    """`gate, worker`: a gateway with the limits of the corpus, and its one `RecordingWorker`."""
    worker = await RecordingWorker().start()
    limits = {"max_header_bytes": MAX_HEADER_BYTES, "max_body_bytes": MAX_BODY_BYTES}
    gate = await rig(limits=limits)
    gate.join(worker)
    yield gate, worker
    await worker.stop()
