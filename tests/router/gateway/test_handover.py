import asyncio
import json
from contextlib import AsyncExitStack
from types import SimpleNamespace

import pytest

from backends.simulated.serving import serving
from backends.simulated.settings import WorkerSettings
from router.gateway.layers.handover import handover
from router.gateway.layers.handover.heartbeat import Heartbeat
from router.placement.request import Request
from tests.support import otlp
from tests.support.answers import dying, silent
from tests.support.otlp import Sink
from tests.support.raw_client import post
from tests.support.scripted_worker import ScriptedWorker
from tests.support.waiting import eventually

COMPLETIONS = b"/v1/completions"
PROMPT = list(range(300, 340))
INCOMPLETE = b'{"choices":[{"finish_reason":"length"}],"kv_transfer_params":{"remote_port":1}}'
REFUSED = b'data: {"error":{"message":"no","type":"BadRequestError","param":null,"code":400}}\n\n'
SETTINGS = {"connector": "nixl_pull", "latency_s": 0.0, "transfer_tokens_per_s": 1e12}


class Shared:
    """A gateway before prefill and decode workers. Streams run on the decode workers, so that a handover pays."""

    def __init__(self, rig, stack):
        self.rig = rig
        self._stack = stack
        self.dummies = []

    async def add(self, role, **settings):
        settings = {"time_scale": 0.0, "kv_connector": "nixl_pull", "model_name": "m", "kv_events": False, **settings}
        running = await self._stack.enter_async_context(serving(WorkerSettings(**settings)))
        self.join(running.url, role)
        return running.worker, running

    async def scripted(self, script, role):
        worker = await ScriptedWorker(script).start()
        self.rig.workers.append(worker)
        self.join(worker, role)

    def join(self, worker, role, labels=None):
        endpoint = self.rig.join(worker)
        self.rig.fleet.describe(endpoint.id, labels or {}, 1.0, None, role)
        return endpoint

    def occupy(self, requests=3):
        """Let streams run on the workers that take whole requests."""
        core, now_s = self.rig.core, self.rig.loop.time()
        for number in range(requests):
            request = Request(f"dummy-{number}", "/v1/completions", "m", None, 10, now_s)
            ticket = core.dispatcher.dispatch(request, now_s)
            core.tickets.first_token(ticket, now_s)
            self.dummies.append(ticket)

    async def hand_over(self, path=COMPLETIONS, **fields):
        """Ask as a caller that names the prefill worker, so that no estimate decides."""
        (prefill,) = [one.id for one in self.rig.fleet.endpoints if one.role == "prefill"]
        header = f"x-prefiller-host-port: {prefill}\r\n".encode()
        body = {"model": "m"} | (fields or {"prompt": PROMPT, "max_tokens": 5})
        return await self.rig.ask(post(path, json.dumps(body).encode(), header))

    async def ask(self, **fields):
        body = {"model": "m", "prompt": PROMPT, "max_tokens": 5} | fields
        return await self.rig.ask(post(COMPLETIONS, json.dumps(body).encode()))

    @property
    def outcomes(self):
        return [outcome for (outcome,) in self.rig.counted("handovers")]

    def release(self):
        for ticket in self.dummies:
            self.rig.core.tickets.cancelled(ticket, self.rig.loop.time())

    async def ends_clean(self, *workers):
        """Check that no load stays reserved, and no block in use."""
        self.release()
        await eventually(lambda: self.rig.idle)
        for worker in workers:
            await eventually(lambda worker=worker: worker.engine.statistics()["kv_usage"] == 0.0)


@pytest.fixture
async def shared(rig):
    """`await shared(lease_s=..., ...)` starts a gateway; workers are added to it."""
    async with AsyncExitStack() as stack:

        async def start(traces=None, allow=(), **handover):
            tracing = {} if traces is None else {"endpoint": "http://127.0.0.1:9/v1/traces", "share": 1.0}
            return Shared(
                await rig(handover=SETTINGS | handover, auth={"allow": list(allow)}, traces=traces, tracing=tracing),
                stack,
            )

        yield start


