import asyncio
import json
from dataclasses import replace

import pytest

from router.gateway.flow.attempt.opening import NOT_FOUND_BYTES
from router.placement.fleet.fleet import WorkerState
from tests.support.answers import DONE, answer_json, answer_stream, event, once, says
from tests.support.gateway_rig import FACTS
from tests.support.raw_client import PLAIN, post

OPENAI = {"message": "The model `m` does not exist.", "type": "NotFoundError", "param": "model", "code": 404}
UNSERVED = json.dumps({"error": OPENAI}).encode()
HEAD = b"HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\n"


def whole(body):
    return HEAD + b"content-length: %d\r\n\r\n" % len(body) + body


def chunked(*bodies):
    chunks = [b"%x\r\n%b\r\n" % (len(body), body) for body in bodies if body]
    return HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"".join(chunks) + b"0\r\n\r\n"


def saying(*reads, last=False, after=None):
    """Return the script of a worker that writes its response in pieces, once `after` is set if there is one."""

    async def script(script):
        if after is not None:
            await after.wait()
        await script.say_apart(*reads)
        if last:
            script.writer.close()

    return script


def asked(gate):
    models = []
    gate.fleet.on_unknown_model.append(models.append)
    return models


FRAMINGS = {
    "whole": saying(whole(UNSERVED)),
    "head first": saying(whole(UNSERVED)[:-100], whole(UNSERVED)[-100:]),
    "small pieces": saying(*[whole(UNSERVED)[at : at + 9] for at in range(0, 200, 9)]),
    "chunked": saying(chunked(UNSERVED)),
    "chunks": saying(chunked(UNSERVED[:20], UNSERVED[20:])),
    "cut chunks": saying(*[chunked(UNSERVED[:20], UNSERVED[20:])[at : at + 40] for at in range(0, 400, 40)]),
    "until close": saying(HEAD + b"\r\n" + UNSERVED, last=True),
}


@pytest.mark.parametrize(
    ("framing", "stream"), [*((framing, True) for framing in FRAMINGS), ("whole", False), ("cut chunks", False)]
)
async def test_another_worker_answers_after_a_404_for_the_model(rig, framing, stream):
    gate = await rig(*once(FRAMINGS[framing], answer_stream if stream else answer_json))
    models = asked(gate)
    reply = await gate.ask(post() if stream else post(body=PLAIN))
    assert reply.status == 200
    assert b"NotFound" not in reply.raw
    assert gate.recorded.events[:3] == ["ticket", "retry unserved", "failed unserved"]
    assert gate.recorded.events[-1] == "finished 200"
    assert gate.counted("retries") == [("unserved",)]
    assert models == ["m"]
    assert gate.gateway.statistics()["pools"]["idle"] == (1 if framing == "until close" else 2)
    assert {endpoint.state for endpoint in gate.fleet.endpoints} == {WorkerState.READY}
    assert gate.idle


@pytest.mark.parametrize("framing", FRAMINGS)
async def test_a_404_is_relayed_without_another_worker(rig, framing):
    gate = await rig(FRAMINGS[framing])
    models = asked(gate)
    reply = await gate.ask(post())
    assert (reply.status, reply.body) == (404, UNSERVED)
    assert gate.recorded.events == ["ticket", "finished 404"]
    assert models == ["m"]
    assert gate.idle


async def test_an_http_1_0_client_gets_the_404(rig):
    gate = await rig(FRAMINGS["cut chunks"])
    reply = await gate.ask(post(version=b"1.0"))
    assert (reply.status, reply.body) == (404, UNSERVED)


async def test_the_last_404_is_relayed_if_no_worker_serves_the_model(rig):
    gate = await rig(*[FRAMINGS["whole"]] * 4)
    reply = await gate.ask(post())
    assert (reply.status, reply.body) == (404, UNSERVED)
    assert sum(len(worker.requests) for worker in gate.workers) == 3
    assert gate.recorded.events[-1] == "finished 404"
    assert gate.idle


@pytest.mark.parametrize("retries", [{"max_attempts": 1}, {"budget_ratio": 0.0}])
async def test_a_404_is_relayed_without_retries(rig, retries):
    gate = await rig(*[FRAMINGS["chunks"]] * 2, retries=retries)
    models = asked(gate)
    reply = await gate.ask(post())
    assert (reply.status, reply.body) == (404, UNSERVED)
    assert sum(len(worker.requests) for worker in gate.workers) == 1
    assert models == ["m"]


@pytest.mark.parametrize("framing", ["whole", "chunks"])
async def test_a_404_after_comments_is_retried(rig, framing):
    answer = whole(UNSERVED) if framing == "whole" else chunked(UNSERVED[:20], UNSERVED[20:])
    commented, timeouts = asyncio.Event(), {"header_delay_s": 0.03}
    late = saying(answer[:150], answer[150:], after=commented)
    gate = await rig(*once(late, answer_stream), timeouts=timeouts)
    body = (await gate.ask(post(), on_head=commented.set)).body
    assert body.startswith(b": ") and event("a") in body and b"NotFound" not in body
    assert gate.counted("retries") == [("unserved",)]
    commented.clear()
    alone = await rig(late, timeouts=timeouts)
    body = (await alone.ask(post(), on_head=commented.set)).body
    assert body.endswith(b"data: " + UNSERVED + b"\n\n" + DONE)
    assert alone.recorded.events == ["ticket", "finished 404"]
    assert gate.idle and alone.idle


