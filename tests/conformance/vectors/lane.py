"""Runs vectors over sockets: one client connection per vector, and a worker that keeps every request."""

import asyncio
import re

from tests.conformance.corpus import MAX_BODY_BYTES, MAX_HEADER_BYTES
from tests.conformance.vectors.heads import METHODS
from tests.properties.strict import read_message

CONNECTIONS = 64
"""Number of concurrent clients."""
WAIT_S = 20.0
"""Longest wait for a close, also beside other work: the gateway's own limits are 1 s."""
BODY = b'{"id":"x"}'
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(BODY)
_METHOD = re.compile(rb"[A-Z-]+")
# Every path and method is forwarded, and endless messages time out soon.
SETTINGS = {
    "health": {"failure_threshold": 1_000_000},
    "limits": {"max_header_bytes": MAX_HEADER_BYTES, "max_body_bytes": MAX_BODY_BYTES},
    "timeouts": {"client_header_s": 1.0, "client_body_s": 1.0, "client_idle_s": 1.0},
    "extra_paths": {"/*": [method.decode() for method in METHODS if _METHOD.fullmatch(method)]},
}
_NUMBER = re.compile(rb"/v/(\d{5})/")


class Recorder(asyncio.Protocol):
    """A gateway connection at the worker. It keeps requests by the number in their targets."""

    def __init__(self, kept, broken):
        self.kept, self.broken, self.pending = kept, broken, b""

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.pending += data
        try:
            self._requests()
        except AssertionError:
            self.transport.abort()

    def _requests(self):
        while (message := read_message(self.pending, answer=False)) is not None and message.whole:
            self.pending = self.pending[message.end :]
            found = _NUMBER.search(message.start)
            assert found is not None
            self.kept.setdefault(int(found[1]), []).append(message)
            self.transport.write(ANSWER if message.method == b"HEAD" else ANSWER + BODY)

    def connection_lost(self, error):
        if self.pending:
            self.broken.append(self.pending)


class RecordingWorker:
    """`kept`: requests by vector, in order. `broken`: bytes that a strict reader rejects."""

    def __init__(self):
        self.kept, self.broken = {}, []

    async def start(self):
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(lambda: Recorder(self.kept, self.broken), "127.0.0.1", 0)
        self.id = f"127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    def close(self):
        self.server.close()


class Speaker(asyncio.Protocol):
    """A gateway connection at a worker that sends the response in `answers` for the number in the target."""

    def __init__(self, answers):
        self.answers, self.pending = answers, b""

    def connection_made(self, transport):
        self.transport, self.saying = transport, None

    def data_received(self, data):
        self.pending += data
        message = read_message(self.pending, answer=False)
        if message is not None and message.whole:
            self.pending = self.pending[message.end :]
            answer = self.answers[int(_NUMBER.search(message.start)[1])]
            self.saying = asyncio.get_running_loop().create_task(self._say(answer))

    async def _say(self, answer):
        for at in range(0, len(answer.raw), answer.piece_bytes):
            self.transport.write(answer.raw[at : at + answer.piece_bytes])
            await asyncio.sleep(0)
        if answer.closes:
            self.transport.close()

    def connection_lost(self, error):
        if self.saying is not None:
            self.saying.cancel()


class SpeakingWorker:
    """Sends responses by number, and counts no requests."""

    def __init__(self, answers):
        self.answers = {answer.number: answer for answer in answers}

    async def start(self):
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(lambda: Speaker(self.answers), "127.0.0.1", 0)
        self.id = f"127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    def close(self):
        self.server.close()


class Sender(asyncio.Protocol):
    """Sends a vector at once and reads until the gateway closes."""

    def __init__(self, raw):
        self.raw, self.got = raw, bytearray()
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport = transport
        transport.write(self.raw)

    def data_received(self, data):
        self.got += data

    def connection_lost(self, error):
        if not self.done.done():
            self.done.set_result(bytes(self.got))


async def send(address, raw):
    """Return the gateway's bytes for `raw` until it closes, or None if it does not close."""
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    transport, sender = await loop.create_connection(lambda: Sender(raw), host, int(port))
    try:
        return await asyncio.wait_for(sender.done, WAIT_S)
    except TimeoutError:
        return None
    finally:
        transport.abort()


async def send_all(address, raws):
    waiting, got = iter(raws.items()), {}

    async def client():
        for number, raw in waiting:
            got[number] = await send(address, raw)

    await asyncio.gather(*(client() for _ in range(CONNECTIONS)))
    return got
