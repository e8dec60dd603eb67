"""Workers that answer that they shut down, as vLLM 0.33 does after SIGTERM while its `/health` says 200."""

import asyncio

import msgspec
import pytest

from router.placement.fleet.fleet import WorkerState
from tests.support.answers import (
    DONE,
    END,
    STREAM_HEAD,
    after,
    answer_json,
    answer_stream,
    chunk,
    event,
    in_turn,
    json_head,
    says,
)
from tests.support.gateway_rig import FACTS
from tests.support.raw_client import PLAIN, post
from tests.support.scripted_worker import ScriptedWorker
from tests.support.waiting import eventually

MESSAGE = "cannot schedule new futures after shutdown"
OPENAI = {"error": {"message": MESSAGE, "type": "InternalServerError", "param": None, "code": 500}}
ANTHROPIC = {"type": "error", "error": {"type": "internal_error", "message": MESSAGE}}
DRAINING, READY = WorkerState.DRAINING, WorkerState.READY


def stops(error=OPENAI, status=b"500 Internal Server Error"):
    body = msgspec.json.encode(error)

    return says(json_head(len(body), status), body)


def states(gate):
    return [one.state for one in gate.fleet.endpoints]


@pytest.mark.parametrize("error", [OPENAI, ANTHROPIC], ids=["openai", "anthropic"])
@pytest.mark.parametrize("body", [None, PLAIN], ids=["stream", "whole"])
async def test_the_request_goes_on_elsewhere_and_no_other_follows(rig, error, body):
    gate = await rig(stops(error), answer_stream if body is None else answer_json)
    replies = [await gate.ask(post() if body is None else post(body=body)) for _ in range(5)]
    assert [reply.status for reply in replies] == [200] * 5
    assert len(gate.workers[0].requests) == 1
    assert states(gate) == [DRAINING, READY]
    assert "shuts down" in gate.fleet.endpoints[0].reason
    assert gate.counted("retries") == [("stopping",)]


async def test_it_is_no_fault_of_the_worker_or_of_the_request(rig):
    gate = await rig(stops(), stops(), stops(), answer_json, retries={"budget_ratio": 0})
    assert (await gate.ask(post(body=PLAIN))).status == 503  # three workers were tried, as many as are allowed
    assert (await gate.ask(post(body=PLAIN))).status == 200  # although no budget allows a retry
    assert states(gate) == [DRAINING] * 3 + [READY]
    assert not gate.gateway.statistics()["quarantine"]["incidents"]
    assert {one.health.condition for one in gate.fleet.endpoints} == {READY}


async def test_without_another_worker_the_client_may_try_again(rig):
    gate = await rig(stops())
    reply = await gate.ask(post(body=PLAIN))
    assert (reply.status, reply.code) == (503, "worker_failed")
    assert MESSAGE.encode() not in reply.body and int(reply.header(b"retry-after")) >= 1


async def test_running_streams_are_left_alone(rig):
    release = asyncio.Event()

    async def stream(script):
        await script.say(STREAM_HEAD, chunk(event("a")))
        await release.wait()
        await script.say(chunk(event("b")), chunk(DONE), END)

    gate = await rig(in_turn(stream, stops()))
    client = await gate.send(post())
    await client.reader.readuntil(event("a"))
    assert (await gate.ask(post(body=PLAIN))).status == 503
    assert states(gate) == [DRAINING]
    release.set()
    assert event("b") in await client.reader.readuntil(DONE)
    await eventually(lambda: gate.recorded.events[-1] == "finished 200")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ({"error": {"message": f"bad prompt: {MESSAGE}"}}, b"500 No"),
        ({"error": MESSAGE}, b"500 No"),
        (OPENAI, b"502 No"),
        ({"error": {"message": MESSAGE, "pad": "x" * 2_000}}, b"500 No"),
    ],
    ids=["a part of the message", "no object", "another status", "too long"],
)
async def test_other_server_errors_are_what_they_were(rig, error, status):
    gate = await rig(stops(error, status), answer_json)
    assert (await gate.ask(post(body=PLAIN))).status == 200
    assert states(gate) == [READY, READY]
    assert gate.counted("retries") == [("answered",)]


async def test_probes_that_succeed_do_not_end_it_and_another_process_does(rig):
    gate = await rig(stops())
    await gate.ask(post(body=PLAIN))
    (worker,) = gate.fleet.endpoints
    for second in range(9):
        gate.fleet.probe_succeeded(worker.id, FACTS, gate.loop.time() + second)
    assert worker.state is DRAINING
    gate.fleet.restarted(worker.id, gate.loop.time() + 9)
    assert worker.state is READY


async def test_a_port_that_was_closed_in_between_belongs_to_another_process(rig):
    gate = await rig(stops())
    await gate.ask(post(body=PLAIN))
    (worker,) = gate.fleet.endpoints
    now_s = gate.loop.time() + 1
    gate.fleet.refused(worker.id, now_s)
    gate.fleet.probe_failed(worker.id, "refused", now_s)
    assert worker.state is DRAINING
    gate.fleet.probe_succeeded(worker.id, FACTS, now_s + 1)
    assert worker.state is READY


async def test_it_is_unhealthy_once_its_port_stays_closed(rig):
    gate = await rig(stops())
    await gate.ask(post(body=PLAIN))
    (worker,) = gate.fleet.endpoints
    for second in range(3):
        gate.fleet.probe_failed(worker.id, "refused", gate.loop.time() + second)
    assert worker.state is WorkerState.UNHEALTHY


async def test_an_operator_may_use_it_again(rig):
    gate = await rig(stops())
    await gate.ask(post(body=PLAIN))
    (worker,) = gate.fleet.endpoints
    gate.fleet.undrain(worker.id)
    assert worker.state is READY


async def test_a_trial_that_meets_it_leaves_no_trial_open(rig):
    gate = await rig(stops(), answer_json)
    worker = gate.fleet.endpoints[0]
    for second in range(3):
        gate.fleet.probe_failed(worker.id, "refused", second)
    gate.fleet.probe_succeeded(worker.id, FACTS, gate.loop.time())
    assert worker.state is WorkerState.HALF_OPEN
    assert (await gate.ask(post(body=PLAIN))).status == 200
    assert worker.state is DRAINING and not worker.health.trial_running


async def test_requests_of_a_stopping_worker_that_is_removed_stay_until_it_is_gone(rig, monkeypatch):
    """Discovery removes a worker when its platform ends it, before its engine is gone."""
    monkeypatch.setattr("router.requests.queues.gone_workers._PAUSE_S", 0.02)
    release = asyncio.Event()

    gate = await rig(in_turn(after(release), stops()))
    client = await gate.send(post(body=PLAIN))
    await eventually(lambda: gate.workers[0].requests)
    await gate.ask(post(body=PLAIN))
    gate.workers.append(await ScriptedWorker(answer_json).start())
    gate.join(gate.workers[1])  # it could take over
    gate.fleet.remove(gate.workers[0].id)
    await asyncio.sleep(0.1)
    release.set()
    assert (await client.read()).status == 200
    assert gate.recorded.events.count("retry sent") == 0
