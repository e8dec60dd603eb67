"""Requests of classes while the only worker is busy with a long prompt."""

from functools import partial
from random import Random
from unittest.mock import Mock

import msgspec
import pytest

from router.config.model import TenantConfig
from router.errors import ErrorKind, RequestError
from router.placement.admission.classes import Claim, RequestClass
from router.requests.placing import PlacementGate
from tests.router.placement.admission.conftest import AdmissionRig
from tests.support.answers import answer_stream
from tests.support.busy_worker import AUTH, LONG, RED, busy, enters, named, waits
from tests.support.gateway_rig import COMPILED
from tests.support.raw_client import bearer, post
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(COMPILED, reason="prompts of a given length need the stand-in for the identity")


@pytest.fixture
async def gate(rig):
    """A gateway whose worker computes a long prompt."""
    return partial(busy, rig)


def queued(made):
    return made.gateway.statistics()["tenants"]["red"]["queued"]


async def test_a_chat_overtakes_batch_work(gate):
    made = await gate()
    batch = await enters(made, "batch")
    chat = await enters(made, "chat")
    assert len(made.workers[0].requests) == 1
    await made.worker.answer()
    assert (await made.first.read()).status == 200
    await eventually(lambda: made.worker.waiting)
    assert waits(made) == {"chat": 0, "batch": 1, "hasty": 0}
    await made.worker.answer()
    assert (await chat.read()).status == 200
    await made.worker.answer()
    assert (await batch.read()).status == 200
    assert made.counted("hold_seconds") == [(), ()]
    await eventually(lambda: made.idle)


async def test_a_request_that_would_wait_too_long_is_refused_at_once(gate):
    made = await gate()
    for _ in range(2):
        await enters(made, "chat")
    started_s = made.loop.time()
    reply = await made.ask(post(extra=named(b"hasty")))
    assert made.loop.time() - started_s < 1.0
    assert (reply.status, reply.code) == (429, "wait_too_long")
    assert (reply.header(b"x-warmroute-refused"), reply.header(b"x-should-retry")) == (b"predicted-wait", b"true")
    assert reply.header(b"retry-after") is None, "no drain rate is known"
    assert b"class hasty: its first token would come in about" in reply.body
    assert len(made.workers[0].requests) == 1


async def test_a_request_is_refused_after_its_own_time_to_live(gate):
    made = await gate()
    reply = await made.ask(post(extra=named(b"batch") + b"x-llm-d-inference-ttl: 1500ms\r\n"))
    assert (reply.status, reply.header(b"x-warmroute-refused")) == (429, b"waited")
    assert waits(made)["batch"] == 0
    await made.worker.answer()
    assert (await made.first.read()).status == 200
    await eventually(lambda: made.idle)


async def test_a_client_that_leaves_frees_its_place(gate):
    made = await gate()
    gone, chat = await enters(made, "chat"), await enters(made, "chat")
    gone.leave()
    await eventually(lambda: waits(made)["chat"] == 1)
    for client in (made.first, chat):
        await made.worker.answer()
        assert (await client.read()).status == 200
    assert len(made.workers[0].requests) == 2
    await eventually(lambda: made.idle)


async def test_a_worker_that_joins_takes_what_waits(gate):
    made = await gate()
    chat = await enters(made, "chat")
    await made.add(answer_stream)
    assert (await chat.read()).status == 200


async def test_a_worker_that_leaves_moves_its_requests_to_the_next(gate):
    made = await gate()
    chat = await enters(made, "chat")
    made.fleet.remove(made.fleet.endpoints[0].id)
    await made.add(answer_stream)
    assert (await chat.read()).status == 200
    await eventually(lambda: waits(made)["chat"] == 0)


async def test_a_request_whose_last_worker_leaves_waits_for_another_one_and_counts_once(gate):
    tenants = {"red": {"keys": ["red"], "max_queued_requests": 1, "classes": ["chat"]}}
    made = await gate(auth=AUTH, tenants=tenants, timeouts={"queue_s": 0.3})
    chat = await enters(made, "chat", bearer(RED))
    assert queued(made) == 1
    made.fleet.remove(made.fleet.endpoints[0].id)
    await eventually(lambda: waits(made)["chat"] == 0)
    assert queued(made) == 1
    reply = await chat.read()
    assert (reply.status, reply.code) == (503, "no_worker_available")
    assert queued(made) == 0


