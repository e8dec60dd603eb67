"""A server dies under 24 streams in each of vLLM's ways, and its clients see the error within 2 s."""

import asyncio
import json
import os
import signal
import time
from dataclasses import dataclass

import httpx
import psutil
import pytest

from loadtest.fleet.vllm import RunningVllm

STREAMS = 24
TOKENS = 1_000
END_S = 2.0
SLACK_S = 1.5
"""Two cores serve two engines, a gateway and the clients."""


@dataclass
class Seen:
    text: str = ""
    finish: str | None = None
    error: str | None = None
    events: int = 0
    worker: str = ""
    ended_s: float = 0.0


def request(model, number):
    text = f"{number} Tell me a long story about rivers. "
    body = {"model": model, "max_tokens": TOKENS, "ignore_eos": True, "temperature": 0}
    if number % 2:
        return "/v1/completions", body | {"prompt": text}
    return "/v1/chat/completions", body | {"messages": [{"role": "user", "content": text}]}


async def read(client, model, number, began):
    path, body = request(model, number)
    seen = Seen()
    async with client.stream("POST", path, json=body | {"stream": True}) as answer:
        seen.worker = answer.headers["x-warmroute-worker"]
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            seen.events += 1
            if seen.events == 20:
                began.release()
            seen.error = (event.get("error") or {}).get("code", seen.error)
            for choice in event.get("choices", ()):
                seen.text += choice.get("text") or choice.get("delta", {}).get("content") or ""
                seen.finish = choice.get("finish_reason") or seen.finish
    seen.ended_s = time.monotonic()
    return seen


async def play(gateway, die):
    began = asyncio.Semaphore(0)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=gateway.url, timeout=90, limits=limits) as client:
        reading = [asyncio.create_task(read(client, gateway.model, number, began)) for number in range(STREAMS)]
        for _ in range(STREAMS):
            await began.acquire()
        gone_s = await asyncio.to_thread(die)
        return await asyncio.gather(*reading), gone_s


def engine_of(server):
    children = psutil.Process(server.process.pid).children(recursive=True)
    return next(child for child in children if "EngineCore" in child.name() or "EngineCore" in str(child.cmdline()))


def kill_server(server):
    engine = engine_of(server)
    os.kill(server.process.pid, signal.SIGKILL)
    gone_s = time.monotonic()
    engine.kill()
    return gone_s


def kill_engine(server):
    engine_of(server).kill()
    return time.monotonic()


def terminate(server):
    engine = engine_of(server)
    server.process.terminate()
    engine.wait(30)
    return time.monotonic()


ENDS = {"worker_died_in_stream", 500}
"""The gateway's error event, or vLLM's own, which the death of an engine brings and a shutdown may bring."""
WAYS = {
    "kill the server": (kill_server, ()),
    "kill the engine": (kill_engine, ()),
    "terminate": (terminate, ()),
    "terminate with time": (terminate, ("--shutdown-timeout", "2")),
}


@pytest.fixture
def mortal(vllm):
    """Return a function from vLLM flags to a server of its own, stopped afterwards."""
    servers = []

    def begin(*flags):
        servers.append(RunningVllm(vllm.worker(*flags, time_scale=1.0, character_share=0.1), "vllm that dies"))
        servers[0].wait_healthy()
        return servers[0]

    yield begin
    for server in servers:
        server.process.kill()


each_way = pytest.mark.parametrize(
    "way",
    [
        "kill the server",
        pytest.param("kill the engine", marks=pytest.mark.nightly),
        pytest.param("terminate", marks=pytest.mark.nightly),
        pytest.param("terminate with time", marks=pytest.mark.nightly),
    ],
)


@each_way
def test_streams_of_a_server_that_dies_end_with_an_error(way, vllm, mortal, front):
    die, flags = WAYS[way]
    server, other = mortal(*flags), vllm(time_scale=1.0, character_share=0.1)
    gateway = front(server, other)
    found, gone_s = asyncio.run(play(gateway, lambda: die(server)))
    theirs = [seen for seen in found if seen.worker == server.url.removeprefix("http://")]
    assert len(theirs) >= STREAMS // 4
    assert {seen.error for seen in theirs} <= ENDS
    assert all(seen.finish is None for seen in theirs)
    assert max(seen.ended_s for seen in theirs) < gone_s + END_S + SLACK_S
    others = [seen for seen in found if seen not in theirs]
    assert {(seen.finish, seen.error) for seen in others} == {("length", None)}


@each_way
def test_with_migration_every_answer_goes_on_token_for_token(way, vllm, mortal, front):
    die, flags = WAYS[way]
    server, other = mortal(*flags), vllm(time_scale=1.0, character_share=0.1)
    routes = [{"name": "all", "layers": {"migration": {"limit": 1}}}]
    gateway = front(server, other, flags=("--set", f"routes={json.dumps(routes)}"))
    found, _ = asyncio.run(play(gateway, lambda: die(server)))
    assert sum(seen.worker == server.url.removeprefix("http://") for seen in found) >= STREAMS // 4
    assert {(seen.finish, seen.error) for seen in found} == {("length", None)}
    undisturbed, _ = asyncio.run(play(gateway, time.monotonic))
    assert [seen.text for seen in found] == [seen.text for seen in undisturbed]