def about(param, message="not found"):
    return json.dumps({"error": OPENAI | {"param": param, "message": message}}).encode()


OTHERS = {
    "an unknown path": b'{"detail":"Not Found"}',
    "a response": about("response_id"),
    "no parameter": about(None, 'The model `m` does not exist. "param": "model"'),
    "a parameter that is no text": about(["model"]),
    "in another place": b'{"param":"model","error":{"code":404}}',
    "a text": b'{"error":"param: model"}',
    "a list": b'[{"error":{"param":"model"}}]',
    "no JSON": b'"param": "model"',
    "no text": b"\xff\xfe",
    "nothing": b"",
    "deep": b'{"error":{"x":' + b"[" * 2_000,
    "long": about("model", "x" * 4_096),
    "very long": about("model", "x" * 300_000),
}


@pytest.mark.parametrize(("frame", "pieces"), [(whole, 1), (chunked, 3)])
@pytest.mark.parametrize("name", OTHERS)
async def test_other_404s_are_relayed(rig, name, frame, pieces):
    body = OTHERS[name]
    answer = frame(body)
    step = len(answer) // pieces + 1
    script = saying(*[answer[at : at + step] for at in range(0, len(answer), step)])
    gate = await rig(script, script)
    models = asked(gate)
    client = await gate.connect()
    reply = await client.ask(post())
    assert (reply.status, reply.body) == (404, body)
    assert gate.recorded.events == ["ticket", "finished 404"]
    assert models == []
    assert (await client.ask(post())).body == body  # the connection stays open
    assert gate.idle


async def test_a_404_without_a_model_is_not_retried(rig):
    gate = await rig(*[FRAMINGS["whole"]] * 2)
    models = asked(gate)
    assert (await gate.ask(post(body=b'{"messages":[]}'))).body == UNSERVED
    assert models == []
    assert sum(len(worker.requests) for worker in gate.workers) == 1


async def test_a_long_404_is_relayed_unread(rig):
    body = UNSERVED[:-1] + b" " * NOT_FOUND_BYTES + UNSERVED[-1:]

    script = says(b"HTTP/1.1 404 Not Found\r\ncontent-length: %d\r\n\r\n" % len(body), body)
    gate = await rig(script, script)
    asked(gate)
    reply = await gate.ask(post())
    assert (reply.status, reply.body) == (404, body)
    assert sum(len(worker.requests) for worker in gate.workers) == 1


async def test_a_404_for_a_form_is_retried_as_for_any_other_body(rig):
    gate = await rig(FRAMINGS["whole"], answer_json)
    asked(gate)
    body = b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nm\r\n--b--\r\n'
    raw = post(b"/v1/audio/transcriptions", body).replace(b"application/json", b"multipart/form-data; boundary=b")
    assert {(await gate.ask(raw)).status for _ in range(3)} == {200}
    assert {request.body for worker in gate.workers for request in worker.requests} == {body}


async def test_a_form_of_two_models_is_refused(rig):
    """Its limits and its worker would be those of one, and the other would run."""
    gate = await rig(answer_json)
    part = b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\n%s\r\n'
    raw = post(b"/v1/audio/transcriptions", part % b"m" + part % b"nonsense" + b"--b--\r\n")
    reply = await gate.ask(raw.replace(b"application/json", b"multipart/form-data; boundary=b"))
    assert (reply.status, reply.code) == (400, "invalid_body")
    assert not gate.workers[0].requests


async def test_a_worker_with_unknown_models_is_not_marked(rig):
    gate = await rig(*[FRAMINGS["whole"]] * 2, facts=replace(FACTS, models=()))
    models = asked(gate)
    assert (await gate.ask(post(body=b'{"model":"nonsense","messages":[]}'))).body == UNSERVED
    assert models == []
    assert sum(len(worker.requests) for worker in gate.workers) == 1


async def test_an_incomplete_404_counts_as_a_lost_worker(rig):
    async def die(script):
        await script.say_apart(whole(UNSERVED)[:-10])
        await script.die()

    gate = await rig(*once(die, answer_stream))
    assert (await gate.ask(post())).body.startswith(event("a"))
    assert gate.recorded.events[:3] == ["ticket", "retry sent", "failed sent"]


async def test_a_404_does_not_eject_the_worker(rig):
    gate = await rig(FRAMINGS["whole"], answer_json, retries={"budget_ratio": 1.0})
    for _ in range(20):
        assert (await gate.ask(post(body=PLAIN))).status == 200
    assert {endpoint.state for endpoint in gate.fleet.endpoints} == {WorkerState.READY}
    assert len(gate.workers[0].requests) <= 3  # avoided for a moment after each 404, though it looks idle
