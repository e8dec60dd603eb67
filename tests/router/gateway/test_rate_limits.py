import asyncio
import json

import msgspec
import pytest

from router.config.model import LimitsConfig, TenantConfig
from router.security.keys import new_key
from tests.support.answers import DONE, END, STREAM_HEAD, after, answer_json, answer_stream, chunk, event, usage_event
from tests.support.raw_client import PLAIN, bearer, get, key_line, post
from tests.support.waiting import eventually

RED, RED_TOO, BLUE, LONER = (new_key() for _ in range(4))
NAMES = {"red": RED, "red-too": RED_TOO, "blue": BLUE, "loner": LONER}
AUTH = {"api_keys": [key_line(name, key) for name, key in NAMES.items()]}
TENANTS = {"red": {"keys": ["red", "red-too"]}, "blue": {"keys": ["blue"]}}


def body(**fields):
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}).encode()


def headers(reply):
    names = ("limit", "remaining", "reset")
    return {
        f"{name}-{unit}": value.decode()
        for name in names
        for unit in ("requests", "tokens")
        if (value := reply.header(f"x-ratelimit-{name}-{unit}".encode())) is not None
    }


def default(**limits):
    return {"limits": {"tenants": {"default": limits}}}


def account(gate, name="anybody"):
    return next(each for each in gate.gateway.limits() if each["account"] == name)


async def test_requests_above_the_limit_are_refused_as_openai_refuses_them(rig):
    gate = await rig(answer_json, **default(requests_per_minute=2))
    first, second, third = [await gate.ask(post(body=PLAIN)) for _ in range(3)]
    assert (first.status, headers(first)["remaining-requests"]) == (200, "1")
    assert (second.status, headers(second)["remaining-requests"]) == (200, "0")
    assert (third.status, third.code) == (429, "requests_per_minute_exceeded")
    assert 25 <= int(third.header(b"retry-after")) <= 30
    error = json.loads(third.body)["error"]
    assert (error["type"], error["param"]) == ("requests", None)
    assert error["message"].startswith("Rate limit reached for anybody on requests per minute: limit 2, left 0, ")
    assert headers(third)["limit-requests"] == "2"
    assert len(gate.workers[0].requests) == 2
    assert [one[:2] for one in gate.counted("errors")] == [("requests_per_minute_exceeded", "before_first")]


async def test_anthropics_clients_get_their_own_error(rig):
    gate = await rig(answer_json, **default(requests_per_minute=1))
    for status in (200, 429):
        reply = await gate.ask(post(b"/v1/messages", PLAIN))
        assert reply.status == status
    error = json.loads(reply.body)
    assert (error["type"], error["error"]["type"]) == ("error", "rate_limit_error")


@pytest.mark.parametrize("script", [answer_json, answer_stream])
async def test_tokens_are_charged_by_estimate_and_corrected_by_usage(rig, script):
    gate = await rig(script, **default(tokens_per_minute=600_000))
    reply = await gate.ask(post(body=body(max_tokens=1_000, stream=script is answer_stream)))
    shown = headers(reply)
    assert shown["limit-tokens"] == "600000"
    assert shown["remaining-tokens"] == "598960"  # the prompt's 40 tokens and max_tokens
    assert shown["reset-tokens"] == "104ms"
    await eventually(lambda: gate.idle)
    assert account(gate)["used_tokens"] == 43  # as the worker reported
    assert account(gate)["running"] == 0


async def test_without_max_tokens_the_learned_length_of_answers_counts(rig):
    gate = await rig(answer_json, **default(tokens_per_minute=6_000))
    first, second = await gate.ask(post(body=PLAIN)), await gate.ask(post(body=PLAIN))
    assert headers(first)["remaining-tokens"] == "5960"
    assert 6_000 - 43 - 43 <= int(headers(second)["remaining-tokens"]) <= 6_000 - 43


