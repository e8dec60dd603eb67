import asyncio
import json
import re
from contextlib import AsyncExitStack

import pytest

from backends.worker import parse_endpoint
from router.gateway.layers.handover import handover
from tests.router.gateway.test_handover import COMPLETIONS, MESSAGE, PROMPT, RESPONSE, SETTINGS, Shared, moved, tokens
from tests.support.raw_client import post
from tests.support.scripted_worker import ScriptedWorker
from tests.support.waiting import eventually

BOTH = pytest.mark.parametrize("connector", ["nixl_push", "mooncake"])
USAGE = {"stream": True, "stream_options": {"include_usage": True}}


class Together(Shared):
    """A gateway before workers that speak one connector. The bootstrap server of each is its own HTTP server."""

    def __init__(self, rig, stack, connector):
        super().__init__(rig, stack)
        self.connector = connector
        self._running = {}
        self.bootstrap_port = None
        self.prefiller = b""
        """The prefill worker that requests name, so that they are handed over whatever that costs."""

    async def add(self, role, **settings):
        worker, self._running[worker] = await super().add(role, kv_connector=self.connector, **settings)
        return worker

    async def kill(self, worker):
        await self._running[worker].kill()

    def join(self, worker, role):
        address = parse_endpoint(worker if isinstance(worker, str) else f"http://{worker.id}")
        labels = {"mooncake_bootstrap_port": self.bootstrap_port or str(address.port)}
        endpoint = self.rig.fleet.add(address, self.rig.loop.time(), labels)
        if role == "prefill":
            self.prefiller = endpoint.id.encode()
        self.rig.fleet.describe(endpoint.id, labels, 1.0, None, role)
        return self.rig.join(worker)

    def raw(self, path=COMPLETIONS, extra=b"", **body):
        extra += b"x-prefiller-host-port: " + self.prefiller + b"\r\n"
        return post(path, json.dumps({"model": "m"} | body).encode(), extra)

    async def ask(self, **fields):
        return await self.rig.ask(self.raw(**({"prompt": PROMPT, "max_tokens": 5} | fields)))

    async def introduce(self):
        """Hand one request over, so that all is known of the prefill worker that the connector needs."""
        peers = self.rig.gateway._parts.handovers.peers
        (prefill,) = [one for one in self.rig.fleet.candidates if one.endpoint.role == "prefill"]
        await eventually(lambda: self.connector == "nixl_push" or not peers.lacks(prefill))
        assert (await self.ask()).status == 200
        assert self.outcomes == ["handed_over"]
        assert not peers.lacks(prefill)
        self.forget()

    def forget(self):
        for name in ("handovers", "handover_seconds"):
            getattr(self.rig.registry, "histogram" if name.endswith("_seconds") else "counter")(name).values.clear()

    def begin(self, **fields):
        return asyncio.ensure_future(self.ask(**fields))

    async def frees(self, *workers):
        """Check that no load stays reserved, and that no worker holds blocks for another one."""
        await self.ends_clean(*workers)
        for worker in workers:
            await eventually(lambda worker=worker: (moved(worker)["waiting"], moved(worker)["leased"]) == (0, 0))


@pytest.fixture
async def together(rig):
    """`await together(connector, lease_s=..., ...)` starts a gateway; workers are added to it."""
    async with AsyncExitStack() as stack:

        async def start(connector, **handover):
            settings = SETTINGS | {"connector": connector} | handover
            return Together(await rig(handover=settings, auth={"allow": ["transfer_params"]}), stack, connector)

        yield start


async def pair(together, connector, prefill=None, decode=None, **handover):
    """Return a gateway with a prefill worker that it knows and a decode worker, on which streams run.

    `prefill` and `decode` are settings of the workers.
    """
    gateway = await together(connector, **handover)
    workers = [await gateway.add("prefill", **(prefill or {})), await gateway.add("decode", **(decode or {}))]
    gateway.occupy()
    await gateway.introduce()
    return gateway, *workers


# it works


