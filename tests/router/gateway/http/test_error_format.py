import asyncio
import json

import pytest

from router.errors import ErrorKind, RequestError
from router.placement.request import Usage
from router.requests.answers.error_format import body_event, error_body, error_event
from tests.support.answers import END, STREAM, answer_json, chunk, says
from tests.support.raw_client import get, post

MESSAGES = b"/v1/messages"
RESPONSES = b"/v1/responses"
STREAMED = {
    MESSAGES: b'{"model":"m","max_tokens":9,"messages":[],"stream":true}',
    RESPONSES: b'{"model":"m","input":"hi","stream":true}',
}


def named(name, **fields):
    return f"event: {name}\ndata: {json.dumps({'type': name, **fields})}\n\n".encode()


def introduction(number=1):
    response = {"id": f"resp_{number}", "instructions": "I" * 9_000}
    return named("response.created", response=response) + named("response.in_progress", response=response)


DELTA = named("response.output_text.delta", delta="a")
COMPLETED = named(
    "response.completed",
    response={"id": "resp_1", "usage": {"input_tokens": 40, "output_tokens": 3,
                                        "input_tokens_details": {"cached_tokens": 32}}},
)  # fmt: skip
START = named("message_start", message={"usage": {"input_tokens": 40, "output_tokens": 0}})
STOP = named(
    "message_delta",
    usage={"input_tokens": 3, "output_tokens": 3, "cache_read_input_tokens": 32, "cache_creation_input_tokens": 5},
) + named("message_stop")


async def test_a_worker_lost_after_its_introductory_events_is_replaced(rig):
    """No byte has reached the client, so another worker takes over. Introductory events are no first token."""
    calls = []

    async def script(script):
        calls.append(script)
        await script.say(STREAM, chunk(introduction(len(calls))))
        if len(calls) == 1:
            await script.die()
        else:
            await script.say(chunk(DELTA), chunk(COMPLETED), END)

    gate = await rig(script, script)
    reply = await gate.ask(post(RESPONSES, STREAMED[RESPONSES]))
    assert reply.body == introduction(2) + DELTA + COMPLETED
    events = gate.recorded.events
    assert events == ["ticket", "retry sent", "failed sent", "first_token", "finished 200"]
    assert gate.recorded.usage == Usage(40, 3, 32)
    assert len(gate.gateway._parts.identifier.pins._workers) == 1


async def test_introductory_events_are_no_first_token(rig):
    introduced, go_on = asyncio.Event(), asyncio.Event()

    async def script(script):
        await script.say_apart(STREAM + chunk(introduction()))
        introduced.set()
        await go_on.wait()
        await script.say(chunk(DELTA), chunk(COMPLETED), END)

    gate = await rig(script)
    client = await gate.send(post(RESPONSES, STREAMED[RESPONSES]))
    await introduced.wait()
    assert gate.recorded.events == ["ticket"]
    go_on.set()
    assert (await client.read()).body == introduction() + DELTA + COMPLETED
    assert gate.recorded.events == ["ticket", "first_token", "finished 200"]


async def test_introductory_events_pass_after_comments(rig):
    async def script(script):
        await script.say(STREAM, chunk(introduction()))
        await commented.wait()
        await script.say(chunk(DELTA), chunk(COMPLETED), END)

    commented = asyncio.Event()
    gate = await rig(script, timeouts={"header_delay_s": 0.05, "comment_interval_s": 5})
    body = (await gate.ask(post(RESPONSES, STREAMED[RESPONSES]), on_head=commented.set)).body
    assert body.startswith(b": warmroute") and body.endswith(b"\n\n" + introduction() + DELTA + COMPLETED)


async def test_usage_of_a_messages_stream_is_read(rig):
    script = says(STREAM, chunk(START), chunk(STOP), END)
    gate = await rig(script)
    assert (await gate.ask(post(MESSAGES, STREAMED[MESSAGES]))).body == START + STOP
    assert gate.recorded.usage == Usage(40, 3, 32)
    assert gate.recorded.events == ["ticket", "first_token", "finished 200"]


