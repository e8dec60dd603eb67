import asyncio
import json
import time
from contextlib import asynccontextmanager

import httpx
import openai
import pytest

from backends.simulated.serving import serving
from backends.simulated.settings import WorkerSettings

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


class Client(httpx.AsyncClient):
    def __init__(self, running):
        super().__init__(base_url=running.url, timeout=20, verify=False)  # no TLS, so no certificates are loaded
        self.running = running
        self.worker = running.worker

    def engine(self):
        return self.worker.statistics()["engine"]

    async def chat(self, *messages, **fields):
        body = {"messages": [{"role": "user", "content": text} for text in messages], **fields}
        return (await self.post(CHAT, json=body)).json()

    async def frames(self, path, body, **kwargs):
        answer = await self.post(path, json={**body, "stream": True}, **kwargs)
        lines = answer.text.split("\n\n")
        assert lines.pop() == ""
        assert lines.pop() == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines]


@asynccontextmanager
async def serve(**settings):
    async with serving(WorkerSettings(**{"time_scale": 0.0, **settings})) as running, Client(running) as client:
        yield client


async def until(condition, limit_s=5.0):
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < limit_s
        await asyncio.sleep(0.001)
    return time.monotonic() - began


@pytest.fixture(name="until")
def until_fixture():
    return until


@pytest.fixture
async def client():
    async with serve() as client:
        yield client


@pytest.fixture
async def openai_client(client):
    async with openai.AsyncOpenAI(base_url=f"{client.running.url}/v1", api_key="none", max_retries=0) as api:
        yield api


@pytest.fixture(scope="session")
def worker_with():
    """Return a context manager: `async with worker_with(setting=...) as client` starts a worker with these settings."""
    return serve
