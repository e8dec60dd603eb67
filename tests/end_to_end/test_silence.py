"""A gateway as a process before workers that are late, silent, shut down or dead: what it infers, and when."""

import asyncio
import os
import signal
import time
from contextlib import asynccontextmanager

import httpx
import pytest

from loadtest.fleet.process import Process, warmroute
from tests.end_to_end.conftest import ANY_PORT, Gateway
from tests.support.answers import DONE, END, STREAM_HEAD, answer_json, chunk, event
from tests.support.late_worker import LateWorker
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

FAST = ("health.probe_timeout_s=0.3", "health.probe_interval_s=0.1")
WHOLE = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAMED = {**WHOLE, "stream": True}


class Watched(Gateway):
    def __init__(self, workers, settings):
        fleet = [flag for worker in workers for flag in ("--worker", f"http://{worker.id}")]
        settings = (*settings, "residency.self_test=false", "residency.kv_events=false")
        flags = [flag for setting in settings for flag in ("--set", setting)]
        super().__init__(Process(warmroute("serve", *ANY_PORT, *fleet, *flags), "serve"))
        self.client = httpx.AsyncClient(timeout=30, limits=httpx.Limits(max_connections=None))

    async def workers(self):
        listed = (await self.client.get(f"{self.admin}/admin/v1/workers")).json()["workers"]
        return {worker["id"]: worker for worker in listed}

    async def states(self):
        return [worker["state"] for worker in (await self.workers()).values()]

    async def ask(self, body=WHOLE):
        return await self.client.post(f"{self.url}/v1/chat/completions", json=body)

    async def until(self, state, worker, limit_s=15.0):
        end_s = time.monotonic() + limit_s
        while (await self.workers())[worker.id]["state"] != state:
            assert time.monotonic() < end_s, await self.workers()
            await asyncio.sleep(0.02)


@asynccontextmanager
async def serving(*workers, settings=FAST):
    """Start `workers` and a gateway, and wait until all are ready."""
    for worker in workers:
        await worker.start()
    gateway = await asyncio.to_thread(Watched, workers, settings)
    try:
        for worker in workers:
            await gateway.until("ready", worker)
        yield gateway
    finally:
        await gateway.client.aclose()
        await asyncio.to_thread(gateway.process.stop)
        for worker in workers:
            await worker.stop()


def after(delay_s):
    async def script(script):
        await asyncio.sleep(delay_s)
        await answer_json(script)

    return script


async def tokens(script):
    """A stream of a token every 20 ms, for 3 s."""
    await script.say(STREAM_HEAD)
    for _ in range(150):
        await script.say(chunk(event("x")))
        await asyncio.sleep(0.02)
    await script.say(chunk(DONE), END)


async def load(gateway, seconds, clients=6):
    end_s = time.monotonic() + seconds
    statuses = []

    async def client():
        while time.monotonic() < end_s:
            statuses.append((await gateway.ask()).status_code)

    await asyncio.gather(*[client() for _ in range(clients)])
    return statuses


@pytest.mark.parametrize("health_s", [1.0, None], ids=["late", "never"])
async def test_all_workers_are_busy_and_answer_health_late(health_s):
    workers = [LateWorker(after(0.05)) for _ in range(2)]
    async with serving(*workers) as gateway:
        before = await load(gateway, 1.0)
        for worker in workers:
            worker.health_s = worker.metrics_s = health_s
        statuses = await load(gateway, 4.0)
        assert set(statuses) == {200}
        assert len(statuses) > 4.0 * len(before) / 2
        assert await gateway.states() == ["ready", "ready"]


async def test_a_gateway_that_was_stopped_blames_no_worker():
    workers = [LateWorker(tokens) for _ in range(2)]
    settings = (*FAST, "timeouts.stream_idle_s=0.5", "health.failure_threshold=1")
    async with serving(*workers, settings=settings) as gateway:
        streams = [asyncio.create_task(gateway.ask(STREAMED)) for _ in range(4)]
        await eventually(lambda: sum(worker.chats for worker in workers) == 4)
        for _ in range(2):
            os.kill(gateway.process.pid, signal.SIGSTOP)
            await asyncio.sleep(1.0)
            os.kill(gateway.process.pid, signal.SIGCONT)
            await asyncio.sleep(0.2)
        for reply in await asyncio.gather(*streams):
            assert reply.content.count(b'"x"') == 150 and b"error" not in reply.content
        listed = await gateway.workers()
        assert [worker["state"] for worker in listed.values()] == ["ready", "ready"]
