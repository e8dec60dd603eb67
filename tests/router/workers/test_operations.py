"""Operations through a whole gateway and embedded workers: what it does with traffic, views and models afterwards."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace

import httpx
import msgspec
import pytest

from backends.simulated.serving import serving
from router.app import GatewayProcess
from router.config.model import Config
from tests.router.workers.test_watcher import FAST, eventually

ALLOWED = ["pause", "resume", "reset-prefix-cache", "load-lora", "unload-lora"]
PROMPT = "the quick brown fox jumps over the lazy dog " * 20


class Site:
    def __init__(self, system, workers, client):
        self.system, self.workers, self.client = system, workers, client
        self.ids = [worker.url.removeprefix("http://") for worker in workers]
        host, port = system.gateway.listeners[0].getsockname()[:2]
        self.public = f"http://{host}:{port}"

    async def ask(self, model=FAST.model_name):
        body = {"model": model, "prompt": PROMPT, "max_tokens": 1}
        return await self.client.post(f"{self.public}/v1/completions", json=body)

    async def operate(self, operation, workers=None, **more):
        url = f"http://{self.system.ports.admin.address}/admin/v1/worker-operations"
        return await self.client.post(url, json={"operation": operation, "workers": workers, **more})

    def blocks(self):
        residency, fleet = self.system.residency, self.system.fleet
        return [residency.slot(fleet.get(name).candidates[0].slot).state().blocks for name in self.ids]


@pytest.fixture
async def site():
    async with AsyncExitStack() as stack:

        async def start(**changes):
            own = replace(FAST, dev_mode=True, runtime_lora=True, **changes)
            workers = [await stack.enter_async_context(serving(own)) for _ in range(2)]
            config = {
                "host": "127.0.0.1",
                "port": 0,
                "admin_port": 0,
                "worker_operations": ALLOWED,
                "residency": {"self_test": False},
                "health": {"probe_interval_s": 0.1},
                "workers": [{"url": worker.url} for worker in workers],
            }
            system = GatewayProcess(msgspec.convert(config, Config))
            await system.start()
            stack.push_async_callback(system.aclose, 0.0)
            client = await stack.enter_async_context(httpx.AsyncClient(timeout=20))
            site = Site(system, workers, client)
            await eventually(lambda: system.fleet.serving == 2)
            return site

        yield start


async def test_a_paused_worker_gets_no_requests_until_it_is_resumed(site):
    site = await site()
    paused = site.ids[0]
    assert (await site.operate("pause", [paused])).status_code == 200
    assert site.workers[0].worker.pause_mode == "wait"
    answers = await asyncio.gather(*(site.ask() for _ in range(8)))
    assert {answer.status_code for answer in answers} == {200}
    assert {record.worker for record in site.system.core.log.latest(8)} == {site.ids[1]}
    assert (await site.operate("resume", [paused])).status_code == 200
    assert site.workers[0].worker.pause_mode is None
    await eventually(lambda: site.system.fleet.serving == 2)


async def test_a_reset_empties_an_approximate_view(site):
    site = await site(kv_events=False)
    while not all(site.blocks()):
        assert (await site.ask()).status_code == 200
        for name, blocks in zip(site.ids, site.blocks(), strict=True):
            (site.system.fleet.drain if blocks else site.system.fleet.undrain)(name)
    answer = await site.operate("reset-prefix-cache", all=True)
    assert (answer.status_code, [each["outcome"] for each in answer.json()["results"]]) == (200, ["done", "done"])
    assert site.blocks() == [0, 0]
    site.system.fleet.undrain(site.ids[0])
    assert (await site.ask()).json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert site.system.core.log.latest(1)[0].predicted_cached_tokens == 0


async def test_a_view_from_events_follows_the_event_of_the_reset(site):
    site = await site()
    await site.ask()
    await eventually(lambda: any(site.blocks()))
    used = site.blocks().index(max(site.blocks()))
    assert (await site.operate("reset-prefix-cache", [site.ids[used]])).status_code == 200
    site.system.fleet.drain(site.ids[1 - used])
    assert (await site.ask()).json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    before = len(PROMPT.split())
    await eventually(lambda: 0 < site.blocks()[used] <= before)
    prompt = await site.ask()
    assert prompt.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    record = site.system.core.log.latest(1)[0]
    assert record.predicted_cached_tokens == record.reported_cached_tokens


async def test_a_loaded_adapter_is_served_as_a_model_and_is_gone_after_it_is_unloaded(site, tmp_path):
    site = await site()
    assert (await site.ask("support")).status_code == 404
    loading = {"operation": "load-lora", "model": FAST.model_name, "lora_name": "support", "lora_path": str(tmp_path)}
    assert (await site.operate(**loading)).status_code == 200
    await eventually(lambda: len(site.system.fleet.candidate_sets.of("support").ready) == 2)
    assert (await site.ask("support")).json()["model"] == "support"
    again = await site.operate(**loading)
    assert again.status_code == 207 and "already been loaded" in again.json()["results"][0]["detail"]
    assert (await site.operate("unload-lora", site.ids[:1], lora_name="support")).status_code == 200
    await eventually(lambda: len(site.system.fleet.candidate_sets.of("support").ready) == 1)


async def test_a_worker_that_does_not_offer_it_is_reported_beside_those_that_do(site):
    site = await site()
    site.workers[1].worker.engine.reset_prefix_cache = lambda: False
    answer = await site.operate("reset-prefix-cache", all=True)
    assert answer.status_code == 207
    assert [each["outcome"] for each in answer.json()["results"]] == ["done", "refused"]
