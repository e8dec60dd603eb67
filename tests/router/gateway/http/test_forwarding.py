import asyncio
import json

import pytest

from backends.worker import RankCache, ServedModel, WorkerFacts
from tests.support.answers import (
    DONE,
    END,
    STREAM_HEAD,
    USAGE,
    answer_json,
    answer_stream,
    chunk,
    event,
    usage_event,
)
from tests.support.raw_client import PLAIN, get, post
from tests.support.scripted_worker import ScriptedWorker
from tests.support.waiting import delivered, eventually, iterations


async def test_a_stream_arrives_as_the_worker_framed_it(rig):
    gate = await rig(answer_stream)
    reply = await gate.ask(post())
    events = [event(text) for text in "abc"] + [usage_event(), DONE]
    assert reply.raw.endswith(b"\r\n\r\n" + b"".join(map(chunk, events)) + END)
    assert reply.status == 200
    assert b"\r\nX-Odd-Case: Kept \r\n" in reply.head
    assert reply.header(b"transfer-encoding") == b"chunked"
    assert gate.recorded.events[:2] == ["ticket", "first_token"]
    assert gate.recorded.events[-1] == "finished 200"
    assert gate.recorded.usage.cached_tokens == 32
    assert gate.recorded.usage.completion_tokens == 3
    assert gate.identity.observed == [("m", 40)]
    assert gate.idle


async def test_a_plain_answer_keeps_its_length_and_reports_usage(rig):
    gate = await rig(answer_json)
    reply = await gate.ask(post(body=PLAIN))
    assert json.loads(reply.body)["usage"] == USAGE
    assert reply.header(b"transfer-encoding") is None
    assert gate.recorded.events == ["ticket", "finished 200"]
    assert gate.recorded.requests[0].stream is False
    assert gate.recorded.usage.prompt_tokens == 40


async def test_the_body_and_end_to_end_headers_reach_the_worker_unchanged(rig):
    gate = await rig(answer_json)
    body = b'{ "model" :"m","messages":[ ], "x\\u00e9":{"deep":[1,2.50,1e3]}, "cache_salt":"s" }'
    lines = (
        b"X-Custom:no-space\r\nx-CASE:  two  \r\nAccept: */*\r\nAuthorization: Bearer k\r\n"
        b"traceparent: 00-1-2-01\r\ntracestate: a=b\r\nAccept: again\r\nX-Latin: \xe9\r\n"
    )
    await gate.ask(post(b"/v1/chat/completions?a=b&c", body, lines))
    seen = gate.workers[0].requests[0]
    assert seen.body == body
    assert seen.lines[0] == b"POST /v1/chat/completions?a=b&c HTTP/1.1"
    sent = (
        b"Host: "
        + gate.workers[0].id.encode()
        + b"\r\nContent-Type: application/json\r\n"
        + lines
        + b"Content-Length: %d" % len(body)
    )
    assert seen.lines[1 : len(sent.split(b"\r\n")) + 1] == sent.split(b"\r\n")
    added = seen.lines[len(sent.split(b"\r\n")) + 1 :]
    assert [line.partition(b":")[0] for line in added] == [
        b"X-Request-Id",
        b"Via",
        b"X-Forwarded-For",
        b"X-Forwarded-Proto",
        b"X-Forwarded-Host",
    ]
    assert seen.header(b"x-forwarded-for") == b"127.0.0.1"


@pytest.mark.parametrize("given", [b"abc-123", b"x" * 128])
async def test_a_request_id_is_passed_on_and_returned(rig, given):
    gate = await rig(answer_json)
    reply = await gate.ask(post(body=PLAIN, extra=b"X-Request-ID: " + given + b"\r\n"))
    assert reply.header(b"x-request-id") == given
    assert gate.workers[0].requests[0].lines.count(b"X-Request-ID: " + given) == 1


@pytest.mark.parametrize("given", [b"x" * 129, b"a b", b"\xe9", b""])
async def test_an_invalid_request_id_is_replaced(rig, given):
    gate = await rig(answer_json)
    reply = await gate.ask(post(body=PLAIN, extra=b"X-Request-Id: " + given + b"\r\n"))
    assert len(reply.header(b"x-request-id")) == 32
    assert gate.workers[0].requests[0].header(b"x-request-id") == reply.header(b"x-request-id")


