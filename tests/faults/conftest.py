"""Whole fleets as processes, load that continues while something breaks, and checks of the result.

Every test ends with `Lab.at_rest`: nothing is reserved, and there are no more descriptors and tasks than before.
"""

import asyncio
import itertools
import json
import socket
import struct
import time
from contextlib import asynccontextmanager

import pytest

from loadtest.load.http import Client
from loadtest.load.seen import Kind, observe
from loadtest.soak.fleet import GATEWAY, Admin, Fleet, FleetShape
from loadtest.soak.gauges import Gauges, left_over
from tests.support.exchanges import exchanged
from tests.support.scripted_worker import ScriptedWorker

ANSWER_TOKENS = 30
SPARE_DESCRIPTORS = 4
SPARE_TASKS = 3
MODEL = "warmroute-simulated"
LOADS = itertools.count()
FAILED = pytest.StashKey[bool]()
"""Whether a test has failed, in its setup or its call."""


class Load:
    """Closed-loop clients. `seen` holds every request that has ended."""

    def __init__(self):
        self.seen = []
        self.until_s = float("inf")

    def kinds(self):
        return {f"{seen.kind}:{seen.code}" if seen.code else str(seen.kind) for seen in self.seen}

    def of(self, kind):
        return [seen for seen in self.seen if seen.kind is kind]

    def answered_by(self, worker, since=0):
        return [seen for seen in self.seen[since:] if seen.worker == worker.id and seen.kind is Kind.COMPLETE]


class Lab:
    """One fleet under test. Of the `clients` of `load`, every second one streams, and every third one opens a
    connection for each request.
    """

    def __init__(self, fleet):
        self.fleet = fleet
        self.admin = Admin(fleet.admin_url)
        self.workers = fleet.workers

    @property
    def address(self):
        host, port = self.fleet.url.removeprefix("http://").split(":")
        return host, int(port)

    @property
    def gauges(self):
        return Gauges(self.fleet.gateway.pid)

    async def begin(self):
        assert await self.admin.until_ready([worker.id for worker in self.workers], 60)
        self.before = await self._settled()

    async def _settled(self):
        """Wait until two checks in a row find no activity, because probes and event links open and close
        connections.
        """
        last = None
        for _ in range(150):
            metrics = await self.admin.metrics()
            now = (self.gauges.descriptors, int(metrics["warmroute_tasks"]))
            empty = not left_over(await self.admin.workers(), metrics) and not metrics["warmroute_worker_connections"]
            if empty and now == last:
                return now
            last = now
            await asyncio.sleep(0.1)
        raise AssertionError(f"not at rest: {left_over(await self.admin.workers(), metrics)}, {now}")

    async def at_rest(self, limit_s=20.0):
        """Check that the ledger is empty, and that there are no more descriptors and tasks than before."""
        end_s = time.monotonic() + limit_s
        while True:
            metrics = await self.admin.metrics()
            found = left_over(await self.admin.workers(), metrics)
            descriptors, tasks = self.gauges.descriptors, int(metrics["warmroute_tasks"])
            if (
                not found
                and descriptors <= self.before[0] + SPARE_DESCRIPTORS
                and tasks <= self.before[1] + SPARE_TASKS
            ):
                return
            assert time.monotonic() < end_s, f"{found}; {self.before} before, {(descriptors, tasks)} after"
            await asyncio.sleep(0.1)

    def body(self, tokens=ANSWER_TOKENS, text="Hello", stream=True, model=MODEL):
        body = {"model": model, "max_tokens": tokens, "ignore_eos": True}
        body["messages"] = [{"role": "user", "content": text}]
        return body | ({"stream": True, "stream_options": {"include_usage": True}} if stream else {})

    def raw(self, **options):
        """Return one request as bytes: head and body."""
        body = json.dumps(self.body(**options)).encode()
        lines = ["POST /v1/chat/completions HTTP/1.1", "host: x", "content-type: application/json"]
        head = "\r\n".join([*lines, f"content-length: {len(body)}", "", ""])
        return head.encode(), body

    async def ask(self, **options):
        client = Client(self.fleet.url)
        try:
            return await observe(client, "/v1/chat/completions", self.body(**options))
        finally:
            client.close()

    @asynccontextmanager
    async def load(self, clients=8, tokens=ANSWER_TOKENS, keep=False):
        """Run load for the length of the ``with`` block, then wait for every request in progress.

        No two loads send the same body: tests share a fleet, and a body that two workers died of is refused.
        """
        load, client, name = Load(), Client(self.fleet.url), next(LOADS)
        loop = asyncio.get_running_loop()

        async def play(index):
            number = 0
            headers = {"connection": "close"} if index % 3 == 0 and not keep else None
            while loop.time() < load.until_s:
                number += 1
                text = f"Load {name}, client {index}, question {number}: why? " + "And why else? " * (index % 8 * 10)
                body = self.body(tokens, text, stream=index % 2 == 0)
                seen = await observe(client, "/v1/chat/completions", body, headers=headers)
                load.seen.append(seen)
                if seen.kind is not Kind.COMPLETE:
                    await asyncio.sleep(0.05)

        tasks = [loop.create_task(play(index)) for index in range(clients)]
        try:
            await self.eventually(lambda: len(load.of(Kind.COMPLETE)) >= clients, 30)
            yield load
            load.until_s = loop.time()
            await asyncio.wait_for(asyncio.gather(*tasks), 40)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            client.close()

    async def eventually(self, condition, limit_s=20.0):
        end_s = time.monotonic() + limit_s
        while True:
            value = condition()
            value = await value if hasattr(value, "__await__") else value
            if value:
                return value
            assert time.monotonic() < end_s, f"did not come within {limit_s} s"
            await asyncio.sleep(0.02)

    async def engine(self, worker, metric):
        client = Client(f"http://{worker.id}")
        try:
            async with exchanged(client, client.request_bytes("GET", "/metrics")) as response:
                lines = (await response.read()).decode().splitlines()
        finally:
            client.close()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0] == metric)

    async def state(self, worker):
        return (await self.admin.states())[worker if isinstance(worker, str) else worker.id]

    async def connect(self, receive_buffer_bytes=None):
        made = socket.socket()
        if receive_buffer_bytes:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        made.setblocking(False)
        await asyncio.get_running_loop().sock_connect(made, self.address)
        return made


