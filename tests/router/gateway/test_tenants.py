import asyncio

import pytest

from policies.spec import PolicySpec
from router.security.keys import KeyEntry, digest_of, new_key
from tests.support.answers import after, answer_json, answer_stream
from tests.support.raw_client import PLAIN, bearer, key_line, post
from tests.support.waiting import eventually

RED, RED_TOO, BLUE, LONER = (new_key() for _ in range(4))
NAMES = {"red": RED, "red-too": RED_TOO, "blue": BLUE, "loner": LONER}
AUTH = {"api_keys": [key_line(name, key) for name, key in NAMES.items()]}


def tenants(**red):
    return {"red": {"keys": ["red", "red-too"], **red}, "blue": {"keys": ["blue"]}}


def figures(gate, tenant="red"):
    return gate.gateway.statistics()["tenants"][tenant]


async def waiting(gate, *keys):
    clients = [await gate.connect() for _ in keys]
    for client, key in zip(clients, keys, strict=True):
        client.writer.write(post(body=PLAIN, extra=bearer(key)))
    await eventually(lambda: gate.gateway.statistics()["queued"] == len(keys))
    return clients


async def test_a_tenants_requests_queue_up_to_its_quota(rig):
    gate = await rig(auth=AUTH, tenants=tenants(max_queued_requests=2))
    clients = await waiting(gate, RED, RED_TOO)
    reply = await gate.ask(post(body=PLAIN, extra=bearer(RED)))
    assert (reply.status, reply.code, reply.header(b"retry-after")) == (503, "tenant_max_queued_requests", b"1")
    assert b"tenant red has max_queued_requests (2)" in reply.body
    others = [await gate.connect() for _ in range(2)]
    for client, key in zip(others, (BLUE, LONER), strict=True):
        client.writer.write(post(body=PLAIN, extra=bearer(key)))
    await eventually(lambda: gate.gateway.statistics()["queued"] == 4)
    assert figures(gate)["queued"] == 2
    assert figures(gate, "blue")["queued"] == 1
    assert figures(gate)["queued_refused"] == 1

    clients[0].leave()
    await eventually(lambda: figures(gate)["queued"] == 1)
    await gate.add(answer_json)
    for client in (clients[1], *others):
        assert (await client.read()).status == 200
    assert figures(gate)["queued"] == figures(gate, "blue")["queued"] == 0


async def test_a_quota_of_0_queues_no_request(rig):
    gate = await rig(auth=AUTH, tenants=tenants(max_queued_requests=0))
    reply = await gate.ask(post(body=PLAIN, extra=bearer(RED)))
    assert reply.code == "tenant_max_queued_requests"


async def test_a_request_that_leaves_the_queue_is_not_counted(rig):
    gate = await rig(auth=AUTH, tenants=tenants(max_queued_requests=1), timeouts={"queue_s": 0.05})
    for _ in range(2):
        reply = await gate.ask(post(body=PLAIN, extra=bearer(RED)))
        assert reply.code == "no_worker_available"
    assert figures(gate) == {"queued": 0, "body_bytes": 0, "queued_refused": 0, "bodies_refused": 0}


class Patient:
    """Holds every request while the first worker is busy."""

    def decide(self, request, fleet):
        from policies.view import Decision

        ranked = tuple(view.id for view in fleet.workers)
        return Decision(
            ranked, "first", hold_s=60.0 if fleet.workers[0].queued_requests else 0.0, until_prefills_done=True
        )


async def test_held_requests_count_against_the_quota(rig):
    go = asyncio.Event()

    gate = await rig(after(go, answer_stream), auth=AUTH, tenants=tenants(max_queued_requests=1))
    gate.core.policies.default.adopt(Patient(), PolicySpec("patient"))
    clients = []
    for key, held in ((BLUE, 0), (RED, 1), (RED_TOO, 1), (BLUE, 2)):
        client = await gate.send(post(extra=bearer(key)))
        clients.append(client)
        await eventually(lambda: len(gate.recorded.events) == len(clients))
        await eventually(lambda held=held: gate.gateway.statistics()["held"] == held)
    assert len(gate.workers[0].requests) == 2  # the first request, and the one above red's quota
    assert figures(gate)["queued"] == 1
    go.set()
    assert [(await client.read()).status for client in clients] == [200] * 4
    assert figures(gate)["queued"] == figures(gate, "blue")["queued"] == 0


def announced(size_bytes, key):
    return b"POST /v1/chat/completions HTTP/1.1\r\nHost: gw\r\n%bContent-Length: %d\r\n\r\n" % (bearer(key), size_bytes)


def chunked(key):
    return b"POST /v1/chat/completions HTTP/1.1\r\nHost: gw\r\n%bTransfer-Encoding: chunked\r\n\r\n" % bearer(key)


async def test_bodies_in_progress_are_limited_by_tenant(rig):
    gate = await rig(answer_json, auth=AUTH, tenants=tenants(max_buffered_body_bytes=1_000))
    first = await gate.send(announced(700, RED) + b"x" * 600)
    await eventually(lambda: figures(gate)["body_bytes"] == 600)

    reply = await gate.ask(announced(500, RED_TOO) + b"x" * 500)
    assert (reply.status, reply.code, reply.header(b"retry-after")) == (503, "tenant_max_buffered_body_bytes", b"1")
    assert b"max_buffered_body_bytes (1000) of tenant red" in reply.body
    for key in (BLUE, LONER):
        assert (await gate.ask(post(body=PLAIN.ljust(900), extra=bearer(key)))).status == 200
    assert (await gate.ask(post(body=PLAIN.ljust(300), extra=bearer(RED_TOO)))).status == 200
    assert figures(gate)["bodies_refused"] == 1
    assert figures(gate)["body_bytes"] == 600

    first.leave()
    await eventually(lambda: figures(gate)["body_bytes"] == 0)
    assert (await gate.ask(post(body=PLAIN.ljust(900), extra=bearer(RED)))).status == 200
    assert gate.gateway.statistics()["buffered_body_bytes"] == 0


@pytest.mark.parametrize("raw", [announced(1_001, RED), chunked(RED) + b"600\r\n" + b"x" * 1_536])
async def test_a_body_above_the_quota_answers_413(rig, raw):
    gate = await rig(answer_json, auth=AUTH, tenants=tenants(max_buffered_body_bytes=1_000))
    reply = await gate.ask(raw)
    assert (reply.status, reply.code) == (413, "body_too_large")
    assert b"larger than max_buffered_body_bytes (1000) of tenant red" in reply.body
    await eventually(lambda: figures(gate)["body_bytes"] == 0)
    assert gate.gateway.statistics()["buffered_body_bytes"] == 0


async def test_two_tenants_on_one_connection_are_charged_separately(rig):
    gate = await rig(answer_json, auth=AUTH, tenants=tenants(max_buffered_body_bytes=1_000))
    client = await gate.connect()
    for key in (RED, BLUE, LONER, RED_TOO):
        assert (await client.ask(post(body=PLAIN.ljust(800), extra=bearer(key)))).status == 200
    assert figures(gate)["body_bytes"] == figures(gate, "blue")["body_bytes"] == 0


async def test_a_renamed_key_is_charged_to_its_new_tenant(rig):
    gate = await rig(auth=AUTH, tenants=tenants(max_queued_requests=0))
    keys = gate.gateway._parts.keys
    keys._given = (KeyEntry("blue", digest_of(RED.encode())),)
    keys.load()
    await gate.send(post(body=PLAIN, extra=bearer(RED)))
    await eventually(lambda: figures(gate, "blue")["queued"] == 1)