async def test_response_headers_name_worker_and_prediction_if_configured(rig):
    gate = await rig(answer_stream, headers={"worker": True, "predicted_cached_tokens": True})
    reply = await gate.ask(post())
    assert reply.header(b"x-warmroute-worker") == gate.workers[0].id.encode()
    assert reply.header(b"x-warmroute-predicted-cached-tokens") == b"0"
    assert reply.header(b"x-warmroute-residency") == b"approximate", "no events here"
    assert (await gate.ask(get(b"/nope"))).header(b"x-warmroute-worker") is None


async def test_the_chosen_rank_is_sent_to_the_worker(rig):
    facts = WorkerFacts(models=(ServedModel("m"),), caches={rank: RankCache(16, 100, True) for rank in (0, 1)})
    gate = await rig(answer_json, facts=facts)
    for _ in range(2):
        await gate.ask(post(body=PLAIN, extra=b"X-data-parallel-rank: 7\r\n"))
    ranks = {seen.header(b"x-data-parallel-rank") for seen in gate.workers[0].requests}
    assert ranks == {b"0", b"1"}


async def test_absolute_form_is_made_relative_and_is_the_forwarded_host(rig):
    gate = await rig(answer_json)
    raw = post(body=PLAIN).replace(b"POST /v1", b"POST http://real.example:81/v1", 1)
    assert (await gate.ask(raw)).status == 200
    seen = gate.workers[0].requests[0]
    assert seen.lines[0] == b"POST /v1/chat/completions HTTP/1.1"
    assert seen.header(b"host") == gate.workers[0].id.encode()
    assert seen.header(b"x-forwarded-host") == b"real.example:81"


async def test_a_workers_base_path_is_prepended(rig):
    gate = await rig()
    worker = await ScriptedWorker(answer_json).start()
    gate.join(f"http://{worker.id}/deep")
    await gate.ask(post(body=PLAIN))
    assert worker.requests[0].lines[0] == b"POST /deep/v1/chat/completions HTTP/1.1"
    await worker.stop()


async def test_a_pipelined_request_waits_for_the_stream_before_it(rig):
    release = asyncio.Event()

    async def script(script):
        await script.say(STREAM_HEAD, chunk(event("a")))
        await release.wait()
        await script.say(END)

    gate = await rig(script)
    client = await gate.connect()
    client.writer.write(post() + get(b"/livez") * 3_000)  # more than the pipeline buffer, so reading must stop
    await eventually_one(gate.workers[0])
    release.set()
    assert (await client.read()).status == 200
    for _ in range(3_000):
        assert (await client.read()).status == 200


async def eventually_one(worker):
    await eventually(lambda: worker.requests)


async def test_http_1_0_gets_an_unframed_stream_and_a_closed_connection(rig):
    gate = await rig(answer_stream)
    client = await gate.connect()
    reply = await client.ask(post(version=b"1.0"))
    assert reply.header(b"transfer-encoding") is None
    assert reply.header(b"connection") == b"close"
    assert reply.body == b"".join(event(text) for text in "abc") + usage_event() + DONE
    assert gate.recorded.usage.cached_tokens == 32


@pytest.mark.parametrize("settings", [{}, {"observe_usage": 1.0}])
async def test_a_lone_whole_answer_leaves_the_gateway_quiet(rig, settings):
    gate = await rig(answer_json, **settings)
    client = await gate.connect()
    for version in (b"1.1", b"1.0"):
        assert (await client.ask(post(body=PLAIN, version=version))).status == 200
        await iterations(3)
        assert gate.gateway._parts.outbox.quiet


async def test_http_1_0_keep_alive_works_with_a_length(rig):
    gate = await rig(answer_json)
    client = await gate.connect()
    for _ in range(2):
        reply = await client.ask(post(body=PLAIN, version=b"1.0", extra=b"Connection: keep-alive\r\n"))
        assert reply.header(b"connection") == b"keep-alive"
    await client.ask(post(body=PLAIN, version=b"1.0"))
    assert await client.closed() == b""


