"""An embedded worker dies in each of vLLM's ways, at the token that was planned."""

import asyncio
import json

import httpx
import pytest

from backends.simulated.serving import serving
from backends.simulated.settings import WorkerSettings

CHAT = "/v1/chat/completions"
STREAM = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2_000, "stream": True}
IDS = {"prompt": [5, 6, 7], "max_tokens": 2_000}
SILENT_S = 0.3
STOPPED = "cannot schedule new futures after shutdown"


@pytest.fixture
async def mortal():
    async with serving(WorkerSettings(time_scale=0.02, deaths=True)) as running:
        yield running


@pytest.fixture
async def client(mortal):
    async with httpx.AsyncClient(base_url=mortal.url, timeout=httpx.Timeout(20, read=SILENT_S)) as client:
        yield client


async def read(client, path=CHAT, body=STREAM):
    """Return the data lines of a stream, and the exception that ended it, if any."""
    lines = []
    try:
        async with client.stream("POST", path, json=body) as answer:
            async for line in answer.aiter_lines():
                lines += [line.removeprefix("data: ")] if line.startswith("data: ") else []
    except httpx.TransportError as error:
        return lines, type(error)
    return lines, None


def tokens(lines):
    choices = [json.loads(line)["choices"] for line in lines if '"choices"' in line]
    return sum(bool(choice[0]["delta"].get("content")) for choice in choices)


async def refused(client):
    try:
        await client.get("/health")
    except httpx.ConnectError:
        return True
    return False


@pytest.mark.parametrize("at_token", [0, 1, 7])
@pytest.mark.parametrize(
    ("way", "ends"),
    [
        ("reset", httpx.ReadError),
        ("end", httpx.RemoteProtocolError),
        ("error", None),
        ("abort", None),
        ("silence", httpx.ReadTimeout),
    ],
)
async def test_each_way_at_a_token(mortal, client, way, ends, at_token):
    assert (await client.post("/death", json={"way": way, "at_token": at_token})).status_code == 200
    lines, error = await read(client)
    assert (tokens(lines), error) == (at_token, ends)
    last = [json.loads(line) for line in lines[:-1]][-1] if ends is None else None
    if way == "error":
        assert (last["error"]["code"], lines[-1]) == (500, "[DONE]")
    if way == "abort":
        assert (last["choices"][0]["finish_reason"], lines[-1]) == ("abort", "[DONE]")
    await asyncio.wait_for(mortal.gone.wait(), 5)
    assert await refused(client)


async def test_a_silent_worker_keeps_its_streams_and_closes_its_port(mortal):
    async with httpx.AsyncClient(base_url=mortal.url) as client, client.stream("POST", CHAT, json=STREAM) as answer:
        lines = answer.aiter_lines()
        await anext(lines)
        mortal.die("silence")
        assert len([line async for line in _until_silent(lines)]) < 10
        assert not mortal.gone.is_set()
        async with httpx.AsyncClient(base_url=mortal.url) as other:
            assert await refused(other)
    await asyncio.wait_for(mortal.gone.wait(), 5)


async def test_the_other_apis_of_a_dead_engine(mortal, client, until):
    message = {"messages": STREAM["messages"], "max_tokens": 2_000, "stream": True}
    response = {"input": "Hi", "max_output_tokens": 2_000, "stream": True}
    waits = [
        read(client, "/v1/messages", message),
        read(client, "/v1/responses", response),
        client.post(CHAT, json={**STREAM, "stream": False}, timeout=20),
    ]
    waits = [asyncio.ensure_future(wait) for wait in waits]
    await until(lambda: mortal.worker.statistics()["in_flight"] == len(waits))
    await client.post("/death", json={"way": "error"})
    (messages, _), (responses, cut), whole = await asyncio.gather(*waits)
    assert json.loads(messages[-1])["type"] == "error"
    assert cut is httpx.RemoteProtocolError and "completed" not in responses[-1]
    assert whole.status_code == 500


async def test_aborted_answers_of_the_other_apis_look_whole(mortal, client, until):
    message = asyncio.create_task(read(client, "/v1/messages", {**STREAM, "max_tokens": 2_000}))
    await until(lambda: not mortal.worker.idle)
    await client.post("/death", json={"way": "abort"})
    lines, error = await message
    assert error is None
    assert [json.loads(line).get("delta", {}).get("stop_reason", "") for line in lines][-2] is None


@pytest.mark.parametrize("body", [{"way": "old age"}, {"way": "end", "at_token": -1}, {}])
async def test_a_plan_that_is_none_is_refused(client, body):
    assert (await client.post("/death", json=body)).status_code == 400


async def test_no_worker_dies_without_the_setting():
    async with serving(WorkerSettings()) as running, httpx.AsyncClient(base_url=running.url) as client:
        assert (await client.post("/death", json={"way": "end"})).status_code == 404


async def test_a_shutdown_with_time_lets_requests_go_on_and_then_falls_silent():
    settings = WorkerSettings(time_scale=1.0, shutdown_timeout_s=0.6)
    async with serving(settings) as running, httpx.AsyncClient(base_url=running.url, timeout=20) as client:
        async with client.stream("POST", CHAT, json=STREAM) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            shutting = asyncio.create_task(running.shut_down())
            await asyncio.sleep(0.1)
            assert (await client.get("/health")).status_code == 200
            refusal = await client.post(CHAT, json={**STREAM, "stream": False})
            assert (refusal.status_code, refusal.json()["error"]["message"]) == (500, STOPPED)
            empty = await client.post("/v1/completions", json=IDS)
            assert (empty.status_code, empty.json()["choices"][0]["finish_reason"]) == (200, "abort")
            assert empty.json()["choices"][0]["text"] == ""
            door = {**STREAM, "kv_transfer_params": {"prompt_token_ids": [5, 6, 7]}}
            through, _ = await read(client, CHAT, door)
            assert (tokens(through), json.loads(through[-2])["choices"][0]["finish_reason"]) == (0, "abort")
            assert len([line async for line in _until_silent(lines)]) > 20
        await asyncio.wait_for(shutting, 5)


async def _until_silent(lines):
    while True:
        try:
            yield await asyncio.wait_for(anext(lines), 1.0)
        except TimeoutError:
            return


async def test_a_shutdown_with_time_and_nothing_left_ends_at_once():
    settings = WorkerSettings(shutdown_timeout_s=60)
    async with serving(settings) as running:
        await asyncio.wait_for(running.shut_down(), 5)


async def test_a_shutdown_may_be_silent():
    settings = WorkerSettings(silent_shutdown=True, time_scale=0.1)
    async with serving(settings) as running, httpx.AsyncClient(base_url=running.url, timeout=20) as client:
        async with client.stream("POST", CHAT, json=STREAM) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            shutting = asyncio.create_task(running.shut_down())
            async for _ in _until_silent(lines):
                pass
            assert not shutting.done()
        await asyncio.wait_for(shutting, 5)
