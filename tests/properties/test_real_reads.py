"""The rows of the tables over sockets. Each row is sent in four pieces, and each piece is read before the next one is
sent.
"""

import random

import pytest

from router.gateway.client import ClientConnection
from router.gateway.http.upstream_connection import UpstreamConnection
from tests.conformance.request_cases import REQUEST_CASES
from tests.conformance.response_cases import RESPONSE_CASES
from tests.conformance.test_requests import PROBE, answers, compare, ends
from tests.conformance.test_responses import judge
from tests.properties.harness import cut_up
from tests.support.waiting import eventually

PIECES = 4
REQUESTS = [name for name, case in REQUEST_CASES.items() if len(case.raw) < 10_000 and name != "close in the middle"]
ANSWERS = [name for name, case in RESPONSE_CASES.items() if case.gets == "answer" and len(case.raw) < 10_000]


class Reads:
    def __init__(self, monkeypatch, kind):
        self.bytes = 0
        read = kind.data_received

        def data_received(connection, data):
            self.bytes += len(data)
            read(connection, data)

        monkeypatch.setattr(kind, "data_received", data_received)


def connections(gate):
    return gate.gateway.statistics()["connections"]


def pieces(name, raw):
    drawn = random.Random(name)
    return cut_up(raw, [drawn.randrange(len(raw)) for _ in range(PIECES - 1)])


@pytest.mark.parametrize("name", REQUESTS)
async def test_requests_in_four_reads_get_their_expected_answer(recording, monkeypatch, name):
    case = REQUEST_CASES[name]
    gate, worker = recording
    reads = Reads(monkeypatch, ClientConnection)
    client = await gate.connect()
    await eventually(lambda: connections(gate) == 1)
    # a client sends nothing after its own close; anything it sends may meet a closed socket
    raw, sent = case.raw + (PROBE if case.kept or case.code else b""), 0
    for piece in pieces(name, raw):
        client.writer.write(piece)
        sent += len(piece)
        # nothing is read after the gateway has closed
        await eventually(lambda sent=sent: reads.bytes >= sent or not connections(gate))
    await answers(client, case)
    await ends(client, case)
    compare(case, worker)


@pytest.mark.parametrize("name", ANSWERS)
async def test_answers_in_four_reads_reach_the_client(rig, monkeypatch, name):
    case = RESPONSE_CASES[name]
    reads = Reads(monkeypatch, UpstreamConnection)

    async def script(script):
        sent = 0
        for piece in pieces(name, case.raw):
            script.writer.write(piece)
            sent += len(piece)
            await eventually(lambda sent=sent: reads.bytes >= sent or script.reader.at_eof())
        if case.closes:
            script.writer.close()

    gate = await rig(script)
    client = await gate.connect()
    client.writer.write(case.request)
    await judge(client, case)
    await eventually(lambda: gate.idle)