async def test_an_offered_request_that_ends_before_it_asks_frees_its_place(gate, monkeypatch):
    tenants = {"red": {"keys": ["red"], "classes": ["chat"]}}
    made = await gate(auth=AUTH, tenants=tenants)
    chat = await enters(made, "chat", bearer(RED))
    quarantined = RequestError(ErrorKind.NO_WORKER, "no worker may have it")
    monkeypatch.setattr(PlacementGate, "within", Mock(side_effect=quarantined))
    await made.worker.answer()
    assert (await chat.read()).status == 503
    assert (waits(made)["chat"], queued(made)) == (0, 0)


async def test_the_queue_is_bounded_and_a_tenants_quota_holds(gate):
    made = await gate(limits={"max_queued_requests": 1})
    await enters(made, "chat")
    reply = await made.ask(post(extra=named(b"chat")))
    assert (reply.status, reply.header(b"x-warmroute-refused")) == (429, b"queue-full")
    tenants = {"red": {"keys": ["red"], "max_queued_requests": 0}}
    other = await gate(auth=AUTH, tenants=tenants)
    reply = await other.ask(post(extra=bearer(RED)))
    assert (reply.status, reply.code) == (503, "tenant_max_queued_requests")


async def test_the_class_of_a_route_and_of_a_tenant(gate):
    routes = [{"name": "night", "match": {"header": {"x-night": "*"}}, "request_class": "batch"}, {"name": "all"}]
    tenants = {"red": {"keys": ["red"], "classes": ["chat"]}}
    made = await gate(auth=AUTH, tenants=tenants, routes=routes)
    await made.send(post(extra=bearer(RED) + b"x-night: 1\r\n"))
    await eventually(lambda: waits(made)["batch"] == 1)
    await made.send(post(extra=bearer(RED) + named(b"hasty")))
    await eventually(lambda: waits(made)["chat"] == 1)
    assert waits(made)["hasty"] == 0, "the tenant may not name it"


async def test_headers_of_classes_do_not_reach_the_worker(gate):
    made = await gate()
    await enters(made, "chat", b"x-llm-d-slo-ttft-ms: 100\r\n")
    for _ in range(2):
        await made.worker.answer()
    await eventually(lambda: len(made.workers[0].requests) == 2)
    head = made.workers[0].requests[1].head.lower()
    assert b"x-request-class" not in head and b"slo-ttft" not in head


async def test_requests_without_a_prefill_do_not_wait(gate):
    made = await gate()
    await made.send(post(b"/tokenize"))
    await eventually(lambda: len(made.worker.waiting) == 2)


async def test_readings_name_each_class(gate):
    made = await gate()
    await enters(made, "batch")
    readings = {(name, labels): value for name, labels, value in made.gateway.readings()}
    assert readings["warmroute_class_waiting_requests", ("batch",)] == 1
    assert readings["warmroute_class_waiting_seconds", ("batch",)] > 0.4
    assert readings["warmroute_class_refusals", ("hasty", "predicted-wait")] == 0


async def test_explain_says_class_place_wait_and_why(gate):
    made = await gate()
    await enters(made, "chat")
    body = b'{"model":"m","messages":[]}'
    found = await made.gateway.preview("/v1/chat/completions", {"x-request-class": "chat"}, body, None)
    assert found.turn is not None
    assert (found.turn["request_class"], found.turn["place"], found.turn["action"]) == ("chat", 1, "wait")
    assert found.turn["ttft_s"] > 0.9
    refused = await made.gateway.preview("/v1/chat/completions", {"x-request-class": "hasty"}, body, None)
    assert refused.turn["action"] == "refuse"
    assert waits(made)["chat"] == 1, "nothing has changed"


async def test_what_waits_is_seen_by_tenant_and_late_streams_by_the_part_that_took_long(gate):
    tenants = {"red": {"keys": ["red"], "classes": ["fast"], "trusted": True}}
    classes = {"fast": {"slo": {"ttft": 0.001}}, "rest": {}}
    made = await gate(auth=AUTH, tenants=tenants, classes=classes)
    fairness = b"x-llm-d-inference-fairness-id: agent-7\r\n"
    waiting = await made.send(post(extra=bearer(RED) + fairness))
    await eventually(lambda: waits(made)["fast"] == 1)
    readings = {(name, labels): value for name, labels, value in made.gateway.readings()}
    assert readings["warmroute_class_tenant_waiting_requests", ("fast", "red")] == 1
    for client in (made.first, waiting):
        await made.worker.answer()
        assert (await client.read()).status == 200
    await eventually(lambda: made.idle)
    readings = {(name, labels): value for name, labels, value in made.gateway.readings()}
    assert readings["warmroute_class_service_level_requests", ("fast", "ttft", "false")] >= 1
    assert ("warmroute_class_tenant_waiting_requests", ("fast", "red")) not in readings
    late = made.gateway.statistics()["classes"]["late"]["fast"]
    assert "late streams took" in late and "before they went to a worker" in late