async def test_the_answers_of_n_count_each(rig):
    gate = await rig(answer_json, **default(tokens_per_minute=6_000))
    assert headers(await gate.ask(post(body=body(max_tokens=100, n=3))))["remaining-tokens"] == "5660"
    assert int(headers(await gate.ask(post(body=body(max_tokens=100, n=-3))))["remaining-tokens"]) <= 5_860


WORDS = "word " * 400  # 500 tokens of four bytes


async def merged(script):
    """Answer with four events of many tokens each, and with usage if the body asks for it."""
    await script.say(STREAM_HEAD, *(chunk(event(WORDS)) for _ in range(4)))
    ending = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    asked = (json.loads(script.seen.body).get("stream_options") or {}).get("include_usage")
    usage = usage_event() if asked else b""
    await script.say(chunk(ending), chunk(usage) if usage else b"", chunk(DONE), END)


async def test_a_stream_whose_client_asks_for_no_usage_is_charged_by_usage(rig):
    gate = await rig(merged, **default(tokens_per_minute=60_000))
    first = await gate.ask(post(body=body(stream=True, max_tokens=3_000)))
    await eventually(lambda: account(gate)["used_tokens"] == 3_040)  # how this worker ends streams is not known yet
    for options in ({}, {"stream_options": None}, {"stream_options": {"include_usage": False}}):
        before = account(gate)["used_tokens"]
        reply = await gate.ask(post(body=body(stream=True, max_tokens=3_000, **options)))
        assert reply.body == first.body, "the client sees no usage frame"
        await eventually(lambda: account(gate)["used_tokens"] == before + 43)  # noqa: B023


async def test_streams_of_callers_without_a_token_limit_are_not_asked(rig):
    gate = await rig(merged, **default(requests_per_minute=60))
    for _ in range(3):
        await gate.ask(post(body=body(stream=True)))
    assert not any(b"stream_options" in request.body for request in gate.workers[0].requests)


SIGNED = b"Content-Digest: sha-256=:x:\r\n"


@pytest.mark.parametrize(("fields", "least"), [({"max_tokens": 5_000}, 5_040), ({}, 2_040), ({"max_tokens": 50}, 90)])
async def test_a_stream_that_cannot_be_asked_keeps_the_estimate_and_costs_its_text(rig, fields, least):
    gate = await rig(merged, **default(tokens_per_minute=60_000))
    for number in (1, 2):
        await gate.ask(post(body=body(stream=True, **fields), extra=SIGNED))
        await eventually(lambda: account(gate)["running"] == 0)
        assert number * least <= account(gate)["used_tokens"] <= number * (least + 60)
    assert not any(b"stream_options" in request.body for request in gate.workers[0].requests)


@pytest.mark.parametrize(
    ("path", "request_body"),
    [
        (b"/v1/chat/completions", body(stream=True)),
        (b"/v1/completions", b'{"model":"m","prompt":"hi","stream":true}'),
        (b"/v1/completions", b'{"model":"m","prompt":["a","b"],"stream":true,"max_tokens":1}'),
        (b"/v1/messages", body(stream=True)),
        (b"/v1/responses", b'{"model":"m","input":"hi","stream":true,"max_output_tokens":1}'),
        (b"/v1/chat/completions/batch", body(stream=True)),
        (b"/inference/v1/generate", b'{"model":"m","token_ids":[1],"stream":true}'),
        (b"/cohere/v2/chat", body(stream=True)),
        (b"/invocations", body(stream=True)),
    ],
)
@pytest.mark.parametrize("end", ["client leaves", "worker dies"])
async def test_a_stream_that_ends_early_costs_the_text_that_was_sent(rig, path, request_body, end):
    read = asyncio.Event()

    async def endless(script):
        await script.say(STREAM_HEAD, *(chunk(event(WORDS)) for _ in range(4)))
        await read.wait()
        if end == "worker dies":
            await script.die()
        await asyncio.Event().wait()

    gate = await rig(endless, **default(tokens_per_minute=60_000))
    client = await gate.send(post(path, request_body))
    got = b""
    while got.count(WORDS.encode()) < 4:
        got += await client.reader.read(65_536)
    read.set()
    if end == "client leaves":
        client.leave()
    await eventually(lambda: account(gate)["running"] == 0)
    assert 2_000 <= account(gate)["used_tokens"] <= 2_200


