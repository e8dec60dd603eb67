import asyncio
import json
from contextlib import AsyncExitStack

import pytest

from backends.simulated.serving import serving
from backends.simulated.settings import WorkerSettings
from router.gateway.layers.handover import kv_pull
from router.placement.request import Request
from tests.router.gateway.test_handover import COMPLETIONS, PROMPT, REFUSED, computed, tokens
from tests.support.raw_client import post
from tests.support.scripted_worker import ScriptedWorker
from tests.support.waiting import eventually

HELD = 32
SETTINGS = {"pulls": "offloading_peer", "latency_s": 0.0, "transfer_tokens_per_s": 1e12}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}


class Held:
    """Says which workers hold the prompt in host memory, as their events would."""

    def __init__(self, residency):
        self._residency = residency
        self.slots = {}

    def held_below(self, prompt, slots, media):
        assert "CPU" in media
        return {slot: tokens for slot, tokens in self.slots.items() if slot in slots}

    def __getattr__(self, name):
        return getattr(self._residency, name)


class Peers:
    """A gateway before a busy source and workers that may pull from it."""

    def __init__(self, rig, stack):
        self.rig = rig
        self._stack = stack
        self.held = Held(rig.core.planner._residency)
        rig.core.planner._residency = self.held
        self.busy = []

    async def add(self, **settings):
        settings = {"time_scale": 0.0, "kv_connector": "offloading_peer", "model_name": "m", **settings}
        running = await self._stack.enter_async_context(serving(WorkerSettings(kv_events=False, **settings)))
        self.join(running.url, running.worker.transfers.address[1])
        return running.worker, running

    def join(self, worker, port):
        endpoint = self.rig.join(worker)
        self.rig.fleet.describe(endpoint.id, {"kv_peer": str(port)}, 1.0, None, "mixed")
        return endpoint

    async def source(self, holds=True, path=COMPLETIONS, **fields):
        """Start a worker that holds the prompt and is busy. Without `holds`, the gateway only believes so."""
        worker, running = await self.add()
        if holds:
            await self.ask(path, **(fields or {"max_tokens": 1}))
        (candidate,) = self.rig.fleet.candidates
        self.held.slots[candidate.slot] = HELD
        for number in range(3):
            request = Request(f"busy-{number}", "/v1/completions", "m", None, 100_000, self.rig.loop.time())
            self.busy.append(self.rig.core.dispatcher.dispatch(request, self.rig.loop.time()))
        return worker, running

    async def ask(self, path=COMPLETIONS, **fields):
        body = {"model": "m"} | ({"prompt": PROMPT, "max_tokens": 5} if path == COMPLETIONS else {}) | fields
        return await self.rig.ask(post(path, json.dumps(body).encode()))

    @property
    def outcomes(self):
        return [outcome for (outcome,) in self.rig.counted("pulls")]

    async def ends_clean(self):
        for ticket in self.busy:
            self.rig.core.tickets.cancelled(ticket, self.rig.loop.time())
        await eventually(lambda: self.rig.idle)


@pytest.fixture
async def peers(rig):
    """`await peers(lease_s=..., ...)` starts a gateway; workers are added to it."""
    async with AsyncExitStack() as stack:

        async def start(**handover):
            return Peers(await rig(handover=SETTINGS | handover), stack)

        yield start


async def pair(peers, holds=True, **handover):
    """Return a gateway with a busy source, and an idle worker."""
    gateway = await peers(**handover)
    source, _ = await gateway.source(holds)
    puller, _ = await gateway.add()
    return gateway, source, puller


def moved(worker):
    return worker.peer_tier.statistics()


@pytest.mark.parametrize("fields", [{}, USAGE])
async def test_an_idle_worker_pulls_the_prefix_of_a_busy_one(peers, fields):
    gateway, _, puller = await pair(peers)
    reply = await gateway.ask(**fields)
    assert (reply.status, tokens(reply)) == (200, (40, HELD, 5))
    assert (moved(puller)["pulls"], moved(puller)["pulled_tokens"], computed(puller)) == (1, HELD, 8)
    assert gateway.outcomes == ["pulled"]
    links = gateway.rig.core.planner.known_links(gateway.rig.loop.time())
    assert [link.kind for link in links] == (["pull"] if fields else [])
    (record, *_) = gateway.rig.core.log.latest(1)
    assert record.decision.reason.startswith(f"pull {HELD} tokens from 127.0.0.1:")
    assert record.outcome == "finished"
    await gateway.ends_clean()


TEXT = "Hello, world. " * 20
APIS = [
    (b"/v1/messages", {"max_tokens": 3, "messages": [{"role": "user", "content": TEXT}]}),
    (b"/v1/responses", {"max_output_tokens": 3, "input": TEXT}),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "fields"), APIS, ids=["messages", "responses"])
async def test_messages_and_responses_are_pulled_too(peers, path, fields, stream):
    gateway = await peers()
    await gateway.source(path=path, **fields)
    puller, _ = await gateway.add()
    reply = await gateway.ask(path, **fields, stream=stream)
    assert reply.status == 200
    assert b"kv_transfer_params" not in reply.body
    assert gateway.outcomes == ["pulled"]
    assert moved(puller)["pulls"] == 1
    await gateway.ends_clean()


async def test_a_source_that_has_lost_the_prefix_is_counted(peers):
    gateway, _, puller = await pair(peers, holds=False)
    reply = await gateway.ask(**USAGE)
    assert (reply.status, tokens(reply), computed(puller)) == (200, (40, 0, 5), 40)
    assert gateway.outcomes == ["missed"]
    assert gateway.rig.core.planner.known_links(gateway.rig.loop.time()) == []
    await gateway.ends_clean()