@BOTH
@pytest.mark.parametrize("fields", [{}, USAGE])
async def test_the_decode_worker_waits_while_the_prompt_is_computed(together, connector, fields):
    gateway, prefill, decode = await pair(together, connector)
    prefill.clock.freeze()
    asked = gateway.begin(**fields)
    await eventually(lambda: moved(decode)["waiting"] == 1)
    assert (prefill.server_load, decode.server_load) == (1, 1)
    prefill.clock.thaw()
    reply = await asked
    assert (reply.status, tokens(reply)) == (200, (40, 32, 5))
    assert gateway.outcomes == ["handed_over"]
    assert gateway.rig.counted("handover_seconds") == [("prefill",), ("transfer",)]
    await gateway.frees(prefill, decode)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("connector", "path", "body", "shared"),
    [
        ("nixl_push", b"/v1/messages", MESSAGE, True),
        ("nixl_push", b"/v1/responses", RESPONSE, False),
        ("mooncake", b"/v1/messages", MESSAGE, False),
        ("mooncake", b"/v1/responses", RESPONSE, True),
    ],
)
async def test_messages_and_responses_are_handed_over_where_the_connector_allows(
    together, connector, path, body, shared, stream
):
    gateway, prefill, decode = await pair(together, connector)
    received = moved(decode)["received"]
    for _ in range(2):
        reply = await gateway.rig.ask(gateway.raw(path, **body, stream=stream))
        assert reply.status == 200
    assert gateway.outcomes == ["handed_over"] * 2 * shared
    assert moved(decode)["received"] == received + 2 * shared
    assert b"kv_transfer_params" not in reply.body
    reported = re.findall(rb'"(?:cache_read_input_tokens|cached_tokens)":\s*(\d+)', reply.body)
    assert {int(one) % 16 for one in reported} <= {0}, "whole blocks, as the prefill worker found them"
    await gateway.frees(prefill, decode)


@pytest.mark.parametrize(("connector", "fields"), [("nixl_push", USAGE), ("mooncake", {})])
async def test_a_chat_is_handed_over(together, connector, fields):
    gateway, prefill, decode = await pair(together, connector)
    body = {"messages": [{"role": "user", "content": "Hello, world"}], "max_tokens": 3} | fields
    reply = await gateway.rig.ask(gateway.raw(b"/v1/chat/completions", **body))
    assert reply.status == 200
    prompt_tokens, cached_tokens, completion_tokens = tokens(reply)
    assert cached_tokens < prompt_tokens
    assert completion_tokens == 3
    assert gateway.outcomes == ["handed_over"]
    assert moved(decode)["received"] == 2
    await gateway.frees(prefill, decode)


async def test_a_prefill_worker_that_is_not_known_yet_answers_before_a_decode_worker_of_a_push_is_asked(together):
    gateway = await together("nixl_push")
    prefill, decode = await gateway.add("prefill"), await gateway.add("decode")
    gateway.occupy()
    prefill.clock.freeze()
    asked = gateway.begin(**USAGE)
    await eventually(lambda: prefill.server_load == 1)
    assert decode.server_load == 0
    prefill.clock.thaw()
    assert tokens(await asked) == (40, 0, 5)
    assert gateway.outcomes == ["handed_over"]
    await gateway.frees(prefill, decode)


async def test_without_a_bootstrap_server_mooncake_hands_nothing_over(together, caplog):
    gateway = await together("mooncake")
    gateway.bootstrap_port = "99999"
    prefill, decode = await gateway.add("prefill"), await gateway.add("decode")
    gateway.occupy()
    assert tokens(await gateway.ask()) == (40, 0, 5)
    await eventually(lambda: "mooncake_bootstrap_port is '99999'" in caplog.text)
    assert tokens(await gateway.ask())[0] == 40
    assert gateway.outcomes == []
    await gateway.frees(prefill, decode)


# the prefill fails


@BOTH
async def test_a_dead_prefill_worker_costs_only_time(together, connector):
    gateway, prefill, decode = await pair(together, connector, decode={"kv_lease_s": 1.0})
    await gateway.kill(prefill)
    assert tokens(await gateway.ask(prompt=list(range(500, 540)))) == (40, 0, 5)
    assert gateway.outcomes[0] in ("prefill_failed", "decode_failed")  # both notice
    await gateway.ends_clean(decode)


@pytest.mark.parametrize(("connector", "fields"), [("nixl_push", USAGE), ("mooncake", {})])
async def test_a_prefill_worker_that_dies_while_it_computes_costs_only_time(together, connector, fields):
    gateway, prefill, decode = await pair(together, connector, decode={"kv_lease_s": 1.0})
    prefill.clock.freeze()
    asked = gateway.begin(prompt=list(range(500, 540)), **fields)
    await eventually(lambda: moved(decode)["waiting"] == 1)
    await gateway.kill(prefill)
    assert tokens(await asked) == (40, 0, 5)
    assert gateway.outcomes == ["prefill_failed"]
    await gateway.ends_clean(decode)
    if connector == "mooncake":  # vLLM's push never frees them
        await eventually(lambda: moved(decode)["waiting"] == 0)