@pytest.mark.parametrize(("allow", "expected"), [(["priority"], "batch"), ([], "chat")])
async def test_a_service_tier_in_the_body_names_a_class_for_a_caller_that_may(gate, allow, expected):
    classes = {"chat": {"share": 1.0}, "batch": {"share": 0.0, "service_tiers": ["flex"]}}
    made = await gate(classes=classes, auth={"allow": allow})
    body = b'{"model":"m","messages":[],"stream":true,"service_tier":"flex"}'
    client = await made.send(post(body=body))
    await eventually(lambda: waits(made)[expected] == 1)
    for one in (made.first, client):
        await made.worker.answer()
        assert (await one.read()).status == 200
    assert body in made.workers[0].requests[1].body, "the worker gets it as it came"


async def test_a_shadow_counts_and_neither_holds_nor_refuses(gate):
    tenants = {"red": {"keys": ["red"], "classes": ["chat", "hasty"]}}
    classes = {"chat": {"slo": {"ttft": 5}, "engine_priority": 1}, "hasty": {"max_wait_s": 0.7}}
    made = await gate(auth=AUTH, tenants=tenants, classes=classes, admission="shadow")
    others = [
        await made.send(post(extra=bearer(RED) + named(name) + b"x-request-id: %d\r\n" % number))
        for number, name in enumerate((b"chat", b"hasty"))
    ]
    await eventually(lambda: len(made.workers[0].requests) == 3)
    for client in (made.first, *others):
        await made.worker.answer()
        assert (await client.read()).status == 200
    await eventually(lambda: made.idle)
    readings = {(name, labels): value for name, labels, value in made.gateway.readings()}
    counted = {labels: value for (name, labels), value in readings.items() if name == "warmroute_class_shadow_requests"}
    assert {key: value for key, value in counted.items() if value} == {
        ("chat", "sent"): 1,
        ("chat", "waits"): 1,
        ("hasty", "refused"): 1,
    }
    assert readings["warmroute_class_service_level_requests", ("chat", "ttft", "true")] == 2
    assert b"priority" not in made.workers[0].requests[1].body


async def test_a_quota_that_changes_holds_for_the_requests_that_come_next(gate):
    def tenants(most):
        return {"red": {"keys": ["red"], "classes": ["chat"], "max_queued_requests": most}}

    def allow(most):
        made.gateway.use_callers(msgspec.convert(tenants(most), dict[str, TenantConfig]), made.config.limits)

    made = await gate(auth=AUTH, tenants=tenants(1))
    waiting = [await enters(made, "chat", bearer(RED))]
    assert (await made.ask(post(extra=bearer(RED)))).code == "tenant_max_queued_requests"
    allow(2)
    waiting.append(await enters(made, "chat", bearer(RED)))
    allow(0)
    assert (await made.ask(post(extra=bearer(RED)))).code == "tenant_max_queued_requests"
    assert (waits(made)["chat"], queued(made)) == (2, 2), "those that wait keep their places"
    for client in (made.first, *waiting):
        await made.worker.answer()
        assert (await client.read()).status == 200
    assert queued(made) == 0


async def test_the_gateway_has_the_order_of_the_same_queue_on_a_clock_of_its_own(gate):
    """The queue alone, as the simulator has it, gets the same requests. No speed that is learned decides here."""
    classes = {"chat": {"share": 1.0}, "batch": {"share": 0.0}}
    made = await gate(classes=classes)
    alone = AdmissionRig([RequestClass(name, **one) for name, one in classes.items()])
    known = alone.admission._classes
    alone.ask("first", Claim(known["chat"]), LONG)
    rng, clients = Random(7), []
    for number in range(16):
        name, due_s = rng.choice(list(classes)), rng.randrange(10, 1_000)
        due = b"" if due_s % 3 == 0 else b"x-slo-ttft-ms: %d\r\n" % (due_s * 1_000)
        clients.append(await enters(made, name, due + b"x-request-id: r%d\r\n" % number))
        alone.now_s += 1e-6
        alone.ask(f"r{number}", Claim(known[name], ttft_s=due_s if due else None), LONG)
    for _ in (made.first, *clients):
        await made.worker.answer()
    assert [(await client.read()).status for client in (made.first, *clients)] == [200] * 17
    order = [one.header(b"x-request-id").decode() for one in made.workers[0].requests[1:]]
    assert order == alone.drain()
