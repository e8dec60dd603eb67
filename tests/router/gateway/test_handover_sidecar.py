import json
from contextlib import AsyncExitStack

import httpx
import pytest

from backends.vllm.handover.connector import HandoverPeer, Legs
from backends.vllm.handover.connectors import CONNECTORS
from tests.router.gateway.test_handover import COMPLETIONS, PROMPT, SETTINGS, Shared, computed, moved
from tests.support.raw_client import post
from tests.support.scripted_worker import ScriptedWorker

HEADER = b"x-prefiller-host-port"
BEHIND = {"kv_sidecar": "llm-d"}
PULL = CONNECTORS["nixl_pull"]
LEGS = Legs(transfer_id="s", prefill=HandoverPeer(host="127.0.0.1"), decode=HandoverPeer(host="127.0.0.1"))


class Sidecar(ScriptedWorker):
    """A server in front of a decode worker. With the header, it runs a NIXL pull; without, it passes the request on."""

    def __init__(self, decode_url):
        super().__init__(self._answer)
        self._decode_url = decode_url

    async def _answer(self, script):
        seen = script.seen
        path, body = seen.path.decode(), json.loads(seen.body)
        async with httpx.AsyncClient() as client:
            if (prefiller := seen.header(HEADER)) is not None:
                asked = body | {"max_tokens": 1, "stream": False, "kv_transfer_params": PULL.prefill_params(LEGS)}
                prefilled = await client.post(f"http://{prefiller.decode()}{path}", json=asked)
                body["kv_transfer_params"] = prefilled.json()["kv_transfer_params"]
            answer = await client.post(self._decode_url + path, json=body)
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(answer.content)}\r\n\r\n"
        await script.say(head.encode() + answer.content)


@pytest.fixture
async def sided(rig):
    """`await sided(permission, ...)` starts a gateway, a prefill worker, and a decode worker behind a sidecar."""
    async with AsyncExitStack() as stack:

        async def start(*allow, connector="nixl_pull", sidecar=Sidecar):
            built = await rig(handover=SETTINGS | {"connector": connector}, auth={"allow": list(allow)})
            gateway = Shared(built, stack)
            prefill, running = await gateway.add("prefill")
            decode, behind = await gateway.add("elsewhere")
            gateway.rig.fleet.remove(behind.url.removeprefix("http://"))
            front = await sidecar(behind.url).start()
            gateway.rig.workers.append(front)
            gateway.join(front, "decode", BEHIND)
            return gateway, (prefill, running.url.removeprefix("http://").encode()), decode, front

        yield start


async def test_the_sidecar_of_the_decode_worker_gets_the_prefill_workers_name_and_runs_the_exchange(sided):
    gateway, (prefill, name), decode, front = await sided()
    gateway.occupy()
    reply = await gateway.ask()
    assert reply.status == 200
    (seen,) = front.requests
    assert seen.header(HEADER) == name
    assert json.loads(seen.body) == {"model": "m", "prompt": PROMPT, "max_tokens": 5}
    assert gateway.outcomes == ["handed_over"]
    assert (moved(decode)["received"], computed(prefill), computed(decode)) == (1, 40, 1)
    assert gateway.rig.counted("handover_seconds") == [("sidecar",)]
    await gateway.ends_clean(prefill, decode)


async def test_a_request_that_stays_on_one_worker_has_no_header(sided):
    gateway, (prefill, _), decode, front = await sided()
    assert (await gateway.ask()).status == 200
    assert front.requests[0].header(HEADER) is None
    assert (computed(prefill), computed(decode)) == (0, 40)
    assert gateway.outcomes == []


class Broken(ScriptedWorker):
    def __init__(self, decode_url):
        super().__init__(self._refuse)

    async def _refuse(self, script):
        status = b"502 Bad Gateway" if script.seen.header(HEADER) else b"200 OK"
        await script.say(b"HTTP/1.1 " + status + b"\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")


async def test_a_sidecar_that_fails_gets_the_request_once_more_without_the_header(sided):
    gateway, (prefill, _), _, front = await sided(sidecar=Broken)
    gateway.occupy()
    assert (await gateway.ask()).status == 200
    assert [seen.header(HEADER) is None for seen in front.requests] == [False, True]
    assert gateway.outcomes == ["decode_failed"]
    await gateway.ends_clean()
    assert computed(prefill) == 0


def with_header(value):
    body = json.dumps({"model": "m", "prompt": PROMPT, "max_tokens": 5}).encode()
    return post(COMPLETIONS, body, b"%b: %b\r\n" % (HEADER, value))


async def test_a_trusted_caller_names_the_prefill_worker_at_any_cost(sided):
    gateway, (prefill, name), decode, front = await sided("transfer_params")
    other, _ = await gateway.add("prefill")
    assert (await gateway.rig.ask(with_header(name))).status == 200
    assert front.requests[0].header(HEADER) == name
    assert gateway.outcomes == ["handed_over"]
    assert (computed(prefill), computed(other), computed(decode)) == (40, 0, 1)
    await gateway.ends_clean(prefill, decode)


@pytest.mark.parametrize("value", [b"evil.example:80", b"127.0.0.1:1", b"x" * 400])
async def test_an_address_that_is_no_prefill_worker_goes_nowhere(sided, value):
    gateway, (prefill, _), _, front = await sided("transfer_params")
    assert (await gateway.rig.ask(with_header(value))).status == 200
    assert front.requests[0].header(HEADER) is None
    assert computed(prefill) == 0


@pytest.mark.parametrize("connector", ["nixl_pull", None])
async def test_a_caller_that_is_not_trusted_names_nothing(sided, connector):
    gateway, (_, name), _, front = await sided(connector=connector)
    if connector is None:
        gateway.rig.fleet.remove(name.decode())  # it would take whole requests
    assert (await gateway.rig.ask(with_header(name))).status == 200
    (seen,) = front.requests
    assert seen.header(HEADER) is None
    assert gateway.outcomes == []
