import asyncio

import pytest

from tests.support.answers import END, answer_stream, chunk, says
from tests.support.raw_client import PLAIN, post

WORDS = b'{"error":{"message":"CUDA out of memory","type":"InternalServerError","param":null,"code":500}}'


def erring(status=b"500 Internal Server Error", headers=b"", body=WORDS):
    async def script(script):
        await script.say(b"HTTP/1.1 %s\r\ncontent-type: application/json\r\n%scontent-length: %d\r\n\r\n%s"
                         % (status, headers, len(body), body))  # fmt: skip

    return script


@pytest.mark.parametrize("stream", [True, False])
async def test_the_last_attempts_500_reaches_the_client(rig, stream):
    gate = await rig(erring(), erring())
    client = await gate.connect()
    reply = await client.ask(post() if stream else post(body=PLAIN))
    assert (reply.status, reply.body) == (500, WORDS)
    assert reply.header(b"content-type") == b"application/json"
    assert reply.header(b"retry-after") is None
    assert reply.header(b"x-request-id")
    assert sum(len(worker.requests) for worker in gate.workers) == 2
    assert (await client.ask(post())).status == 500, "the connection stays open"
    assert gate.idle


async def test_the_workers_retry_after_is_relayed(rig):
    gate = await rig(erring(headers=b"Retry-After: 17\r\n", status=b"502 Bad Gateway"))
    reply = await gate.ask(post())
    assert (reply.status, reply.header(b"retry-after")) == (502, b"17")


async def test_a_500_is_retried_on_another_worker(rig):
    gate = await rig(erring(), answer_stream)
    assert [(await gate.ask(post())).status for _ in range(4)] == [200] * 4


async def test_a_chunked_500_reaches_an_http_1_0_client(rig):
    script = says(b"HTTP/1.1 500 No\r\ntransfer-encoding: chunked\r\n\r\n", chunk(b"broken"), END)
    gate = await rig(script)
    assert (await gate.ask(post())).body == b"broken"
    reply = await gate.ask(post(version=b"1.0"))
    assert (reply.status, reply.body, reply.header(b"transfer-encoding")) == (500, b"broken", None)


@pytest.mark.parametrize("case", ["too long", "cut off", "never ends"])
async def test_an_incomplete_500_becomes_a_gateway_error(rig, case, monkeypatch):
    length = 200_000 if case == "too long" else 1_000

    async def script(script):
        await script.say(b"HTTP/1.1 500 No\r\ncontent-length: %d\r\n\r\n" % length, b"x" * (length // 2))
        if case == "cut off":
            await script.die()
        await script.gone()

    gate = await rig(script)
    reply = await gate.ask(post())
    assert (reply.status, reply.code, reply.header(b"retry-after")) == (503, "worker_failed", b"1")
    assert gate.idle


async def test_a_500_after_comments_is_an_error_event(rig):
    async def script(script):
        await commented.wait()
        await erring()(script)

    commented = asyncio.Event()
    gate = await rig(script, timeouts={"header_delay_s": 0.05})
    reply = await gate.ask(post(), on_head=commented.set)
    assert reply.status == 200
    assert reply.body.endswith(b"data: " + WORDS + b"\n\ndata: [DONE]\n\n")


async def test_a_500_without_json_after_comments_is_a_gateway_error_event(rig):
    async def script(script):
        await commented.wait()
        await erring(body=b"Internal Server Error")(script)

    commented = asyncio.Event()
    gate = await rig(script, timeouts={"header_delay_s": 0.05})
    assert b"worker_failed" in (await gate.ask(post(), on_head=commented.set)).body