def reset(connection):
    """Close the connection with RST instead of FIN."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@pytest.fixture
def resets():
    return reset


LABELS = 'engine="0",model_name="slow"'
PAGES = {
    b"/health": b"{}",
    b"/version": b'{"version":"0.33.0"}',
    b"/kv_event_sources": b"{}",
    b"/metrics": "\n".join(
        [
            f"vllm:num_requests_running{{{LABELS}}} 0",
            f"vllm:num_requests_waiting{{{LABELS}}} 0",
            f"vllm:kv_cache_usage_perc{{{LABELS}}} 0",
            'vllm:cache_config_info{block_size="16",num_gpu_blocks="27500",enable_prefix_caching="True",engine="0"} 1',
            "",
        ]
    ).encode(),
}


def scripted_worker(script, model=MODEL, root=None):
    """Run a worker in the test's process. The stand-in answers probes, and `script` answers requests."""
    cards = {"object": "list", "data": [{"id": model, "object": "model", "root": root or model}]}
    return ScriptedWorker(script, pages={**PAGES, b"/v1/models": json.dumps(cards).encode()})


def fleet_of(tmp_path_factory, config=(), **shape):
    # idle connections to workers close early, so that a test ends without a long wait
    laid_over = {"timeouts": {**GATEWAY["timeouts"], "upstream_idle_s": 1}, **dict(config)}
    shape = FleetShape(**{"workers": 3, "time_scale": 3.0, "config": laid_over, **shape})
    return Fleet(shape, tmp_path_factory.mktemp("fleet"))


@pytest.fixture(scope="session")
def shared_fleet(tmp_path_factory):
    """Three workers and a gateway, shared by all tests that leave them unchanged."""
    with fleet_of(tmp_path_factory) as running:
        yield running


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.when != "teardown":
        item.stash[FAILED] = report.failed
    return report


@pytest.fixture
def restore(request):
    """Return a function that repairs a fleet for the next test.

    After a test that failed, every process is a new one: no request, suspected body, model or learned speed stays.
    """

    async def repair(fleet):
        failed = request.node.stash.get(FAILED, True)  # not set yet: the setup has failed
        for worker in fleet.workers:
            fleet.resume(worker)
            if failed:
                await asyncio.to_thread(fleet.kill, worker)
            if not worker.process.alive:
                await asyncio.to_thread(fleet.restart, worker)
        if failed:
            await asyncio.to_thread(fleet.restart_gateway)

    return repair


@pytest.fixture
async def lab(shared_fleet, restore):
    made = Lab(shared_fleet)
    try:
        await made.begin()
        yield made
        for worker in shared_fleet.workers:
            await made.admin.drain(worker.id, False)
    finally:
        await made.admin.aclose()
        await restore(shared_fleet)


@pytest.fixture
async def own_lab(tmp_path_factory):
    """Return a function that starts a fleet for this test alone."""
    made = []

    async def start(ready=True, **shape):
        fleet = fleet_of(tmp_path_factory, **shape)
        await asyncio.to_thread(fleet.__enter__)
        lab = Lab(fleet)
        made.append((fleet, lab))
        if ready:
            await lab.begin()
        return lab

    yield start
    for fleet, lab in made:
        await lab.admin.aclose()
        await asyncio.to_thread(fleet.__exit__)


@pytest.fixture
async def scripted():
    """Start a worker that answers by a script. Register it with `joins`."""
    made = []

    async def start(script, **options):
        made.append(await scripted_worker(script, **options).start())
        return made[-1]

    yield start
    for worker in made:
        await worker.stop()


@pytest.fixture
def joins():
    """Return a function that adds a scripted worker to a lab's fleet for the length of a ``with`` block, ready for
    requests.
    """

    @asynccontextmanager
    async def join(lab, worker):
        (await lab.admin.ask("POST", "/admin/v1/workers", json={"url": f"http://{worker.id}"})).raise_for_status()
        try:
            await lab.eventually(lambda: _ready(lab, worker))
            yield worker
        finally:
            await lab.admin.ask("DELETE", f"/admin/v1/workers/{worker.id}")

    return join


async def _ready(lab, worker):
    return await lab.state(worker) == "ready"
