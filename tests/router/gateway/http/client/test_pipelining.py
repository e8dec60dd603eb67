import asyncio
import socket

import pytest

from tests.support.answers import after, answer_json
from tests.support.raw_client import PLAIN, get, post
from tests.support.waiting import eventually, iterations

LIVEZ = b"GET /livez HTTP/1.1\r\nHost: gw\r\n\r\n"
NO_SUCH_PATH = b"GET /nowhere HTTP/1.1\r\nHost: gw\r\n\r\n"
OPTIONS = b"OPTIONS * HTTP/1.1\r\nHost: gw\r\n\r\n"
NO_JSON = b"POST /v1/completions HTTP/1.1\r\nHost: gw\r\nContent-Length: 1\r\n\r\n{"


class IterationCounter:
    """Counts the most requests that ended in one loop iteration."""

    def __init__(self, gate):
        self._requests = gate.registry.counter("requests").values
        self.most = 0

    async def watch(self):
        seen = 0
        while True:
            await iterations(1)
            self.most, seen = max(self.most, self.answered - seen), self.answered

    @property
    def answered(self):
        return sum(self._requests.values())


class NeverReads:
    """A client that repeats one request while the gateway reads its bytes, and never reads a response."""

    def __init__(self, address, request):
        self._connection = socket.socket()
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
        host, _, port = address.rpartition(":")
        self._connection.connect((host, int(port)))
        self._connection.setblocking(False)
        self._piece = request * 2_000
        self._sent = self._answered = 0

    def send(self):
        """Send as many bytes as the socket takes now. Return whether it took any."""
        try:
            self._sent += self._connection.send(self._piece[self._sent % len(self._piece) :])
        except BlockingIOError:
            return False
        return True

    async def send_all(self):
        """Send until the gateway stops reading. Return the number of bytes sent."""
        refused = 0
        while refused < 1_000 and self._sent < 30_000_000:
            refused = 0 if self.send() else refused + 1
            await iterations(1)
        return self._sent

    def cut(self):
        """Return whether the gateway has closed the connection; send more if not."""
        try:
            self.send()
        except ConnectionError:
            return True
        return False

    def close(self):
        self._connection.close()


@pytest.fixture
def never_reads():
    made = []

    def start(gate, request=LIVEZ):
        made.append(NeverReads(gate.address, request))
        return made[-1]

    yield start
    for each in made:
        each.close()


@pytest.mark.parametrize("request_bytes", [LIVEZ, NO_SUCH_PATH, OPTIONS, NO_JSON])
async def test_one_iteration_answers_a_bounded_number_of_pipelined_requests(rig, request_bytes):
    gate = await rig(answer_json)
    iterations = IterationCounter(gate)
    watching = asyncio.create_task(iterations.watch())
    clients = [await gate.connect() for _ in range(4)]
    for client in clients:
        client.writer.write(request_bytes * 500)
    for client in clients:
        for _ in range(500):
            assert (await client.read(bodiless=request_bytes == OPTIONS)).status in (200, 204, 400, 404)
    watching.cancel()
    assert iterations.answered == 2_000
    assert iterations.most <= 2 * len(clients)  # each read adds one request


async def test_pipelined_requests_are_answered_in_order(rig):
    gate = await rig(answer_json)
    client = await gate.send((LIVEZ + post(body=PLAIN) + NO_SUCH_PATH + post(body=PLAIN)) * 50)
    for _ in range(50):
        replies = [await client.read() for _ in range(4)]
        assert [reply.status for reply in replies] == [200, 200, 404, 200]
        assert replies[0].body == b'{"status":"alive"}' and b'"choices"' in replies[1].body
    assert len(gate.workers[0].requests) == 100


@pytest.mark.parametrize("keyed", [False, True])
async def test_requests_of_a_client_that_does_not_read_stay_unread(rig, never_reads, keyed):
    options = {"auth": {"api_keys": ["one sha256:" + "0" * 64]}} if keyed else {}
    gate = await rig(answer_json, **options)
    attacker = never_reads(gate, get(b"/v1/models") if keyed else LIVEZ)
    sent = await attacker.send_all()
    assert sent < 10_000_000  # the sockets' buffers and 64 kB of responses
    await eventually(lambda: any(not each.writable for each in gate.gateway._parts.drain.connections))
    answered = len(gate.counted("requests"))
    assert (await gate.ask(LIVEZ)).status == 200
    await eventually(lambda: len(gate.counted("requests")) > answered)
    await iterations(1_000)
    assert len(gate.counted("requests")) == answered + 1
    (connection,) = [each for each in gate.gateway._parts.drain.connections if not each.writable]
    assert connection.unsent_bytes < 2_000_000


async def test_unread_responses_and_waiting_requests_count_as_unsent(rig, never_reads):
    gate = await rig(answer_json, limits={"max_buffered_response_bytes": 400_000})
    attackers = [never_reads(gate) for _ in range(8)]
    await asyncio.gather(*(attacker.send_all() for attacker in attackers), return_exceptions=True)
    await eventually(lambda: gate.gateway.statistics()["slow_readers_cut"] > 0, 30)
    assert gate.gateway.statistics()["buffered_response_bytes"] <= 400_000
    assert (await gate.ask(LIVEZ)).status == 200


async def test_a_client_that_resumes_reading_gets_every_response(rig):
    gate = await rig(answer_json)
    client = await gate.connect(limit=4_096)  # reads stop while this much is buffered
    client.writer.write(LIVEZ * 20_000)
    await eventually(lambda: any(not each.writable for each in gate.gateway._parts.drain.connections))
    for _ in range(20_000):
        assert (await client.read()).status == 200
    assert (await client.ask(LIVEZ)).status == 200


async def test_a_client_that_never_reads_is_closed_after_the_stream_limit(rig, never_reads):
    gate = await rig(answer_json, timeouts={"stream_idle_s": 0.5})
    attacker = never_reads(gate)
    await eventually(attacker.cut)
    await eventually(lambda: not gate.gateway._parts.drain.connections)


async def test_responses_are_sent_after_the_client_half_closes(rig):
    gate = await rig(answer_json)
    client = await gate.send(LIVEZ * 300)
    client.writer.write_eof()
    assert (await client.closed()).count(b"HTTP/1.1 200 OK") == 300


async def test_bytes_of_pipelined_requests_count_as_body_bytes(rig):
    go_on = asyncio.Event()

    gate = await rig(after(go_on), limits={"max_buffered_body_bytes": 500_000, "max_body_bytes": 100_000})
    clients = [await gate.connect() for _ in range(20)]
    for client in clients:
        client.writer.write(post(body=PLAIN) + LIVEZ * 5_000)
    await eventually(lambda: gate.gateway.statistics()["connections"] < 20)
    held = gate.gateway.statistics()
    assert 65_536 < held["buffered_body_bytes"] <= 500_000
    assert 0 < held["connections"] == held["streams"]
    go_on.set()
    answered = 0
    for client in clients:
        try:
            answered += [(await client.read()).status for _ in range(5_001)] == [200] * 5_001
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
    assert answered == held["connections"]
    await eventually(lambda: gate.gateway.statistics()["buffered_body_bytes"] == 0)
