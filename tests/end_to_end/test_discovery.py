import asyncio
import json
import time

import httpx
import pytest

from backends.simulated.serving import serving
from backends.simulated.settings import SHIPPED_MODEL, WorkerSettings
from router.app import GatewayProcess
from router.config.model import (
    Config,
    DiscoveryConfig,
    DiscoverySourceConfig,
    HealthConfig,
    ResidencyConfig,
)
from router.workers.watcher import SPREAD_S

WORKERS = 2_000


def settings(file, **health):
    source = DiscoverySourceConfig(file=str(file))
    return Config(
        host="127.0.0.1",
        port=0,
        admin_port=0,
        discovery=DiscoveryConfig(sources={"lab": source}),
        health=HealthConfig(**health),
        residency=ResidencyConfig(self_test=False, kv_events=False),
    )


class Gateway:
    def __init__(self, file, **health):
        self._file = file
        file.write_text("[]")
        self.system = GatewayProcess(settings(file, **health))

    async def __aenter__(self):
        await self.system.start()
        self.admin = httpx.AsyncClient(base_url=f"http://{_place(self.system.ports.admin.listener)}", timeout=30)
        self.public = httpx.AsyncClient(base_url=f"http://{_place(self.system.gateway.listeners[0])}", timeout=60)
        return self

    async def __aexit__(self, *_):
        await self.admin.aclose()
        await self.public.aclose()
        await self.system.aclose(0.0)

    def names(self, *urls):
        self._file.write_text(json.dumps(urls))

    async def until(self, path, condition):
        """Ask the admin port until the answer is as wanted; return the seconds of CPU time that this process took.

        On a machine with other work to do, seconds of the clock say nothing about the gateway.
        """
        began_s, end_s = time.process_time(), time.monotonic() + 60
        while not condition(await self.admin.get(path)):
            assert time.monotonic() < end_s, f"{path} is not as wanted after a minute"
            await asyncio.sleep(0.02)
        return time.process_time() - began_s


def _place(listener):
    host, port = listener.getsockname()[:2]
    return f"{host}:{port}"


async def test_a_worker_that_a_source_lets_go_finishes_its_stream(tmp_path):
    async with (
        serving(WorkerSettings(time_scale=1.0, kv_events=False)) as worker,
        Gateway(tmp_path / "w.json") as gateway,
    ):
        name = worker.url.removeprefix("http://")
        gateway.names(worker.url)
        await gateway.until(
            f"/admin/v1/workers/{name}", lambda reply: reply.is_success and reply.json()["state"] == "ready"
        )
        body = {"model": SHIPPED_MODEL, "prompt": "one two three", "max_tokens": 150, "stream": True}
        async with gateway.public.stream("POST", "/v1/completions", json=body) as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            gateway.names()
            await gateway.until(f"/admin/v1/workers/{name}", lambda reply: reply.json()["leaving"])
            rest = [line async for line in lines]
        assert rest[-2:] == ["data: [DONE]", ""]
        await gateway.until(f"/admin/v1/workers/{name}", lambda reply: reply.status_code == 404)


@pytest.mark.slow
async def test_two_thousand_workers_are_listed_in_time_and_their_first_probes_are_spread(tmp_path):
    """One server on every loopback address is 2,000 workers."""
    every = WorkerSettings(host="0.0.0.0", kv_events=False)
    async with (
        serving(every) as worker,
        Gateway(tmp_path / "w.json", probe_interval_s=60) as gateway,
    ):
        port = worker.url.rpartition(":")[2]
        urls = [f"http://127.1.{number // 250}.{number % 250 + 1}:{port}" for number in range(WORKERS)]
        began_s = time.monotonic()
        gateway.names(*urls)
        assert await gateway.until("/admin/v1/workers", lambda reply: len(reply.json()["workers"]) == WORKERS) < 5
        share = (time.monotonic() - began_s) / SPREAD_S
        assert gateway.system.fleet.serving <= WORKERS * share, "the first probes take 30 s"
        path = "/admin/v1/workers/" + urls[0].removeprefix("http://")
        gateway.names(*urls[1:])
        assert await gateway.until(path, lambda reply: reply.status_code == 404 or reply.json()["leaving"]) < 1
        gateway.names(*urls)
        assert await gateway.until(path, lambda reply: reply.is_success and not reply.json()["leaving"]) < 1