@pytest.mark.parametrize("path", [MESSAGES, RESPONSES])
async def test_a_broken_stream_ends_with_an_error_event_of_its_api(rig, path):
    async def script(script):
        await script.say(STREAM, chunk(START if path == MESSAGES else introduction() + DELTA))
        await started.wait()
        await script.die()

    started = asyncio.Event()
    gate = await rig(script)
    client = await gate.connect()
    *_, last, end = (await client.ask(post(path, STREAMED[path]), on_head=started.set)).body.split(b"\n\n")
    name, _, data = last.partition(b"\n")
    said = json.loads(data.removeprefix(b"data: "))
    assert (name, end) == (b"event: error", b"") and said["type"] == "error"
    assert said["error"]["code"] == "worker_died_in_stream"
    assert said["error"]["type"] == ("api_error" if path == MESSAGES else "upstream_error")
    assert ("code" in said) == (path == RESPONSES)
    assert gate.recorded.events == ["ticket", "first_token", "failed stream"]
    assert (await client.ask(get(b"/livez"))).status == 200


async def test_an_error_after_comments_is_a_named_event(rig):
    refusal = b'{"type":"error","error":{"type":"invalid_request_error","message":"no"}}'

    async def script(script):
        await commented.wait()
        await answer_json(script, b"400 Bad", refusal)

    commented = asyncio.Event()
    gate = await rig(script, timeouts={"header_delay_s": 0.05, "comment_interval_s": 5})
    body = (await gate.ask(post(MESSAGES, STREAMED[MESSAGES]), on_head=commented.set)).body
    assert body.partition(b"\n\n")[2] == b"event: error\ndata: " + refusal + b"\n\n"


async def test_messages_clients_get_gateway_errors_in_anthropics_format(rig):
    gate = await rig(timeouts={"queue_s": 0})
    for path, body, status, kind, code in (
        (MESSAGES, b"{", 400, "invalid_request_error", "invalid_json"),
        (MESSAGES, b'{"model":"m","messages":[]}', 503, "overloaded_error", "no_worker_available"),
        (b"/v1/messages/nope", b"{}", 404, "not_found_error", "path_not_found"),
    ):
        reply = await gate.ask(post(path, body))
        said = json.loads(reply.body)
        assert (reply.status, said["type"], said["error"]["type"]) == (status, "error", kind)
        assert said["error"]["code"] == code and said["error"]["message"]
    reply = await gate.ask(post(RESPONSES, b"{"))
    assert set(json.loads(reply.body)["error"]) == {"message", "type", "param", "code"}


async def test_a_follow_up_goes_to_the_worker_that_stored_the_response(rig):
    async def script(script):
        port = script.writer.get_extra_info("sockname")[1]
        await answer_json(script, body=b'{"id":"resp_%d"}' % port)

    gate = await rig(script, script, script)
    made = json.loads((await gate.ask(post(RESPONSES, b'{"model":"m","input":"x"}'))).body)["id"]
    for _ in range(4):
        follow_up = json.dumps({"model": "m", "input": "y", "previous_response_id": made}).encode()
        assert json.loads((await gate.ask(post(RESPONSES, follow_up))).body)["id"] == made


# wording, by itself


@pytest.mark.parametrize(
    ("kind", "type_"),
    [
        (ErrorKind.BAD_REQUEST, "invalid_request_error"),
        (ErrorKind.MODEL_NOT_FOUND, "not_found_error"),
        (ErrorKind.BODY_TOO_LARGE, "request_too_large"),
        (ErrorKind.OVERLOADED, "overloaded_error"),
        (ErrorKind.TOTAL_TIMEOUT, "timeout_error"),
        (ErrorKind.INTERNAL, "api_error"),
    ],
)
def test_anthropic_error_types_follow_status_and_fault(kind, type_):
    body = json.loads(error_body(RequestError(kind, "m"), "/v1/messages"))
    assert body == {"type": "error", "error": {"type": type_, "message": "m", "code": kind.spec.code}}
    assert error_event(kind, "m", "/v1/messages").startswith(b'event: error\ndata: {"type":"error"')


def test_other_paths_get_openai_errors():
    kind = ErrorKind.WORKER_FAILED
    plain = {"message": "m", "type": kind.spec.type, "param": "p", "code": kind.spec.code}
    assert json.loads(error_body(RequestError(kind, "m", param="p"), "/v1/completions")) == {"error": plain}
    assert error_event(kind, "m", "").endswith(b"}}\n\ndata: [DONE]\n\n")
    assert body_event(b'{"a":\n1}\n', "/v1/completions") == b'data: {"a":\ndata: 1}\n\ndata: [DONE]\n\n'
    assert body_event(b"{}", "/v1/responses") == b"event: error\ndata: {}\n\n"
