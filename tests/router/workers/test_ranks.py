"""An endpoint with two data-parallel ranks: a candidate, a publisher and a load report each."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from backends.worker import parse_endpoint
from policies.view import Residency
from router.config.model import Config, HealthConfig, ResidencyConfig
from router.placement.fleet.fleet import Fleet
from router.residency.residency_map import ResidencyMap
from router.tokenization.prompt_identifier import PromptIdentifier
from router.workers.watcher import Watcher
from tests.support.waiting import eventually

HEALTH = HealthConfig(probe_interval_s=0.05)
CONFIG = Config(health=HEALTH, residency=ResidencyConfig(self_test=False))


def metrics_page(ranks):
    lines = []
    for rank in ranks:
        lines.append(f'vllm:num_requests_running{{engine="{rank}"}} {rank + 5}')
        lines.append(f'vllm:cache_config_info{{engine="{rank}",block_size="4",num_gpu_blocks="1000"}} 1')
    return "\n".join(lines) + "\n"


@asynccontextmanager
async def pages_served(pages):
    async def serve(reader, writer):
        try:
            path = (await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)[1].decode()
            body = pages[path].encode()
            writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@pytest.fixture
async def publishers(wire, context):
    pair = [wire.Publisher(context), wire.Publisher(context)]
    yield pair
    for publisher in pair:
        publisher.close()


async def test_each_rank_has_its_own_view_and_load(wire, publishers, metrics):
    tokens = [list(range(10, 18)), list(range(30, 38))]
    for publisher, ids in zip(publishers, tokens, strict=True):
        publisher.publish(wire.stored(ids, 1))
    sources = {
        # As in the second half of a hybrid deployment: ranks count within the endpoint.
        str(rank): {"endpoint": publisher.endpoint, "replay_endpoint": publisher.replay_endpoint, "topic": "kv"}
        for rank, publisher in zip((2, 3), publishers, strict=True)
    }
    pages = {
        "/health": "",
        "/version": '{"version": "0.33.0"}',
        "/v1/models": '{"data": [{"id": "m"}]}',
        "/metrics": metrics_page((2, 3)),
        "/kv_event_sources": json.dumps(sources),
    }
    residency, identity = ResidencyMap(), PromptIdentifier(CONFIG)
    fleet = Fleet(HEALTH, residency)
    watcher = Watcher(fleet, residency, identity, CONFIG, metrics.registry)
    async with pages_served(pages) as url:
        endpoint = fleet.add(parse_endpoint(url), 0.0)
        watcher.start()
        await eventually(lambda: len(endpoint.candidates) == 2)
        slots = [candidate.slot for candidate in endpoint.candidates]
        await eventually(lambda: all(residency.state(slot).residency is Residency.EXACT for slot in slots))
        for index, ids in enumerate(tokens):
            found = residency.match(wire.prompt_of([*ids, 1]), slots)
            assert [found[slot].tokens for slot in slots] == [8 * (index == 0), 8 * (index == 1)]
        await eventually(lambda: all(candidate.load is not None for candidate in endpoint.candidates))
        assert [candidate.load.running for candidate in endpoint.candidates] == [7, 8]

        pages["/metrics"], pages["/kv_event_sources"] = metrics_page((2,)), json.dumps({"2": sources["2"]})
        await eventually(lambda: len(endpoint.candidates) == 1)
        await eventually(lambda: residency.state(endpoint.candidates[0].slot).residency is Residency.EXACT)
        assert list(watcher.statistics()["endpoints"][endpoint.id]["subscriptions"]) == [endpoint.id]
        await watcher.aclose()
        await identity.aclose()
