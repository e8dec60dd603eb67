"""An endpoint with two data-parallel ranks: a candidate, a publisher and a load report each."""

import json

import httpx
import pytest

from policies.view import Residency
from router.config.model import Config, HealthConfig, ResidencyConfig
from tests.support.waiting import eventually

HEALTH = HealthConfig(probe_interval_s=0.05)
CONFIG = Config(health=HEALTH, residency=ResidencyConfig(self_test=False))


def metrics_page(ranks):
    lines = []
    for rank in ranks:
        lines.append(f'vllm:num_requests_running{{engine="{rank}"}} {rank + 5}')
        lines.append(f'vllm:cache_config_info{{engine="{rank}",block_size="4",num_gpu_blocks="1000"}} 1')
    return "\n".join(lines) + "\n"


@pytest.fixture
async def publishers(wire, context):
    pair = [wire.Publisher(context), wire.Publisher(context)]
    yield pair
    for publisher in pair:
        publisher.close()


async def test_each_rank_has_its_own_view_and_load(wire, publishers, watching):
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
    its = watching(CONFIG)
    residency = its.residency
    async with wire.answering(lambda request: httpx.Response(200, text=pages[request.url.path])) as (_, at):
        endpoint = its.follow(at.url)
        await eventually(lambda: len(endpoint.candidates) == 2)
        slots = [candidate.slot for candidate in endpoint.candidates]
        await eventually(lambda: all(residency.slot(slot).state().residency is Residency.EXACT for slot in slots))
        for index, ids in enumerate(tokens):
            found = residency.match(wire.prompt_of([*ids, 1]), slots)
            assert [found[slot].tokens for slot in slots] == [8 * (index == 0), 8 * (index == 1)]
        await eventually(lambda: all(candidate.load is not None for candidate in endpoint.candidates))
        assert [candidate.load.running for candidate in endpoint.candidates] == [7, 8]

        pages["/metrics"], pages["/kv_event_sources"] = metrics_page((2,)), json.dumps({"2": sources["2"]})
        await eventually(lambda: len(endpoint.candidates) == 1)
        await eventually(lambda: residency.slot(endpoint.candidates[0].slot).state().residency is Residency.EXACT)
        assert list(its.watcher.statistics()["endpoints"][endpoint.id]["subscriptions"]) == [endpoint.id]