async def pair(shared, prefill=None, decode=None, **handover):
    """Return a gateway with a prefill and a decode worker, on which streams run. The first two are their settings."""
    gateway = await shared(**handover)
    prefill, _ = await gateway.add("prefill", **(prefill or {}))
    decode, _ = await gateway.add("decode", **(decode or {}))
    gateway.occupy()
    return gateway, prefill, decode


def prefill_id(gateway):
    return gateway.rig.fleet.candidates[0].id


def decode_id(gateway):
    return gateway.rig.fleet.candidates[1].id


def moved(worker):
    return worker.transfers.statistics()


def computed(worker):
    return worker.engine.statistics()["prefill_tokens"]


def tokens(reply):
    """Return prompt and cached tokens as the answer reports them, and the length of the answer."""
    if reply.header(b"content-type").startswith(b"text/event-stream"):
        frames = [json.loads(line[6:]) for line in reply.body.split(b"\n\n") if line.startswith(b"data: {")]
        usage = frames[-1]["usage"]
    else:
        usage = json.loads(reply.body)["usage"]
    details = usage["prompt_tokens_details"]
    return usage["prompt_tokens"], details["cached_tokens"], usage["completion_tokens"]


# it works


@pytest.mark.parametrize("stream", [False, True])
async def test_the_client_gets_one_answer_with_the_usage_of_one_request(shared, stream):
    gateway, prefill, decode = await pair(shared)
    fields = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    for cached, asked in ((0, {}), (32, fields)):  # a streamed one would teach that this link is slow
        reply = await gateway.ask(**asked)
        assert reply.status == 200
        assert tokens(reply) == (40, cached, 5)
    assert (moved(decode)["received"], moved(decode)["stale_reads"]) == (2, 0)
    assert computed(decode) == 2  # the last token of each prompt
    assert gateway.outcomes == ["handed_over"] * 2
    steps = gateway.rig.registry.histogram("handover_seconds").values
    assert {step: one.count for (step,), one in steps.items()} == {"prefill": 2, "transfer": 2}
    assert all(0.0 <= one.total < 60.0 for one in steps.values())
    await gateway.ends_clean(prefill, decode)


async def test_streamed_answers_teach_the_speed_of_the_link(shared):
    gateway, prefill, decode = await pair(shared)
    core = gateway.rig.core
    await gateway.ask()  # its first byte comes after its last token
    assert core.planner.known_links(0.0) == []
    await gateway.ask(stream=True, prompt=list(range(900, 1_100)))
    (link,) = core.planner.known_links(gateway.rig.loop.time())
    assert (link.sender.id, link.receiver.id, link.transfers) == (prefill_id(gateway), decode_id(gateway), 1)
    assert link.tokens_per_s > 0.0
    await gateway.ends_clean(prefill, decode)


async def test_a_chat_is_rendered_once(shared):
    gateway, prefill, decode = await pair(shared)
    body = {"model": "m", "messages": [{"role": "user", "content": "Hello, world"}], "max_tokens": 3}
    reply = await gateway.rig.ask(post(body=json.dumps(body).encode()))
    assert reply.status == 200
    assert "kv_transfer_params" not in json.loads(reply.body)
    assert gateway.outcomes == ["handed_over"]
    await gateway.ends_clean(prefill, decode)


MESSAGE = {"model": "m", "max_tokens": 3, "messages": [{"role": "user", "content": "Hello, world"}]}
RESPONSE = {"model": "m", "max_output_tokens": 3, "input": "Hello, world"}


@pytest.mark.parametrize(("path", "body"), [(b"/v1/messages", MESSAGE), (b"/v1/responses", RESPONSE)])
async def test_messages_and_responses_are_handed_over_too(shared, path, body):
    gateway, prefill, decode = await pair(shared, allow=["transfer_params"])
    whole = await gateway.hand_over(path, **body)
    assert whole.status == 200
    answer = json.loads(whole.body)
    assert answer["usage"]["output_tokens"] == 3
    assert "kv_transfer_params" not in answer
    assert "input_messages" not in answer
    stream = await gateway.hand_over(path, **body, stream=True)
    assert stream.status == 200
    assert b"event: message_stop" in stream.body or b"event: response.incomplete" in stream.body
    assert gateway.outcomes == ["handed_over"] * 2
    assert (moved(decode)["received"], computed(decode)) == (2, 2)
    await gateway.ends_clean(prefill, decode)