async def test_usage_that_a_response_repeats_from_its_tools_is_no_report(rig):
    tools = [{"type": "function", "name": "f", "parameters": {"usage": {"input_tokens": 0, "output_tokens": 0}}}]
    queued = json.dumps({"id": "resp_1", "status": "queued", "tools": tools, "usage": None}).encode()

    async def later(script):
        await answer_json(script, body=queued)

    gate = await rig(later, **default(tokens_per_minute=6_000))
    sent = {"model": "m", "input": "hi", "background": True, "max_output_tokens": 500, "tools": tools}
    await gate.ask(post(b"/v1/responses", json.dumps(sent).encode()))
    await eventually(lambda: account(gate)["used_tokens"] == 540)


async def test_a_client_that_waits_and_leaves_pays_for_what_its_worker_generated(rig):
    async def script(script):
        if b"wait" in script.seen.body:
            await asyncio.Event().wait()
        await script.say(STREAM_HEAD, chunk(event("a")))
        await asyncio.sleep(0.02)  # 2 tokens in at least 0.02 s
        await script.say(chunk(usage_event()), chunk(DONE), END)

    gate = await rig(script, **default(tokens_per_minute=600_000))
    await gate.ask(post(body=body(stream=True)))
    client = await gate.send(post(body=body(user="wait", max_tokens=5)))
    await eventually(lambda: len(gate.workers[0].requests) == 2)
    before = account(gate)["used_tokens"]
    token_s = gate.core.tickets.output_lengths.decode_s(1.0)
    await asyncio.sleep(6 * token_s)
    client.leave()
    await eventually(lambda: account(gate)["running"] == 0)
    assert account(gate)["used_tokens"] - before == 45, "the prompt, and no more than max_tokens"


async def test_a_background_response_is_paid_for_when_it_is_read(rig):
    usage = {"input_tokens": 40, "output_tokens": 700}

    async def script(script):
        done = script.seen.lines[0].startswith(b"GET")
        shown = {"id": "resp_1", "status": "completed" if done else "queued", "usage": usage if done else None}
        await answer_json(script, body=json.dumps(shown).encode())

    gate = await rig(script, **default(tokens_per_minute=60_000))
    await gate.ask(post(b"/v1/responses", b'{"model":"m","input":"hi","background":true}'))
    await eventually(lambda: account(gate)["used_tokens"] > 0)
    begun = account(gate)["used_tokens"]
    assert (await gate.ask(get(b"/v1/responses/resp_1"))).status == 200
    await eventually(lambda: account(gate)["used_tokens"] == begun + 700)


# WebSockets

UPGRADE = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: a2V5\r\nSec-WebSocket-Version: 13\r\n"