async def test_connection_close_is_honoured_and_announced(rig):
    gate = await rig(answer_json)
    client = await gate.connect()
    reply = await client.ask(post(body=PLAIN, extra=b"Connection: close\r\n"))
    assert reply.header(b"connection") == b"close"
    assert await client.closed() == b""


async def test_a_body_without_length_is_chunked_for_the_client(rig):
    async def script(script):
        await script.say_apart(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\nhello ", b"world")
        script.writer.close()

    gate = await rig(script)
    client = await gate.connect()
    for _ in range(2):
        assert (await client.ask(post(body=PLAIN))).body == b"hello world"
    assert gate.workers[0].connections == 2


@pytest.mark.parametrize("status", [b"400 Bad Request", b"404 Not Found", b"422 X", b"501 Not Implemented"])
async def test_a_client_error_is_relayed_and_not_held_against_the_worker(rig, status):
    body = b'{"error":"Unauthorized"}'

    async def script(script):
        await answer_json(script, status, body)

    gate = await rig(script, script)
    for _ in range(60):
        reply = await gate.ask(post(body=PLAIN))
        assert (reply.status, reply.body) == (int(status[:3]), body)
    assert set(gate.recorded.events) == {"ticket", f"finished {int(status[:3])}"}
    assert all(endpoint.state == "ready" for endpoint in gate.fleet.endpoints)


async def test_expect_100_continue_is_answered_by_the_gateway(rig):
    gate = await rig(answer_json)
    client = await gate.connect()
    raw = post(body=PLAIN, extra=b"Expect: 100-continue\r\n")
    head, body = raw[: -len(PLAIN)], PLAIN
    client.writer.write(head)
    assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    reply = await client.ask(body)
    assert reply.status == 200
    assert gate.workers[0].requests[0].header(b"expect") is None
    assert (await gate.ask(raw)).interim == []  # the body has arrived already


async def test_unix_socket_and_ipv6_serve_requests(rig, tmp_path):
    path = str(tmp_path / "gw.sock")
    gate = await rig(answer_json, uds=path)
    assert gate.address == path
    assert (await gate.ask(post(body=PLAIN))).status == 200
    assert gate.workers[0].requests[0].header(b"x-forwarded-for") is None
    gate = await rig(answer_json, host="::1")
    assert gate.address.startswith("[::1]:")
    assert (await gate.ask(post(body=PLAIN))).status == 200
    assert gate.workers[0].requests[0].header(b"x-forwarded-for") == b"::1"


async def test_an_idle_connection_that_closed_is_replaced_without_a_retry(rig):
    async def script(script):
        if script.seen.connection == 1 and len(gate.workers[0].requests) == 2:
            await script.die()  # as if the keep-alive time ended while the request was on its way
            return
        await answer_json(script)

    gate = await rig(script)
    client = await gate.connect()
    assert (await client.ask(post(body=PLAIN))).status == 200
    assert (await client.ask(post(body=PLAIN))).status == 200
    assert gate.recorded.events == ["ticket", "finished 200"] * 2
    assert gate.counted("redials") == [()]


async def test_idle_worker_connections_are_closed_before_the_worker_closes_them(rig):
    gate = await rig(answer_json, timeouts={"upstream_idle_s": 0.08})
    await gate.ask(post(body=PLAIN))
    assert gate.gateway.statistics()["pools"]["idle"] == 1
    await eventually(lambda: gate.gateway.statistics()["pools"]["open"] == 0)
    assert (await gate.ask(post(body=PLAIN))).status == 200


async def test_a_worker_connection_with_unsolicited_bytes_is_closed(rig):
    async def script(script):
        await answer_json(script)
        await delivered()
        await script.say(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil")

    gate = await rig(script)
    assert (await gate.ask(post(body=PLAIN))).status == 200
    await eventually(lambda: gate.gateway.statistics()["pools"]["open"] == 0)
    assert b"evil" not in (await gate.ask(post(body=PLAIN))).body