async def test_a_response_that_fails_to_load_shows_the_client_nothing_of_it(shared):
    """vLLM sends the first events of such a stream before it loads anything."""
    gateway, prefill, decode = await pair(shared, allow=["transfer_params"])
    decode.transfers.faults.failed_loads = True
    reply = await gateway.hand_over(b"/v1/responses", **RESPONSE, stream=True)
    assert (reply.status, reply.body.count(b"event: response.created")) == (200, 1)
    assert gateway.outcomes == ["decode_failed"]
    assert computed(prefill) == computed(decode)
    await gateway.ends_clean(decode)


async def test_workers_that_share_a_store_get_two_plain_requests(shared, tmp_path):
    gateway = await shared(connector="shared_store", allow=["transfer_params"])
    settings = {"kv_connector": "shared_store", "kv_store_dir": tmp_path}
    prefill, _ = await gateway.add("prefill", **settings)
    decode, _ = await gateway.add("decode", **settings)
    reply = await gateway.hand_over()
    assert tokens(reply) == (40, 0, 5)  # what the decode worker finds in the store counts as cached there
    turns = [{"role": "user", "content": "Hello, world. " * 10}]
    reply = await gateway.hand_over(b"/v1/messages", max_tokens=3, messages=turns)
    usage = json.loads(reply.body)["usage"]
    assert (usage["cache_read_input_tokens"], usage["input_tokens"] > 16) == (0, True)
    assert gateway.outcomes == ["handed_over"] * 2
    assert (prefill.store.stored, decode.store.found, computed(decode)) == (2, 2, 2)
    await gateway.ends_clean(prefill, decode)


async def test_a_store_that_has_lost_a_prompt_costs_only_time(shared, tmp_path):
    gateway = await shared(connector="lmcache", allow=["transfer_params"])
    settings = {"kv_connector": "lmcache"}
    prefill, _ = await gateway.add("prefill", kv_store_dir=tmp_path / "a", **settings)
    decode, _ = await gateway.add("decode", kv_store_dir=tmp_path / "b", **settings)
    assert (await gateway.hand_over()).status == 200
    assert (computed(prefill), computed(decode), decode.store.found) == (40, 40, 0)
    await gateway.ends_clean(prefill, decode)


async def test_a_moriio_pull_is_a_pull_with_other_fields(shared):
    gateway = await shared(connector="moriio_pull", allow=["transfer_params"])
    prefill, _ = await gateway.add("prefill", kv_connector="moriio_pull")
    decode, _ = await gateway.add("decode", kv_connector="moriio_pull")
    assert (await gateway.hand_over()).status == 200
    assert gateway.outcomes == ["handed_over"]
    assert (moved(decode)["received"], moved(decode)["stale_reads"], computed(decode)) == (1, 0, 1)
    await gateway.ends_clean(prefill, decode)


async def test_the_time_to_connect_to_the_decode_worker_does_not_lengthen_the_lease(shared, monkeypatch):
    gateway = await shared(allow=["transfer_params"])
    for role in ("prefill", "decode"):
        await gateway.add(role)
    parts, loop, seen = gateway.rig.gateway._parts, gateway.rig.loop, []
    dial = parts.pools._dial

    async def late(endpoint, dialler):
        began_s = loop.time()
        await eventually(lambda: loop.time() > began_s + 0.05)
        await dial(endpoint, dialler)

    def begun(amount, labels):
        (request,) = parts.requests.running
        decode = request._outbound.flow.attempt
        seen.append(decode.since_s + decode.limit_s - request._outbound.plan._lease_end_s)

    monkeypatch.setattr(parts.pools, "_dial", late)
    monkeypatch.setattr(parts.handovers.metrics, "handovers", SimpleNamespace(add=begun))
    assert (await gateway.hand_over()).status == 200
    assert seen == [pytest.approx(0.0, abs=1e-6)]