async def test_an_answer_without_usage_does_not_say_what_was_pulled(peers):
    gateway, _, puller = await pair(peers)
    assert (await gateway.ask(stream=True)).status == 200
    assert (gateway.outcomes, moved(puller)["pulls"]) == (["not_reported"], 1)
    await gateway.ends_clean()


async def test_without_the_setting_nothing_is_pulled(rig):
    async with AsyncExitStack() as stack:
        gateway = Peers(await rig(), stack)
        await gateway.source()
        puller, _ = await gateway.add()
        for _ in range(2):
            assert (await gateway.ask()).status == 200
        assert (gateway.outcomes, moved(puller)["pulls"]) == ([], 0)
        await gateway.ends_clean()


@pytest.mark.parametrize("fields", [{"echo": True}, {"prompt_logprobs": 1}, {"n": 2}])
async def test_a_request_that_cannot_be_changed_safely_is_not_pulled(peers, fields):
    gateway, _, puller = await pair(peers)
    await gateway.ask(**fields)
    assert (gateway.outcomes, moved(puller)["pulls"]) == ([], 0)
    await gateway.ends_clean()


async def test_a_signed_body_is_not_changed(peers):
    gateway, _, puller = await pair(peers)
    raw = post(COMPLETIONS, json.dumps({"model": "m", "prompt": PROMPT}).encode(), b"Content-Digest: x\r\n")
    assert (await gateway.rig.ask(raw)).status == 200
    assert (gateway.outcomes, moved(puller)["pulls"]) == ([], 0)
    await gateway.ends_clean()


# the pull fails


@pytest.mark.parametrize("fields", [{}, USAGE])
async def test_a_load_that_fails_runs_again_without_a_pull(peers, fields):
    gateway, _, puller = await pair(peers)
    puller.peer_tier.faults.failed_loads = True
    assert (await gateway.ask(**fields)).status == 200
    assert gateway.outcomes == ["failed"]
    assert (moved(puller)["failed"], moved(puller)["pulls"]) == (1, 0)
    await gateway.ends_clean()


async def test_a_pull_that_hangs_is_given_up(peers, monkeypatch):
    monkeypatch.setattr(kv_pull, "HANDOVER_FIRST_EVENT_S", 1.0)
    gateway = await peers()
    await gateway.source()
    puller, _ = await gateway.add(time_scale=1.0, speed=1_000.0)
    puller.peer_tier.faults.slowdown = 1e9
    assert (await gateway.ask()).status == 200
    assert gateway.outcomes == ["failed"]
    await gateway.ends_clean()


async def test_a_source_that_is_gone_costs_only_the_prefill(peers):
    gateway = await peers()
    _, dead = await gateway.source()
    await gateway.add()
    await dead.kill()
    assert tokens(await gateway.ask()) == (40, 0, 5)
    assert gateway.outcomes == ["missed"]
    await gateway.ends_clean()


async def test_a_worker_that_died_before_its_pull_is_replaced(peers):
    gateway = await peers()
    await gateway.source()
    _, dead = await gateway.add()
    await dead.kill()
    assert tokens(await gateway.ask()) == (40, HELD, 5)  # on the source
    assert gateway.outcomes == ["failed"]
    await gateway.ends_clean()


@pytest.mark.parametrize(
    "refusal",
    [
        b"HTTP/1.1 400 No\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 500 No\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 503 No\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n%b" % (len(REFUSED), REFUSED),
    ],
)
async def test_parameters_are_sent_once_and_a_refusal_is_not_the_clients(peers, refusal):
    gateway = await peers()
    await gateway.source()
    bodies = []

    async def script(script):
        bodies.append(json.loads(script.seen.body))
        if "kv_transfer_params" in bodies[-1]:
            await script.say(refusal)
        else:
            await script.say(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")

    scripted = await ScriptedWorker(script).start()
    gateway.rig.workers.append(scripted)
    gateway.join(scripted, scripted.port)
    assert (await gateway.ask(stream=True)).status == 200
    assert ["kv_transfer_params" in body for body in bodies][:2] in ([True], [True, False])
    source = bodies[0]["kv_transfer_params"]["remote_kv_source"]
    candidate = gateway.rig.fleet.candidates[0]
    assert (source["remote_host"], source["remote_port"]) == ("127.0.0.1", candidate.endpoint.endpoint.port)
    assert len(source["kv_request_id"]) == 32
    assert gateway.outcomes == ["failed"]
    await gateway.ends_clean()


async def test_a_client_that_leaves_during_a_pull_frees_the_worker(peers):
    gateway = await peers()
    await gateway.source()
    puller, _ = await gateway.add(time_scale=1.0)
    puller.peer_tier.faults.slowdown = 1e9
    client = await gateway.rig.send(post(COMPLETIONS, json.dumps({"model": "m", "prompt": PROMPT}).encode()))
    await eventually(lambda: puller.server_load == 1)
    client.writer.transport.abort()
    await eventually(lambda: puller.server_load == 0)
    await gateway.ends_clean()
    assert gateway.outcomes == ["stopped"]


async def test_a_worker_that_dies_in_its_stream_ends_it_as_any_worker_does(peers):
    gateway = await peers()
    await gateway.source()
    puller, dying = await gateway.add(time_scale=1.0)
    asked = asyncio.ensure_future(gateway.ask(stream=True, max_tokens=4_000))
    await eventually(lambda: puller.engine.statistics()["generation_tokens"] > 0)
    await eventually(lambda: gateway.rig.recorded.events.count("first_token") > 0)
    await dying.kill()
    assert b"worker_died" in (await asked).body
    assert gateway.outcomes == ["stopped"]
    await gateway.ends_clean()
