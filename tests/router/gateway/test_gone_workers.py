import asyncio
import time

import msgspec
import pytest

from router.placement.fleet import fleet
from router.requests.queues import gone_workers
from tests.support.answers import (
    DONE,
    END,
    STREAM_HEAD,
    answer_stream,
    chunk,
    event,
    in_turn,
    json_head,
    saying,
    silent,
)
from tests.support.raw_client import PLAIN, post
from tests.support.waiting import eventually

QUIET_S = 0.2


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(gone_workers, "QUIET_S", QUIET_S)
    monkeypatch.setattr(gone_workers, "_LOOK_S", 0.02)
    monkeypatch.setattr(fleet, "EVIDENCE_S", 0.0)


begin = saying(STREAM_HEAD, chunk(event("a")))


async def asked(gate, body=None):
    """Send one request, and return its client once a worker has it."""
    client = await gate.connect()
    before = sum(len(worker.requests) for worker in gate.workers)
    client.writer.write(post() if body is None else post(body=body))
    await eventually(lambda: sum(len(worker.requests) for worker in gate.workers) > before)
    return client


def close_port(gate, worker):
    """Close the port as vLLM does at its shutdown: connections stay open. The gateway's probe meets the refusal."""
    worker.server.close()
    gate.fleet.refused(worker.id, gate.loop.time())


async def test_a_quiet_stream_of_a_worker_that_is_gone_ends_with_an_error(rig):
    gate = await rig(begin)
    client = await asked(gate)
    began_s = time.monotonic()
    close_port(gate, gate.workers[0])
    events = (await client.read()).body.split(b"\n\n")
    assert time.monotonic() - began_s < 2.0
    assert events[0] + b"\n\n" == event("a")
    assert msgspec.json.decode(events[1][6:])["error"]["code"] == "worker_died_in_stream"
    assert events[2:] == [b"data: [DONE]", b""]
    assert gate.recorded.events[-1] == "failed stream"
    await eventually(lambda: gate.workers[0].requests[0].gone.is_set())
    assert gate.idle


async def test_a_request_without_an_answer_goes_to_another_worker(rig):
    gate = await rig(silent, answer_stream)
    client = await asked(gate)
    close_port(gate, gate.workers[0])
    assert (await client.read()).body.endswith(DONE)
    assert gate.recorded.events[:3] == ["ticket", "retry sent", "failed sent"]
    assert len(gate.workers[1].requests) == 1
    assert gate.counted("worker_deaths") == []  # the request is no suspect: the worker was shut down


async def test_without_another_worker_the_client_may_try_again(rig):
    gate = await rig(silent)
    client = await asked(gate, PLAIN)
    close_port(gate, gate.workers[0])
    reply = await client.read()
    assert (reply.status, reply.code) == (503, "worker_failed")
    assert int(reply.header(b"retry-after")) >= 1


async def test_an_answer_in_one_piece_that_has_begun_is_cut(rig):
    half = saying(json_head(100), b'{"half')
    gate = await rig(half)
    client = await asked(gate, PLAIN)
    await client.reader.readuntil(b"half")
    close_port(gate, gate.workers[0])
    assert await client.closed() == b""


async def test_every_request_of_the_worker_ends(rig):
    gate = await rig(begin)
    clients = [await asked(gate) for _ in range(5)]
    close_port(gate, gate.workers[0])
    for client in clients:
        assert b"worker_died_in_stream" in (await client.read()).body


async def test_a_worker_that_lets_its_last_requests_end_is_left_alone(rig):
    """One stream brings tokens; so the engine lives, and the other streams may be quiet for a reason."""
    release = asyncio.Event()

    async def busy(script):
        await script.say(STREAM_HEAD)
        while not release.is_set():
            await script.say(chunk(event("tick")))
            await asyncio.sleep(QUIET_S / 4)
        await script.say(chunk(DONE), END)

    async def quiet(script):
        await script.say(STREAM_HEAD, chunk(event("a")))
        await release.wait()
        await script.say(chunk(event("b")), chunk(DONE), END)

    gate = await rig(in_turn(busy, quiet))
    clients = [await asked(gate) for _ in range(2)]
    close_port(gate, gate.workers[0])
    await asyncio.sleep(4 * QUIET_S)
    release.set()
    for client in clients:
        reply = await client.read()
        assert reply.body.endswith(DONE) and b"error" not in reply.body


async def test_a_port_that_opens_again_changes_nothing(rig):
    gate = await rig(begin)
    client = await asked(gate)
    await client.reader.readuntil(event("a"))
    worker = gate.workers[0]
    worker.server.close()
    await worker.start(worker.port)
    gate.fleet.refused(worker.id, gate.loop.time())
    await asyncio.sleep(2 * QUIET_S)
    assert gate.recorded.events == ["ticket", "first_token"]


async def test_other_workers_are_left_alone(rig):
    gate = await rig(begin, begin)
    clients = [await asked(gate) for _ in range(2)]
    gone, other = gate.workers
    close_port(gate, gone)
    await eventually(lambda: "failed stream" in gate.recorded.events)
    assert gate.recorded.events.count("failed stream") == 1
    assert not other.requests[0].gone.is_set()
    assert len(clients) == 2


async def test_a_request_that_is_refused_starts_the_look(rig):
    gate = await rig(in_turn(begin))
    client = await asked(gate)
    await client.reader.readuntil(event("a"))
    gate.workers[0].server.close()
    assert (await gate.ask(post())).status == 503  # no other worker
    assert b"worker_died_in_stream" in await client.reader.readuntil(DONE)


async def test_a_quiet_worker_is_dialled_where_probes_are_rare(rig, monkeypatch):
    monkeypatch.setattr(gone_workers, "_PAUSE_S", 0.05)
    gate = await rig(begin, begin, health={"probe_interval_s": 5.0})
    clients = [await asked(gate) for _ in range(2)]
    gone, other = gate.workers
    for client in clients:
        await client.reader.readuntil(event("a"))
    gone.server.close()  # no probe meets it
    await eventually(lambda: "failed stream" in gate.recorded.events)
    assert gone.requests[0].gone.is_set() or not other.requests[0].gone.is_set()
    assert gate.recorded.events.count("failed stream") == 1


async def test_a_client_that_does_not_read_keeps_what_has_arrived(rig):
    """Its worker's bytes wait in the gateway's socket, and the end of the answer may be among them."""
    gate = await rig(begin)
    client = await asked(gate)
    await client.reader.readuntil(event("a"))
    (request,) = gate.gateway._parts.requests.running
    request._outbound.client.writable = False
    close_port(gate, gate.workers[0])
    await asyncio.sleep(3 * QUIET_S)
    assert gate.recorded.events == ["ticket", "first_token"]
    request._outbound.client.writable = True
    assert b"worker_died_in_stream" in await client.reader.readuntil(DONE)


async def test_a_gateway_that_closes_stops_looking(rig):
    gate = await rig(begin)
    await asked(gate)
    close_port(gate, gate.workers[0])
    await gate.gateway.aclose(0)
    await eventually(lambda: not [one for one in asyncio.all_tasks() if one.get_name().startswith("refusals")])