async def test_both_decisions_say_why(shared):
    gateway, prefill, decode = await pair(shared)
    await gateway.ask(stream=True)
    records = gateway.rig.core.log.latest(10)
    latest = [record for record in records if not record.request.id.startswith("dummy")]
    assert [record.outcome for record in latest] == ["finished", "finished"]
    assert [record.decision.reason.split(" ")[0] for record in latest] == ["decode", "prefill"]
    assert "on one worker" in latest[0].decision.reason
    assert latest[0].ttft_s is not None
    await gateway.ends_clean(prefill, decode)


async def test_both_legs_are_attempts_of_one_trace(shared):
    sink = Sink()
    gateway, prefill, decode = await pair(shared, traces=sink)
    await gateway.ask(stream=True)
    await eventually(lambda: len(sink.sent) == 1)
    (spans,) = sink.traces
    attempts = [otlp.values(span) for span in spans if span.name == "attempt"]
    assert [attempt["warmroute.handover.leg"] for attempt in attempts] == ["prefill", "decode"]
    assert len({attempt["warmroute.worker"] for attempt in attempts}) == 2
    assert len({span.trace_id for span in spans}) == 1
    assert [span.name for span in spans].count("stream") == 1
    await gateway.ends_clean(prefill, decode)


async def test_a_request_stays_on_one_worker_where_that_is_as_cheap(shared):
    gateway = await shared()
    prefill, _ = await gateway.add("prefill")
    decode, _ = await gateway.add("decode")
    assert (await gateway.ask()).status == 200
    assert (computed(prefill), computed(decode)) == (0, 40)
    assert gateway.outcomes == []


@pytest.mark.parametrize(
    "fields",
    [{"tool_choice": "required"}, {"prompt_logprobs": None, "echo": False, "best_of": 1, "use_beam_search": "x"}],
)
async def test_a_request_that_needs_one_worker_gets_one(shared, fields):
    gateway, prefill, decode = await pair(shared)
    await gateway.ask(**fields)
    assert computed(prefill) == 0
    assert gateway.outcomes == []
    await gateway.ends_clean(prefill, decode)


async def test_a_signed_body_is_not_changed(shared):
    gateway, prefill, decode = await pair(shared)
    raw = post(COMPLETIONS, json.dumps({"model": "m", "prompt": PROMPT}).encode(), b"Content-Digest: x\r\n")
    assert (await gateway.rig.ask(raw)).status == 200
    assert computed(prefill) == 0
    await gateway.ends_clean(prefill, decode)


async def test_a_prefill_worker_gets_no_whole_request(shared):
    gateway = await shared()
    prefill, _ = await gateway.add("prefill")
    task = asyncio.ensure_future(gateway.ask())
    await eventually(lambda: gateway.rig.gateway.statistics()["queued"] == 1)
    decode, _ = await gateway.add("decode")
    assert (await task).status == 200
    assert (computed(prefill), computed(decode)) == (0, 40)


async def test_without_a_prefill_worker_requests_run_on_one_worker(shared):
    gateway = await shared()
    decode, _ = await gateway.add("decode")
    gateway.occupy()
    assert (await gateway.ask()).status == 200
    await gateway.ends_clean(decode)


# the prefill fails


async def test_a_dead_prefill_worker_is_replaced_by_another(shared):
    gateway = await shared()
    _, dead = await gateway.add("prefill")
    prefill, _ = await gateway.add("prefill")
    decode, _ = await gateway.add("decode")
    gateway.occupy()
    await dead.kill()
    served = []
    unseen = dict.fromkeys(("placed", "first_token", "progressed"), lambda *_: None)
    gateway.rig.core.tickets.traffic = SimpleNamespace(finished=lambda ticket, *_: served.append(ticket), **unseen)
    assert (await gateway.ask()).status == 200
    assert gateway.outcomes == ["handed_over"]
    assert computed(prefill) == 40
    first, second = served
    assert second.prefill is first and first.attempt == 2
    legs = [one.leg for one in gateway.rig.core.log.latest(10) if one.leg is not None]
    assert {leg.worker for leg in legs if leg.part == "decode"} == {gateway.rig.fleet.candidates[1].id}
    await gateway.ends_clean(prefill, decode)