@BOTH
async def test_a_prefill_worker_that_dies_after_its_answer_is_not_missed(together, connector):
    gateway, prefill, decode = await pair(together, connector, decode={"time_scale": 1.0})
    asked = gateway.begin(max_tokens=40, **USAGE)
    await eventually(lambda: gateway.outcomes == ["handed_over"])
    await gateway.kill(prefill)
    assert tokens(await asked) == (40, 32, 40)
    await gateway.frees(decode)


@BOTH
async def test_a_frozen_prefill_worker_is_given_up(together, connector, monkeypatch):
    monkeypatch.setattr(handover, "PREFILL_S", 1.0)
    gateway, prefill, decode = await pair(together, connector)
    prefill.clock.freeze()
    assert tokens(await gateway.ask(prompt=list(range(500, 540)))) == (40, 0, 5)
    assert gateway.outcomes == ["prefill_failed"]
    prefill.clock.thaw()
    await gateway.ends_clean(prefill, decode)


@BOTH
async def test_a_transfer_that_hangs_is_given_up(together, connector, monkeypatch):
    monkeypatch.setattr(handover, "HANDOVER_FIRST_EVENT_S", 1.0)
    settings = {"time_scale": 1.0, "speed": 1_000.0}
    gateway, _, decode = await pair(together, connector, decode=settings)
    decode.transfers.faults.slowdown = 1e9
    assert tokens(await gateway.ask(prompt=list(range(500, 540)))) == (40, 0, 5)
    assert gateway.outcomes == ["decode_failed"]
    await gateway.ends_clean(decode)


@BOTH
async def test_a_restarted_prefill_worker_is_known_again_after_one_request(together, connector):
    gateway, prefill, decode = await pair(together, connector)
    prefill.transfers.engine_id = "another"
    assert tokens(await gateway.ask(prompt=list(range(500, 540)))) == (40, 0, 5)
    assert gateway.outcomes[0] in ("decode_failed", "nothing_handed_over")
    gateway.forget()
    await gateway.introduce()
    await gateway.ends_clean(decode)
    assert moved(decode)["waiting"] == 0


# the decode fails


@BOTH
async def test_a_decode_worker_that_dies_while_it_waits_is_replaced(together, connector):
    gateway, prefill, first = await pair(together, connector, prefill={"kv_lease_s": 0.5})
    prefill.clock.freeze()
    asked = gateway.begin(prompt=list(range(500, 540)))
    await eventually(lambda: moved(first)["waiting"] == 1)
    second = await gateway.add("decode")
    await gateway.kill(first)
    assert tokens(await asked) == (40, 0, 5)
    assert gateway.outcomes == ["decode_failed"]
    prefill.clock.thaw()
    await gateway.frees(prefill, second)


@pytest.mark.parametrize(("connector", "stream"), [("nixl_push", False), ("mooncake", True)])
async def test_a_decode_worker_that_cannot_load_computes_the_prompt_itself(together, connector, stream):
    gateway, prefill, decode = await pair(together, connector)
    decode.transfers.faults.failed_loads = True
    prefill.clock.freeze()
    reply = await gateway.ask(prompt=list(range(500, 540)), **(USAGE if stream else {}))
    assert tokens(reply) == (40, 0, 5)
    assert gateway.outcomes == ["decode_failed"]
    prefill.clock.thaw()
    await gateway.frees(prefill, decode)


# the client leaves


@BOTH
async def test_a_client_that_leaves_frees_both_workers_once_the_prefill_has_ended(together, connector):
    gateway, prefill, decode = await pair(together, connector)
    prefill.clock.freeze()
    client = await gateway.rig.send(gateway.raw(prompt=list(range(500, 540))))
    await eventually(lambda: moved(decode)["waiting"] == 1)
    client.writer.transport.abort()
    await eventually(lambda: decode.server_load == 0)
    assert gateway.outcomes == ["stopped"]
    assert (prefill.server_load, moved(decode)["waiting"]) == (1, 1)  # an aborted prefill would never end the wait
    prefill.clock.thaw()
    await gateway.frees(prefill, decode)


