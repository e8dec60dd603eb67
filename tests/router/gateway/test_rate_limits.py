"""Limits by key and tenant over sockets: charges, corrections, refusals and the headers that clients see."""

import asyncio
import json

import msgspec
import pytest

from router.config.model import LimitsConfig, TenantConfig
from router.security.keys import KeyEntry, digest_of, new_key
from tests.support.answers import END, STREAM_HEAD, answer_json, answer_stream, chunk, event
from tests.support.raw_client import PLAIN, get, post
from tests.support.waiting import eventually

RED, RED_TOO, BLUE, LONER = (new_key() for _ in range(4))
NAMES = {"red": RED, "red-too": RED_TOO, "blue": BLUE, "loner": LONER}
AUTH = {"api_keys": [KeyEntry(name, digest_of(key.encode())).line for name, key in NAMES.items()]}
TENANTS = {"red": {"keys": ["red", "red-too"]}, "blue": {"keys": ["blue"]}}


def bearer(key):
    return f"Authorization: Bearer {key}\r\n".encode()


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
    assert gate.metrics.named("error") == [("requests_per_minute_exceeded", "before_first")]


async def test_a_caller_that_sends_on_is_refused_before_its_prompt_is_identified(rig):
    gate = await rig(answer_json, **default(requests_per_minute=1))
    replies = [await gate.ask(post(body=PLAIN)) for _ in range(4)]
    assert [reply.status for reply in replies] == [200, 429, 429, 429]
    assert len(gate.metrics.named("identified")) == 2
    assert headers(replies[-1])["limit-requests"] == "1"
    assert account(gate)["refused"]["requests_per_minute"] == 3


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


async def test_a_stream_without_usage_is_charged_by_its_events(rig):
    async def bare(script):
        await script.say(STREAM_HEAD, chunk(event("a")), chunk(event("b")), chunk(b"data: [DONE]\n\n"), END)

    gate = await rig(bare, **default(tokens_per_minute=6_000))
    assert (await gate.ask(post(body=body(stream=True, max_tokens=50)))).status == 200
    await eventually(lambda: account(gate)["used_tokens"] == 42)


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


async def test_a_client_that_leaves_pays_for_the_prompt_that_its_worker_computed(rig):
    gate = await rig(lambda script: asyncio.Event().wait(), **default(tokens_per_minute=6_000))
    client = await gate.connect()
    client.writer.write(post(body=body(max_tokens=1_000)))
    await eventually(lambda: gate.workers[0].requests)
    assert account(gate)["running"] == 1
    client.leave()
    await eventually(lambda: account(gate)["running"] == 0)
    assert account(gate)["used_tokens"] == 40


async def test_a_client_that_leaves_a_stream_pays_for_what_it_got(rig):
    async def endless(script):
        await script.say(STREAM_HEAD, *(chunk(event("x")) for _ in range(7)))
        await asyncio.Event().wait()

    gate = await rig(endless, **default(tokens_per_minute=6_000))
    client = await gate.connect()
    client.writer.write(post(body=body(stream=True, max_tokens=1_000)))
    while b"x" not in await client.reader.read(65_536):
        pass
    client.leave()
    await eventually(lambda: account(gate)["running"] == 0)
    assert 41 <= account(gate)["used_tokens"] <= 47


async def test_a_worker_that_dies_in_a_stream_ends_its_charge(rig):
    async def die(script):
        await script.say(STREAM_HEAD, chunk(event("a")), chunk(event("b")))
        script.writer.transport.abort()

    gate = await rig(die, **default(tokens_per_minute=6_000, max_concurrent_requests=1))
    assert (await gate.ask(post(body=body(stream=True)))).status == 200
    await eventually(lambda: account(gate)["running"] == 0)
    assert 40 <= account(gate)["used_tokens"] <= 42


async def test_requests_at_once_are_limited_by_tenant(rig):
    go = asyncio.Event()

    async def slow(script):
        await go.wait()
        await answer_json(script)

    tenants = {"red": {"max_concurrent_requests": 1}}
    gate = await rig(slow, auth=AUTH, tenants=TENANTS, limits={"tenants": tenants})
    client = await gate.connect()
    client.writer.write(post(body=PLAIN, extra=bearer(RED)))
    await eventually(lambda: account(gate, "tenant:red")["running"] == 1)
    refused = await gate.ask(post(body=PLAIN, extra=bearer(RED_TOO)))
    assert (refused.status, refused.code, refused.header(b"retry-after")) == (429, "concurrent_requests_exceeded", b"1")
    assert headers(refused) == {}
    go.set()
    for key in (BLUE, LONER):
        assert (await gate.ask(post(body=PLAIN, extra=bearer(key)))).status == 200
    assert (await client.read()).status == 200
    assert (await gate.ask(post(body=PLAIN, extra=bearer(RED)))).status == 200


async def test_the_keys_of_a_tenant_share_its_buckets_and_have_their_own(rig):
    limits = {"tenants": {"red": {"requests_per_minute": 3}}, "keys": {"red": {"requests_per_minute": 2}}}
    gate = await rig(answer_json, auth=AUTH, tenants=TENANTS, limits=limits)
    statuses = [(await gate.ask(post(body=PLAIN, extra=bearer(RED)))).status for _ in range(3)]
    assert statuses == [200, 200, 429]
    statuses = [(await gate.ask(post(body=PLAIN, extra=bearer(RED_TOO)))).status for _ in range(2)]
    assert statuses == [200, 429]
    reply = await gate.ask(post(body=PLAIN, extra=bearer(BLUE)))
    assert (reply.status, headers(reply)) == (200, {})


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


async def test_paths_that_run_no_model_cost_a_request_and_no_tokens(rig):
    gate = await rig(answer_json, **default(requests_per_minute=60, tokens_per_minute=600))
    reply = await gate.ask(post(b"/tokenize", body(max_tokens=1_000_000)))
    assert reply.status == 200
    assert (headers(reply)["remaining-requests"], headers(reply)["remaining-tokens"]) == ("59", "600")


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

    async def slow(script):
        await go.wait()
        await answer_json(script)

    gate = await rig(slow, **default(max_concurrent_requests=1))
    client = await gate.connect()
    client.writer.write(post(body=PLAIN))
    await eventually(lambda: gate.workers[0].requests)
    change(gate, {})
    assert gate.gateway.limits() == []
    go.set()
    assert (await client.read()).status == 200
    change(gate, {}, tenants={"default": {"max_concurrent_requests": 1}})
    await eventually(lambda: account(gate)["running"] == 0)
    assert (await gate.ask(post(body=PLAIN))).status == 200
