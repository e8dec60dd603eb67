from __future__ import annotations

import json

import pytest

from backends.worker import LoadReport, WorkerFacts
from tests.support.answers import answer_json
from tests.support.gateway_rig import FACTS
from tests.support.raw_client import PLAIN, post


class Asking:
    """Lets every placed request ask, and records the requests."""

    def __init__(self):
        self.asked = []

    def asks_again(self, slot, ticket_id, now_s):
        self.asked.append((slot, ticket_id))
        return True


@pytest.fixture
async def asking(rig):
    """`await asking(script, load, version)`: a gateway whose requests all may ask, and the record of them."""

    async def build(script, load=None, version="0.33.0", **settings):
        relearn = Asking()
        facts = WorkerFacts(version=version, models=FACTS.models, caches=FACTS.caches)
        gate = await rig(script, facts=facts, relearn=relearn, **settings)
        gate.fleet.endpoints[0].candidates[0].load = load
        return gate, relearn

    return build


async def test_a_request_carries_the_report_field(asking):
    gate, relearn = await asking(answer_json)
    await gate.ask(post(body=PLAIN))
    body = b'{"model":"m","messages":[],"vllm_xargs":{"other":[1,"x"]}}'
    await gate.ask(post(body=body))
    first, second = (json.loads(request.body) for request in gate.workers[0].requests)
    assert first == {**json.loads(PLAIN), "vllm_xargs": {"kv_cache_report_mode": "full"}}
    assert second["vllm_xargs"] == {"kv_cache_report_mode": "full", "other": [1, "x"]}
    assert len(relearn.asked) == gate.gateway.statistics()["relearn"]["asked"] == 2


@pytest.mark.parametrize(
    ("path", "prompt"),
    [
        ("/v1/completions", b'"prompt":"x"'),
        ("/v1/messages", b'"max_tokens":1,"messages":[{"role":"user","content":"x"}]'),
        ("/v1/responses", b'"input":"x"'),
    ],
)
async def test_every_path_placed_by_prefix_carries_the_report_field(asking, path, prompt):
    gate, _ = await asking(answer_json)
    await gate.ask(post(path.encode(), body=b'{"model":"m",' + prompt + b"}"))
    sent = json.loads(gate.workers[0].requests[0].body)
    assert sent["vllm_xargs"] == {"kv_cache_report_mode": "full"}


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","messages":[],"vllm_xargs":{"kv_cache_report_mode":"incremental"}}',
        b'{"model":"m","messages":[],"vllm_xargs":null}',
        b'{"model":"m","messages":[],"prompt_logprobs":1}',
        b'{"model":"m","messages":[],"n":2}',
    ],
)
async def test_other_requests_do_not_ask_for_a_report(asking, body):
    gate, relearn = await asking(answer_json)
    await gate.ask(post(body=body))
    assert gate.workers[0].requests[0].body == body and relearn.asked == []


@pytest.mark.parametrize(
    ("version", "waiting", "kv_usage", "asks"),
    [
        ("0.33.0", 0, 0.5, True),
        ("v0.26.1rc1", 0, 0.5, True),
        (None, 0, 0.5, True),
        ("0.25.1", 0, 0.5, False),
        ("0.33.0", 1, 0.5, False),
        ("0.33.0", 0, 0.95, False),
    ],
)
async def test_busy_and_old_workers_are_not_asked_for_a_report(asking, version, waiting, kv_usage, asks):
    load = LoadReport(0, 1, waiting, kv_usage)
    gate, relearn = await asking(answer_json, load, version)
    await gate.ask(post(body=PLAIN))
    assert bool(relearn.asked) is asks
    assert (b"vllm_xargs" in gate.workers[0].requests[0].body) is asks
