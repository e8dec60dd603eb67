"""SIGTERM to one of two vLLM servers under mixed load, with and without a time to end its requests.

Without it, the engine aborts its requests or is killed first, and the server waits for its connections without a word.
With it, `/health` says 200 while each new request gets a 500; then the engine is killed, and the rest goes silent.
"""

import asyncio
import itertools
import json
import time
from dataclasses import dataclass, field

import httpx
import psutil
import pytest

from loadtest.fleet.vllm import RunningVllm

CLIENTS = 12
END_S = 2.0
SLACK_S = 1.0
"""Two cores serve two engines, a gateway and the clients."""
WORDS = "Tell me a long story about the rivers of Europe and their old names. " * 6


@dataclass
class Seen:
    """One request as its client saw it, with times of `time.monotonic`."""

    kind: str
    began_s: float
    ended_s: float = 0.0
    worker: str = ""
    status: int = 0
    text: str = ""
    reasons: list = field(default_factory=list)
    error: bool = False
    cut: bool = False

    @property
    def complete(self):
        return self.status == 200 and not self.error and not self.cut


def requests(model, number):
    """Return kind, path and body of request `number`: four APIs, streams and whole answers, short and long."""
    tokens = (20, 200, 3_000)[number % 3]
    text = f"{number} {WORDS}"
    chat = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": tokens, "ignore_eos": True}
    prompt = {"model": model, "prompt": text, "max_tokens": tokens, "ignore_eos": True}
    ids = {**prompt, "prompt": [1_000 + (number * 7 + place) % 4_000 for place in range(64)]}
    responses = {"model": model, "input": text, "max_output_tokens": tokens, "ignore_eos": True}
    kinds = [
        ("chat", "/v1/chat/completions", chat | {"stream": True}),
        ("chat whole", "/v1/chat/completions", chat),
        ("completion", "/v1/completions", prompt | {"stream": True}),
        ("ids", "/v1/completions", ids | {"stream": True}),
        ("ids whole", "/v1/completions", ids),
        ("messages", "/v1/messages", chat | {"stream": True}),
        ("responses", "/v1/responses", responses | {"stream": True}),
    ]
    return kinds[number // 3 % len(kinds)]


async def ask(client, kind, path, body):
    seen = Seen(kind, time.monotonic())
    try:
        async with client.stream("POST", path, json=body) as answer:
            seen.status, seen.worker = answer.status_code, answer.headers.get("x-warmroute-worker", "")
            if body.get("stream") and answer.status_code == 200:
                async for line in answer.aiter_lines():
                    read_event(seen, line)
            else:
                read_whole(seen, json.loads(await answer.aread()))
    except httpx.TransportError:
        seen.cut = True
    seen.ended_s = time.monotonic()
    return seen


def read_event(seen, line):
    if not line.startswith("data: {"):
        return
    event = json.loads(line.removeprefix("data: "))
    seen.error = seen.error or bool(event.get("error")) or event.get("type") in ("error", "response.failed")
    for choice in event.get("choices", ()):
        seen.text += choice.get("text") or choice.get("delta", {}).get("content") or ""
        seen.reasons.append(choice.get("finish_reason"))
    delta = event.get("delta")
    seen.text += delta if isinstance(delta, str) else (delta or {}).get("text", "")


def read_whole(seen, body):
    for choice in body.get("choices", ()):
        seen.text += choice.get("text") or choice.get("message", {}).get("content") or ""
        seen.reasons.append(choice.get("finish_reason"))


async def load(url, model, until, leaving):
    numbers, found = itertools.count(), []

    async def play(client):
        while not until.is_set():
            found.append(await ask(client, *requests(model, next(numbers))))

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=90, limits=limits) as client:
        players = [asyncio.create_task(play(client)) for _ in range(CLIENTS)]
        await asyncio.sleep(3.0)
        gone_s = await asyncio.to_thread(leaving)
        await asyncio.sleep(3.0)
        until.set()
        await asyncio.gather(*players)
    return found, gone_s


@pytest.fixture
def leaving(vllm):
    """Return a function from flags to a server of its own, stopped afterwards."""
    servers = []

    def begin(*flags):
        servers.append(RunningVllm(vllm.worker(*flags, time_scale=1.0), "vllm that leaves"))
        servers[0].wait_healthy()
        return servers[0]

    yield begin
    for server in servers:
        server.process.kill()


def engine_of(server):
    children = psutil.Process(server.process.pid).children(recursive=True)
    return next(child for child in children if "EngineCore" in child.name() or "EngineCore" in str(child.cmdline()))


@pytest.mark.parametrize("flags", [(), ("--shutdown-timeout", "4")], ids=["at once", "with time"])
def test_a_server_that_ends_under_load(flags, vllm, leaving, front):
    server, other = leaving(*flags), vllm(time_scale=1.0)
    gateway = front(server, other)
    leaving_id = server.url.removeprefix("http://")
    engine = engine_of(server)

    def leave():
        server.process.terminate()
        engine.wait(30)
        return time.monotonic()

    found, gone_s = asyncio.run(load(gateway.url, gateway.model, asyncio.Event(), leave))
    theirs = [seen for seen in found if seen.worker == leaving_id]
    assert theirs and len(found) > 3 * CLIENTS
    late = [seen for seen in theirs if seen.ended_s > gone_s + END_S + SLACK_S]
    assert not late, late[:5]
    assert not [seen for seen in found if seen.status >= 500 and "whole" not in seen.kind], "no stream had begun"
    empty = [seen for seen in found if seen.complete and (not seen.text or "abort" in seen.reasons)]
    assert not empty, f"{len(empty)} of {len(found)}: {empty[:3]}"
    gateway.wait_for(
        lambda: {worker["id"]: worker["state"] for worker in gateway.workers()}[leaving_id] != "ready", "the loss"
    )