async def echo(script):
    await script.say(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
    while data := await script.reader.read(65_536):
        await script.say(data)


async def open_socket(gate):
    client = await gate.send(get(b"/v1/realtime?model=m", UPGRADE))
    return client, await client.read()


async def test_a_socket_is_charged_both_ways_while_it_talks_and_at_its_end(rig):
    gate = await rig(echo, **default(tokens_per_minute=60_000))
    client, reply = await open_socket(gate)
    assert reply.status == 101
    for _ in range(3):
        client.writer.write(b"x" * 8_000)
        await client.reader.readexactly(8_000)
    spent = 60_000 - account(gate)["tokens"]["remaining"]
    assert 10_000 <= spent <= 12_000 and account(gate)["running"] == 1
    client.leave()
    await eventually(lambda: account(gate)["running"] == 0)
    assert account(gate)["used_tokens"] == 12_000
    assert account(gate)["tokens"]["remaining"] <= 48_100


async def test_a_socket_needs_a_bucket_that_is_not_empty(rig):
    gate = await rig(echo, **default(tokens_per_minute=60, burst_tokens=1_000))
    client, _ = await open_socket(gate)
    client.writer.write(b"x" * 2_400)
    await client.reader.readexactly(2_400)
    client.leave()
    await eventually(lambda: account(gate)["running"] == 0)
    _, refused = await open_socket(gate)
    assert (refused.status, refused.code) == (429, "tokens_per_minute_exceeded")


async def test_a_socket_ends_when_its_caller_owes_a_whole_bucket(rig):
    gate = await rig(echo, timeouts={"stream_idle_s": 0.5}, **default(tokens_per_minute=60, burst_tokens=1_000))
    client, _ = await open_socket(gate)
    client.writer.write(b"x" * 16_000)
    await client.closed()
    await eventually(lambda: gate.idle)
    assert ("tokens_per_minute_exceeded", "stream") in [one[:2] for one in gate.counted("errors")]
    assert account(gate)["running"] == 0 and account(gate)["used_tokens"] >= 2_000


async def test_a_refusal_by_the_worker_costs_a_request_and_no_tokens(rig):
    async def refuse(script):
        await answer_json(script, b"400 Bad Request", b'{"error":{"message":"no"}}')

    gate = await rig(refuse, **default(requests_per_minute=6, tokens_per_minute=6_000))
    reply = await gate.ask(post(body=body(max_tokens=1_000)))
    assert (reply.status, headers(reply)["remaining-tokens"]) == (400, "4960")
    await eventually(lambda: account(gate)["tokens"]["remaining"] == 6_000)
    assert account(gate)["requests"]["remaining"] < 5.9


async def test_a_request_that_no_worker_serves_costs_nothing(rig):
    gate = await rig(timeouts={"queue_s": 0.05}, **default(requests_per_minute=60, tokens_per_minute=6_000))
    reply = await gate.ask(post(body=body(max_tokens=1_000)))
    assert (reply.status, headers(reply)["remaining-requests"]) == (503, "59")
    shown = account(gate)
    assert (shown["requests"]["remaining"], shown["tokens"]["remaining"], shown["running"]) == (60, 6_000, 0)


async def test_a_server_error_that_is_passed_on_costs_nothing(rig):
    async def fail(script):
        await answer_json(script, b"500 Internal Server Error", b'{"error":{"message":"no"}}')

    gate = await rig(fail, **default(requests_per_minute=60, tokens_per_minute=6_000))
    assert (await gate.ask(post(body=PLAIN))).status == 500
    await eventually(lambda: account(gate)["requests"]["remaining"] == 60)


async def test_requests_at_once_are_limited_by_tenant(rig):
    go = asyncio.Event()

    tenants = {"red": {"max_concurrent_requests": 1}}
    gate = await rig(after(go), auth=AUTH, tenants=TENANTS, limits={"tenants": tenants})
    client = await gate.send(post(body=PLAIN, extra=bearer(RED)))
    await eventually(lambda: account(gate, "tenant:red")["running"] == 1)
    refused = await gate.ask(post(body=PLAIN, extra=bearer(RED_TOO)))
    assert (refused.status, refused.code, refused.header(b"retry-after")) == (429, "concurrent_requests_exceeded", b"1")
    assert headers(refused) == {}
    go.set()
    for key in (BLUE, LONER):
        assert (await gate.ask(post(body=PLAIN, extra=bearer(key)))).status == 200
    assert (await client.read()).status == 200
    assert (await gate.ask(post(body=PLAIN, extra=bearer(RED)))).status == 200


async def test_a_request_above_the_burst_is_refused_for_good(rig):
    gate = await rig(answer_json, **default(tokens_per_minute=600, burst_tokens=100))
    reply = await gate.ask(post(body=body(max_tokens=61)))
    assert (reply.status, reply.code) == (429, "request_above_token_limit")
    assert (reply.header(b"retry-after"), reply.header(b"x-should-retry")) == (None, b"false")
    assert json.loads(reply.body)["error"]["type"] == "tokens"
    assert (await gate.ask(post(body=body(max_tokens=60)))).status == 200


@pytest.mark.parametrize("max_tokens", [10**30, -5, "12", 1.0])
async def test_odd_limits_of_output_charge_no_less_than_the_prompt(rig, max_tokens):
    gate = await rig(answer_json, **default(tokens_per_minute=6_000))
    reply = await gate.ask(post(body=body(max_tokens=max_tokens)))
    assert reply.status in (200, 429)
    if reply.status == 200:
        assert int(headers(reply)["remaining-tokens"]) <= 5_960


async def test_answers_of_the_gateway_itself_are_not_limited(rig):
    gate = await rig(answer_json, **default(requests_per_minute=1))
    replies = [await gate.ask(get(b"/v1/models")) for _ in range(3)]
    assert [(reply.status, headers(reply)) for reply in replies] == [(200, {})] * 3


async def test_without_limits_no_answer_has_their_headers(rig):
    gate = await rig(answer_json)
    reply = await gate.ask(post(body=PLAIN))
    assert (reply.status, headers(reply), gate.gateway.limits()) == (200, {}, [])


async def test_all_limits_are_shown_before_their_first_request(rig):
    limits = {"tenants": {"default": {"requests_per_minute": 60}, "blue": {"tokens_per_minute": 5}}}
    gate = await rig(auth=AUTH, tenants=TENANTS, limits=limits)
    assert {each["account"] for each in gate.gateway.limits()} == {"tenant:red", "tenant:blue", "key:loner"}


# changes while the gateway runs


def change(gate, tenants, /, **limits):
    settings = {name: msgspec.convert(each, TenantConfig) for name, each in tenants.items()}
    gate.gateway.use_callers(settings, msgspec.convert(limits, LimitsConfig))


async def test_a_limit_that_is_added_counts_for_an_open_connection(rig):
    gate = await rig(answer_json)
    client = await gate.connect()
    for limits, status in (({}, 200), ({"tenants": {"default": {"requests_per_minute": 1}}}, 200), (None, 429)):
        if limits is not None:
            change(gate, {}, **limits)
        client.writer.write(post(body=PLAIN))
        assert (await client.read()).status == status


async def test_a_key_moves_to_a_limited_tenant_on_an_open_connection(rig):
    gate = await rig(answer_json, auth=AUTH, tenants=TENANTS)
    client = await gate.connect()
    request = post(body=PLAIN, extra=bearer(RED))
    client.writer.write(request)
    assert headers(await client.read()) == {}
    change(gate, {"blue": {"keys": ["red", "blue"]}}, tenants={"blue": {"requests_per_minute": 9}})
    client.writer.write(request)
    assert headers(await client.read())["remaining-requests"] == "8"
    assert (await gate.ask(post(body=PLAIN, extra=bearer(BLUE)))).header(b"x-ratelimit-remaining-requests") == b"7"


async def test_a_request_in_progress_is_settled_when_its_limit_is_gone(rig):
    go = asyncio.Event()

    gate = await rig(after(go), **default(max_concurrent_requests=1))
    client = await gate.send(post(body=PLAIN))
    await eventually(lambda: gate.workers[0].requests)
    change(gate, {})
    assert gate.gateway.limits() == []
    go.set()
    assert (await client.read()).status == 200
    change(gate, {}, tenants={"default": {"max_concurrent_requests": 1}})
    await eventually(lambda: account(gate)["running"] == 0)
    assert (await gate.ask(post(body=PLAIN))).status == 200