async def test_without_another_prefill_worker_one_worker_computes_all(shared):
    gateway = await shared()
    _, dead = await gateway.add("prefill")
    decode, _ = await gateway.add("decode")
    gateway.occupy()
    await dead.kill()
    reply = await gateway.ask(stream=True, stream_options={"include_usage": True})
    assert tokens(reply) == (40, 0, 5)
    assert gateway.outcomes == ["prefill_failed"]
    assert computed(decode) == 40
    await gateway.ends_clean(decode)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 No\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 404 No\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 500 No\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 503 No\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\ncontent-length: 200\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(INCOMPLETE), INCOMPLETE),
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 0\r\n\r\n",
        b"not HTTP\r\n\r\n",
    ],
)
async def test_whatever_the_prefill_worker_answers_the_client_gets_an_answer(shared, answer):
    gateway = await shared()

    script = dying(answer)
    await gateway.scripted(script, "prefill")
    decode, _ = await gateway.add("decode")
    gateway.occupy()
    assert tokens(await gateway.ask()) == (40, 0, 5)
    assert gateway.outcomes[0] in ("prefill_failed", "nothing_handed_over")
    assert moved(decode)["received"] == 0
    await gateway.ends_clean(decode)


async def test_a_prefill_without_parameters_costs_only_time(shared):
    gateway, prefill, _ = await pair(shared)
    prefill.transfers.faults.without_params = True
    assert tokens(await gateway.ask()) == (40, 0, 5)
    assert gateway.outcomes == ["nothing_handed_over"]
    await gateway.ends_clean()


async def test_a_prefill_that_takes_too_long_is_given_up(shared, monkeypatch):
    monkeypatch.setattr(handover, "PREFILL_S", 0.2)
    gateway = await shared()

    await gateway.scripted(silent, "prefill")
    decode, _ = await gateway.add("decode")
    gateway.occupy()
    assert tokens(await gateway.ask()) == (40, 0, 5)
    assert gateway.outcomes == ["prefill_failed"]
    await gateway.ends_clean(decode)


# the decode fails


@pytest.mark.parametrize("stream", [False, True])
async def test_a_worker_that_cannot_load_computes_the_prompt_itself(shared, stream):
    gateway, _, decode = await pair(shared)
    decode.transfers.faults.failed_loads = True
    fields = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    assert tokens(await gateway.ask(**fields)) == (40, 0, 5)
    assert gateway.outcomes == ["decode_failed"]
    assert computed(decode) == 40
    await gateway.ends_clean()


async def test_a_transfer_that_hangs_is_given_up(shared, monkeypatch):
    monkeypatch.setattr(handover, "HANDOVER_FIRST_EVENT_S", 1.0)
    gateway, prefill, decode = await pair(shared, decode={"time_scale": 1.0, "speed": 1_000.0})
    decode.transfers.faults.slowdown = 1e9
    assert tokens(await gateway.ask()) == (40, 0, 5)
    assert gateway.outcomes == ["decode_failed"]
    await gateway.ends_clean(prefill, decode)


async def test_blocks_near_the_end_of_their_lease_are_not_used(shared):
    gateway, _, decode = await pair(shared, lease_s=1e-15)  # less than the resolution of the clock
    assert tokens(await gateway.ask()) == (40, 0, 5)
    assert gateway.outcomes == ["lease_expired"]
    assert not any(moved(decode).values())
    await gateway.ends_clean()


async def test_an_answer_that_begins_after_the_lease_is_dropped(shared):
    gateway, prefill, decode = await pair(shared, decode={"time_scale": 1.0, "speed": 1_000.0}, lease_s=0.5)
    decode.transfers.faults.slowdown = 1e9
    assert tokens(await gateway.ask()) == (40, 0, 5)
    assert gateway.outcomes[0] in ("decode_failed", "lease_expired")  # the latter if the loop stood still
    assert moved(decode)["stale_reads"] == 0
    await gateway.ends_clean(prefill, decode)


