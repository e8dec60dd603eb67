"""Prefix routing survives a restart: compare the cached share before and after a gateway starts under load.

The workers publish no KV events and report no cached tokens. So the gateway starts with empty views in front of warm
caches, and no quiet moment lets it test the workers. The engines of the workers count the share.
"""

import asyncio
import contextlib
import itertools
from dataclasses import dataclass

import httpx
import pytest

from backends.simulated.serving import RunningWorker, serving
from backends.simulated.settings import WorkerSettings
from loadtest.fleet.ports import free_ports
from loadtest.fleet.process import Process, warmroute
from loadtest.load.http import Client
from loadtest.load.seen import chat

pytestmark = [pytest.mark.slow, pytest.mark.measures]

WORKERS, CLIENTS, TURNS = 4, 16, 8
SETTLE, WINDOW = CLIENTS * TURNS, 640
"""Requests to skip, then requests to count. A conversation that a start has interrupted ends within the skipped
ones.
"""
KEPT = 0.95
WINDOWS = 3
SYSTEM = "Please explain the importance of renewable energy for the global economy and the environment. "
QUESTION = "Which of the following countries would become more important, and what would change for the others? "
MODES = {
    "default vLLM": {},
    "--disable-log-stats": {"log_stats": False},
    "bare OpenAI server": {"openai_only": True},
}


@dataclass
class Counts:
    queries: int
    hits: int


class Site:
    """Workers in this process, clients that send without a pause, and a series of gateways on one port."""

    def __init__(self, workers: list[RunningWorker], folder) -> None:
        self.workers = workers
        self.port, self.admin_port = free_ports(1), free_ports(1)
        self.path = str(folder / "takeover.sock")
        self.gateways: list[Process] = []
        self.answered = 0
        self._numbers = itertools.count()
        self._progress = asyncio.Event()

    async def gateway(self) -> Process:
        urls = [flag for worker in self.workers for flag in ("--worker", worker.url)]
        places = ["--port", str(self.port), "--admin-port", str(self.admin_port), "--takeover", self.path]
        started = Process(warmroute("serve", *places, *urls), "gateway")
        self.gateways.append(started)
        await asyncio.to_thread(started.wait_for, "admin port")
        return started

    def counts(self) -> Counts:
        engines = [worker.worker.engine.statistics() for worker in self.workers]
        total = [
            sum(int(engine[name]) for engine in engines) for name in ("prefix_queries_tokens", "prefix_hits_tokens")
        ]
        return Counts(*total)

    async def client(self) -> None:
        """Hold one conversation after the other, a turn at a time."""
        while True:
            messages = [{"role": "system", "content": f"Conversation {next(self._numbers)}. " + SYSTEM * 6}]
            for turn in range(TURNS):
                question = f"Question {turn} of {next(self._numbers)}: " + QUESTION * 4
                messages.append({"role": "user", "content": question})
                messages.append({"role": "assistant", "content": await self._answer(messages)})

    async def _answer(self, messages: list[dict[str, str]]) -> str:
        body = {"model": "warmroute-simulated", "messages": messages, "max_tokens": 8, "ignore_eos": True}
        while True:
            client = Client(f"http://127.0.0.1:{self.port}")
            try:
                timing = await chat(client, body, asyncio.get_running_loop().time())
            except OSError:
                timing = None
            finally:
                client.close()
            if timing is not None and timing.error is None:
                self.answered += 1
                self._progress.set()
                return timing.text
            await asyncio.sleep(0.05)  # the gateway is away

    async def share(self) -> float:
        """Return the share of the prompt tokens of the next requests that the workers had cached."""
        await self.after(SETTLE)
        before = self.counts()
        await self.after(WINDOW)
        now = self.counts()
        return (now.hits - before.hits) / (now.queries - before.queries)

    async def regained(self, before: float) -> float:
        """Return the share. Count again after a low result, which a busy machine may cause: the share of a lost view
        stays low.
        """
        for _ in range(WINDOWS):
            share = await self.share()
            if share >= KEPT * before:
                break
        return share

    async def after(self, requests: int) -> None:
        until = self.answered + requests
        async with asyncio.timeout(100):
            while self.answered < until:
                self._progress.clear()
                await self._progress.wait()

    def residencies(self) -> list[str]:
        listed = httpx.get(f"http://127.0.0.1:{self.admin_port}/admin/v1/workers").json()["workers"]
        return [candidate["residency"] for worker in listed for candidate in worker["candidates"]]


@pytest.fixture
async def site(tmp_path):
    """Return a function that makes a site whose workers have the given settings."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(**settings) -> Site:
            plain = {"kv_events": False, "prompt_tokens_details": False, "time_scale": 0.1, "jitter": 0.0}
            workers = [
                await stack.enter_async_context(serving(WorkerSettings(**plain, seed=seed, **settings)))
                for seed in range(WORKERS)
            ]
            made = Site(workers, tmp_path)
            stack.callback(lambda: [gateway.stop() for gateway in made.gateways])
            return made

        yield start


@pytest.mark.timeout(300)
@pytest.mark.parametrize("settings", MODES.values(), ids=MODES)
async def test_the_cached_share_survives_a_start_under_load(site, settings):
    its = await site(**settings)
    first = await its.gateway()
    clients = [asyncio.create_task(its.client()) for _ in range(CLIENTS)]
    try:
        before = await its.share()
        first.kill()
        await its.gateway()
        restarted = await its.regained(before)
        await its.gateway()
        taken_over = await its.regained(before)
        print(f"{before:.3f} before, {restarted:.3f} after a restart, {taken_over:.3f} after a take-over")
        assert await asyncio.to_thread(its.residencies) == ["approximate"] * WORKERS
        assert restarted >= KEPT * before and taken_over >= KEPT * before, (before, restarted, taken_over)
        assert before > 0.5
    finally:
        for task in clients:
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
