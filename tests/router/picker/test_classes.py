"""Classes of requests at the picker, while the only worker computes a long prompt. Its prefill ends by prediction."""

import asyncio

import pytest

from backends.worker import RankCache, ServedModel, WorkerFacts
from router.picker.protocol.names import DROP_REASON
from tests.support.gateway_rig import COMPILED
from tests.support.gateway_stream import body, chat, picked, picker_rig, refused, removed, request_headers, set_headers
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(COMPILED, reason="it counts what waits inside")
ONE = ("10.0.0.1:8000",)
LARGE = WorkerFacts(version="0.33.0", models=(ServedModel("m"),), caches={0: RankCache(16, 100_000, True)})
CLASSES = {"chat": {"share": 1.0}, "batch": {"share": 0.0}, "hasty": {"max_wait_s": 0.3}}
SETTINGS = {"classes": CLASSES, "auth": {"allow": ["priority"]}, "picker": {"pick_s": 8.0}}
LONG_BYTES = 40_000
"""Half a second of prefill, as long as no speed is learned."""


def long(text):
    return body(chat(text * (LONG_BYTES // len(text))))


def waits(rig):
    return {name: one["waiting"] for name, one in rig.picker.statistics()["classes"]["waiting"].get("m", {}).items()}


async def asks(rig, name, text, *headers):
    own = [("x-request-class", name), *headers]
    return await rig.stream().send(request_headers(headers=own), long(text))


async def enters(rig, name, text, *headers):
    before = waits(rig).get(name, 0)
    stream = await asks(rig, name, text, *headers)
    await eventually(lambda: waits(rig).get(name) == before + 1)
    return stream


async def begin(rig):
    assert picked((await rig.ask(request_headers(), long("first")))[0]) == ONE[0]


async def test_a_chat_is_picked_for_before_batch_work_that_came_first():
    async with picker_rig(ONE, facts=LARGE, **SETTINGS) as rig:
        await begin(rig)
        batch = await enters(rig, "batch", "work")
        chat_ = await enters(rig, "chat", "talk")
        assert picked(await chat_.next()) == ONE[0]
        assert waits(rig) == {"chat": 0, "batch": 1, "hasty": 0}
        assert picked(await batch.next()) == ONE[0]
        assert waits(rig)["batch"] == 0
        assert rig.picker.statistics()["held"] == 0


async def test_a_pick_that_would_take_too_long_is_refused_at_once_with_reason_and_hint():
    async with picker_rig(ONE, facts=LARGE, **SETTINGS) as rig:
        await begin(rig)
        await enters(rig, "chat", "talk")
        stream = await asks(rig, "hasty", "fast")
        answer = await stream.next(0.4)
        status, error = refused(answer)
        assert (status, error["code"]) == (429, "wait_too_long")
        headers = set_headers(answer)
        assert (headers["x-warmroute-refused"], headers["x-should-retry"]) == ("predicted-wait", "true")
        assert headers[DROP_REASON] == "rejected-saturated" and "retry-after" not in headers, "no drain rate is known"
        assert rig.picker.statistics()["classes"]["refused"]["hasty"] == 1


async def test_a_request_that_has_waited_for_as_long_as_a_pick_may_take_is_refused():
    async with picker_rig(ONE, facts=LARGE, **SETTINGS | {"picker": {"pick_s": 0.2}}) as rig:
        await begin(rig)
        stream = await asks(rig, "chat", "talk")
        answer = await stream.next()
        assert refused(answer)[0] == 429
        assert set_headers(answer)["x-warmroute-refused"] == "waited"
        assert set_headers(answer)[DROP_REASON] == "rejected-ttl-expired"
        assert waits(rig)["chat"] == 0
        assert sum(rig.load.values()) == 1, "nothing is reserved for it"
        assert rig.picker.statistics()["held"] == 0, "the policy holds nothing"


async def test_a_gateway_that_leaves_frees_the_place():
    async with picker_rig(ONE, facts=LARGE, **SETTINGS) as rig:
        await begin(rig)
        gone, stays = await enters(rig, "chat", "gone"), await enters(rig, "chat", "talk")
        gone.call.cancel()
        await eventually(lambda: waits(rig)["chat"] == 1)
        assert picked(await stays.next()) == ONE[0]


async def test_a_worker_that_joins_is_picked_for_what_waits():
    async with picker_rig(("10.0.0.1:8000", "10.0.0.2:8000"), facts=LARGE, ready=False, **SETTINGS) as rig:
        rig.ready(*ONE, facts=LARGE)
        await begin(rig)
        one = await enters(rig, "chat", "talk")
        rig.ready("10.0.0.2:8000", facts=LARGE)
        assert picked(await one.next(0.4)) == "10.0.0.2:8000"


async def test_claims_reach_no_worker_and_those_of_others_are_ignored():
    async with picker_rig(ONE, facts=LARGE, classes=CLASSES) as rig:
        sent = [("x-request-class", "batch"), ("x-llm-d-inference-ttl", "1ms"), ("x-kept", "yes")]
        head, *_ = await rig.ask(request_headers(headers=sent), long("first"))
        assert removed(head) >= {"x-request-class", "x-llm-d-inference-ttl"} and "x-kept" not in removed(head)
        stream = await rig.stream().send(request_headers(headers=sent), long("talk"))
        await eventually(lambda: waits(rig).get("chat") == 1)
        assert picked(await stream.next()) == ONE[0]


async def test_explain_says_the_turn_of_a_request():
    async with picker_rig(ONE, facts=LARGE, **SETTINGS) as rig:
        await begin(rig)
        await enters(rig, "chat", "talk")
        seen = await rig.picker.preview("/v1/chat/completions", {"x-request-class": "batch"}, chat("x" * LONG_BYTES))
        assert (seen.turn["request_class"], seen.turn["action"]) == ("batch", "wait")
        assert waits(rig)["chat"] == 1


async def test_many_waiting_requests_all_get_a_pick():
    async with picker_rig(("10.0.0.1:8000", "10.0.0.2:8000"), facts=LARGE, **SETTINGS) as rig:
        streams = [await asks(rig, name, f"{name}{n:04}") for n in range(4) for name in ("chat", "batch")]
        answers = await asyncio.gather(*(stream.next() for stream in streams))
        assert {picked(answer) for answer in answers} == {"10.0.0.1:8000", "10.0.0.2:8000"}
        assert sum(waits(rig).values()) == 0


async def test_a_shadow_holds_and_refuses_no_pick():
    async with picker_rig(ONE, facts=LARGE, admission="shadow", **SETTINGS) as rig:
        await begin(rig)
        for name in ("chat", "hasty"):
            assert picked(await (await asks(rig, name, "talk")).next()) == ONE[0]
        counts = {labels: n for name, labels, n in rig.picker.readings() if name.endswith("shadow_requests")}
        assert (counts["chat", "waits"], counts["hasty", "refused"]) == (1, 1)