@pytest.mark.parametrize(
    "refusal",
    [
        b"HTTP/1.1 400 No\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 404 No\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n%b" % (len(REFUSED), REFUSED),
    ],
)
async def test_a_decode_worker_that_refuses_the_parameters_gets_the_plain_request(shared, refusal):
    gateway = await shared()
    prefill, _ = await gateway.add("prefill")
    bodies = []

    async def script(script):
        bodies.append(json.loads(script.seen.body))
        if "kv_transfer_params" in bodies[-1]:
            await script.say(refusal)
        else:
            await script.say(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")

    await gateway.scripted(script, "decode")
    gateway.occupy()
    reply = await gateway.ask(stream=True)
    assert (reply.status, reply.body) == (200, b"{}")
    assert ["kv_transfer_params" in body for body in bodies] == [True, False]
    assert bodies[0]["kv_transfer_params"]["prompt_token_ids"] == PROMPT
    assert gateway.outcomes == ["decode_failed"]
    await gateway.ends_clean()
    assert moved(prefill)["leased"] == 1  # nothing has read them


async def test_a_prefill_worker_that_dies_while_it_computes_costs_only_time(shared):
    gateway = await shared()
    prefill, dying = await gateway.add("prefill", time_scale=1.0, speed=0.001)
    decode, _ = await gateway.add("decode")
    gateway.occupy()
    asked = asyncio.ensure_future(gateway.ask())
    await eventually(lambda: prefill.server_load == 1)
    await dying.kill()
    assert tokens(await asked) == (40, 0, 5)
    assert gateway.outcomes == ["prefill_failed"]
    await gateway.ends_clean(decode)


async def test_a_decode_worker_that_dies_in_the_stream_ends_it_as_any_worker_does(shared):
    gateway = await shared()
    prefill, _ = await gateway.add("prefill")
    _, dying = await gateway.add("decode", time_scale=1.0)
    gateway.occupy()
    asked = asyncio.ensure_future(gateway.ask(stream=True, max_tokens=4_000))
    await eventually(lambda: gateway.outcomes == ["handed_over"])
    await dying.kill()
    reply = await asked
    assert b"worker_died" in reply.body
    await gateway.ends_clean(prefill)


async def test_a_decode_worker_that_died_meanwhile_is_replaced(shared):
    gateway = await shared()
    await gateway.add("prefill")
    _, dead = await gateway.add("decode")
    await gateway.add("decode")
    gateway.occupy(4)
    await dead.kill()
    for _ in range(2):
        assert tokens(await gateway.ask())[0] == 40
    assert set(gateway.outcomes) <= {"handed_over", "decode_failed"}
    await gateway.ends_clean()


# the client leaves


async def test_a_client_that_leaves_during_the_prefill_frees_both_workers(shared):
    gateway, prefill, decode = await pair(shared, prefill={"time_scale": 1.0, "speed": 0.001})
    client = await gateway.rig.send(post(COMPLETIONS, json.dumps({"model": "m", "prompt": PROMPT}).encode()))
    await eventually(lambda: prefill.server_load == 1)
    client.writer.transport.abort()
    await gateway.ends_clean(prefill, decode)
    assert gateway.outcomes == ["stopped"]


async def test_a_client_that_leaves_during_the_transfer_frees_both_workers(shared):
    gateway, prefill, decode = await pair(shared, decode={"time_scale": 1.0})
    decode.transfers.faults.slowdown = 1e9
    client = await gateway.rig.send(post(COMPLETIONS, json.dumps({"model": "m", "prompt": PROMPT}).encode()))
    await eventually(lambda: decode.server_load == 1)
    client.writer.transport.abort()
    await gateway.ends_clean(prefill, decode)
    assert gateway.outcomes == ["stopped"]


# time in which the loop stood still


async def test_a_heartbeat_knows_for_how_long_the_loop_stood_still(monkeypatch):
    class Loop:
        def __init__(self):
            self.now_s, self.calls = 0.0, []

        def time(self):
            return self.now_s

        def call_later(self, delay_s, callback):
            self.calls.append(callback)
            return asyncio.get_running_loop().call_later(1_000.0, callback)

    loop = Loop()
    heartbeat = Heartbeat(loop)
    heartbeat.listen()
    loop.now_s = 0.25
    loop.calls.pop()()
    assert heartbeat.gap_s(0.0) == 0.0
    loop.now_s = 5.5
    assert heartbeat.gap_s(0.0) == 5.0
    loop.calls.pop()()
    loop.now_s = 5.6
    assert heartbeat.gap_s(0.0) == 5.0
    assert heartbeat.gap_s(5.55) == 0.0
    heartbeat.leave()