@BOTH
async def test_a_client_that_leaves_the_stream_frees_both_workers(together, connector):
    gateway, prefill, decode = await pair(together, connector, decode={"time_scale": 1.0})
    client = await gateway.rig.send(gateway.raw(prompt=PROMPT, max_tokens=4_000, stream=True))
    await eventually(lambda: gateway.outcomes == ["handed_over"])
    client.writer.transport.abort()
    await gateway.frees(prefill, decode)


# what the workers get


def json_reply(body):
    raw = json.dumps(body).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(raw), raw)


PREFILLED = {
    "choices": [{"finish_reason": "length"}],
    "usage": {"prompt_tokens": 40, "prompt_tokens_details": {"cached_tokens": 16}},
    "kv_transfer_params": {"remote_engine_id": "e1", "remote_host": "localhost", "remote_port": 5600, "tp_size": 2},
}
ANSWER = {"choices": [], "usage": {"prompt_tokens": 40, "prompt_tokens_details": {"cached_tokens": 40}}}


class Scripted:
    """A prefill and a decode worker that wait for `prefills` and `decodes` before they answer."""

    def __init__(self):
        self.prefills, self.decodes = asyncio.Event(), asyncio.Event()
        self.workers = []

    async def start(self, gateway):
        for role, ready, body in (("prefill", self.prefills, PREFILLED), ("decode", self.decodes, ANSWER)):

            async def script(script, ready=ready, body=body):
                await ready.wait()
                await script.say(json_reply(body))

            worker = await ScriptedWorker(script).start()
            self.workers.append(worker)
            gateway.rig.workers.append(worker)
            gateway.join(worker, role)
        gateway.occupy()

    def ids(self):
        return [[seen.header(b"x-request-id") for seen in worker.requests] for worker in self.workers]


async def introduced(together):
    """Return a gateway that knows a scripted prefill worker, which waits from now on, and both scripted workers."""
    gateway, scripted = await together("nixl_push"), Scripted()
    await scripted.start(gateway)
    scripted.prefills.set()
    scripted.decodes.set()
    await gateway.introduce()
    scripted.prefills.clear()
    return gateway, scripted


async def test_both_requests_of_a_push_have_one_id_that_is_new_each_time(together):
    gateway, scripted = await together("nixl_push"), Scripted()
    await scripted.start(gateway)
    scripted.prefills.set()
    scripted.decodes.set()
    raw = gateway.raw(extra=b"X-Request-Id: mine\r\n", prompt=PROMPT)
    for _ in range(3):
        reply = await gateway.rig.ask(raw)
        assert reply.header(b"x-request-id") == b"mine"
    prefills, decodes = scripted.ids()
    assert prefills == decodes
    assert len(set(prefills)) == 3
    assert all(one.startswith(b"mine-") for one in prefills)
    params = json.loads(scripted.workers[1].requests[-1].body)["kv_transfer_params"]
    assert (params["remote_engine_id"], params["remote_port"], params["tp_size"]) == ("e1", 5600, 2)
    assert params["remote_request_id"].encode() == prefills[-1]
    gateway.release()


async def test_an_answer_waits_for_that_of_its_prefill_which_has_the_cached_tokens(together):
    gateway, scripted = await introduced(together)
    asked = gateway.begin()
    await eventually(lambda: [len(ids) for ids in scripted.ids()] == [2, 2])
    scripted.prefills.set()
    assert json.loads((await asked).body)["usage"]["prompt_tokens_details"] == {"cached_tokens": 16}
    await gateway.ends_clean()


async def test_an_answer_does_not_wait_long_for_that_of_its_prefill(together):
    gateway, scripted = await introduced(together)
    assert json.loads((await gateway.ask()).body)["usage"]["prompt_tokens_details"] is None
    assert gateway.outcomes == ["handed_over"]
    scripted.prefills.set()
    await gateway.ends_clean()


async def test_a_refused_decode_ends_the_prefill_beside_it(together):
    gateway, scripted = await introduced(together)
    prefill, decode = scripted.workers

    async def refuse(script):
        if b"kv_transfer_params" in script.seen.body:
            await script.say(b"HTTP/1.1 400 No\r\ncontent-length: 2\r\n\r\n{}")
        else:
            await script.say(json_reply(ANSWER))

    decode.script = refuse
    reply = await gateway.ask()
    assert json.loads(reply.body)["usage"]["prompt_tokens_details"] == {"cached_tokens": 40}
    assert gateway.outcomes == ["decode_failed"]
    await gateway.ends_clean()
    assert len(prefill.requests) == 2
