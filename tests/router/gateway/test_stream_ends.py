"""Streams that end for HTTP and not for their API, and answers that the worker has aborted."""

import asyncio
import json

import pytest

from tests.support.answers import DONE, END, chunk, event, json_head, once, says, usage_event
from tests.support.raw_client import post
from tests.support.waiting import eventually

CHAT, TEXT, MESSAGES, RESPONSES = b"/v1/chat/completions", b"/v1/completions", b"/v1/messages", b"/v1/responses"
APIS = [CHAT, TEXT, MESSAGES, RESPONSES]
EVENTS = b"HTTP/1.%d 200 OK\r\ncontent-type: text/event-stream\r\n"
CHUNKED = EVENTS % 1 + b"transfer-encoding: chunked\r\n\r\n"


def data(document, name=""):
    line = f"event: {name}\n" if name else ""
    return f"{line}data: {json.dumps(document, separators=(',', ':'))}\n\n".encode()


def choice(delta, finish=None):
    return data({"choices": [{"index": 0, "delta": delta, "finish_reason": finish, "token_ids": None}], "model": "m"})


ROLE = choice({"role": "assistant", "content": ""})
TOOL = choice({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": '{"path": "/tm'}}]})
FINISH, ABORT = choice({}, "stop"), choice({}, "abort")
CREATED = data({"response": {"output": []}, "type": "response.created"}, "response.created")


def completed(output_tokens):
    document = {"object": "response", "status": "completed", "usage": {"output_tokens": output_tokens}}
    return data({"response": document, "type": "response.completed"}, "response.completed")


def stopped(reason):
    delta = data({"type": "message_delta", "delta": {"stop_reason": reason}}, "message_delta")
    return delta, data({"type": "message_stop"}, "message_stop")


START = data({"type": "message_start", "message": {"stop_reason": None}}, "message_start")
# What comes first, the content, how a whole answer ends, and how an aborted one does.
PARTS = {
    CHAT: ([ROLE], [event("a"), TOOL], [FINISH, DONE], [ABORT, DONE]),
    TEXT: (
        [],
        [data({"choices": [{"text": "a", "finish_reason": None}], "model": "m" * 40})],
        [data({"choices": [{"text": "b", "finish_reason": "length"}]}), DONE],
        [data({"choices": [{"text": "", "finish_reason": "abort"}], "model": "m" * 40}), DONE],
    ),
    MESSAGES: (
        [START],
        [data({"type": "content_block_delta", "delta": {"text": "a"}}, "content_block_delta")],
        stopped("end_turn"),
        stopped(None),
    ),
    RESPONSES: (
        [CREATED],
        [data({"delta": "a", "type": "response.output_text.delta"}, "response.output_text.delta")],
        [completed(3)],
        [completed(0)],
    ),
}


def body_of(path):
    return b'{"model":"m","stream":true,"max_tokens":5,"messages":[],"prompt":"x","input":"x"}'


def script_of(events, framing, apart=True):
    """Return a script that sends the events and then ends HTTP cleanly."""

    async def script(script):
        say = script.say_apart if apart else script.say
        if framing == "chunked":
            await say(CHUNKED, *map(chunk, events), END)
        elif framing == "chunked, one write":
            await script.say(CHUNKED + b"".join(map(chunk, events)) + END)
        elif framing == "chunked, one event cut":
            await say(CHUNKED, *map(chunk, events[:-1]), chunk(events[-1][:9]), chunk(events[-1][9:]) + END)
        else:
            await say(EVENTS % (0 if framing == "HTTP/1.0" else 1) + b"\r\n", *events)
            script.writer.close()

    return script


FRAMINGS = ["chunked", "chunked, one write", "chunked, one event cut", "until close", "HTTP/1.0"]


def error_of(path, rest):
    """Check that `rest` is one error event in the form of the API. Return its code."""
    lines = rest.strip().split(b"\n")
    if path in (CHAT, TEXT):
        assert lines[1:] == [b"", b"data: [DONE]"]
        return json.loads(lines[0].removeprefix(b"data: "))["error"]["code"]
    name, payload = lines
    assert name == b"event: error"
    document = json.loads(payload.removeprefix(b"data: "))
    assert document["type"] == "error"
    return document["code"] if path == RESPONSES else document["error"]["code"]


@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("path", APIS)
async def test_a_stream_without_its_last_event_ends_in_an_error(rig, path, framing):
    first, content, _, _ = PARTS[path]
    events = [*first, *content]
    gate = await rig(script_of(events, framing))
    client = await gate.connect()
    reply = await client.ask(post(path, body_of(path)))
    sent = b"".join(events)
    assert (reply.status, reply.body[: len(sent)]) == (200, sent)
    assert error_of(path, reply.body[len(sent) :]) == "worker_died_in_stream"
    assert [one[:2] for one in gate.counted("errors")] == [("worker_died_in_stream", "stream")]
    assert gate.recorded.events[-1] == "failed stream"
    assert not any(each.startswith("finished") for each in gate.recorded.events), "the worker is not credited"
    assert (await client.ask(post(path, body_of(path)))).status == 200, "the client's connection goes on"
    await eventually(lambda: gate.idle)


@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("path", APIS)
async def test_a_whole_stream_is_left_as_it_is(rig, path, framing):
    first, content, last, _ = PARTS[path]
    events = [*first, *content, *last]
    gate = await rig(script_of(events, framing))
    reply = await gate.ask(post(path, body_of(path)))
    assert (reply.status, reply.body) == (200, b"".join(events))
    assert gate.counted("errors") == []
    assert gate.recorded.events[-1] == "finished 200"


ERROR = b'data: {"error":{"message":"engine died","code":500}}\n\n'
NAMED_ERROR = b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"m"}}\n\n'
ENDS = {
    "a finish reason and no [DONE]": (CHAT, [event("a"), FINISH]),
    "[DONE] and no finish reason": (CHAT, [event("a"), DONE]),
    "one of two choices": (CHAT, [event("a"), FINISH, event("b")]),
    "a usage event": (CHAT, [event("a"), FINISH, usage_event()]),
    "an error": (CHAT, [event("a"), ERROR]),
    "an error of a message": (MESSAGES, [*PARTS[MESSAGES][1], NAMED_ERROR]),
    "an error of a response": (RESPONSES, [*PARTS[RESPONSES][1], NAMED_ERROR]),
    "a response with [DONE]": (RESPONSES, [*PARTS[RESPONSES][1], completed(3), DONE]),
    "an unknown end": (b"/v1/audio/speech", [event("a")]),
}


@pytest.mark.parametrize("framing", ["chunked", "until close"])
@pytest.mark.parametrize("case", ENDS)
async def test_a_stream_that_ends_by_its_rules_is_left_as_it_is(rig, case, framing):
    path, events = ENDS[case]
    gate = await rig(script_of(events, framing), extra_paths={"/v1/audio/speech": ["POST"]})
    assert (await gate.ask(post(path, body_of(path)))).body == b"".join(events)
    assert gate.recorded.events[-1] == "finished 200"


async def test_a_stream_of_announced_length_is_left_as_it_is(rig):
    script = says(EVENTS % 1 + b"content-length: %d\r\n\r\n" % len(event("a")), event("a"))
    gate = await rig(script)
    assert (await gate.ask(post())).body == event("a")


async def test_a_stream_whose_last_chunk_comes_in_pieces_is_cut(rig):
    async def script(script):
        await script.say_apart(CHUNKED, chunk(event("a")), b"0\r\n", b"\r\n")

    gate = await rig(script)
    client = await gate.send(post())
    raw = await client.closed()
    assert raw.endswith(chunk(event("a")) + b"0\r\n"), "no error event can follow, so the end of the framing is missing"
    assert [one[:2] for one in gate.counted("errors")] == [("worker_died_in_stream", "stream")]


@pytest.mark.parametrize("path", APIS)
async def test_a_cut_stream_to_an_old_client_ends_in_an_error(rig, path):
    first, content, _, _ = PARTS[path]
    gate = await rig(script_of([*first, *content], "chunked"))
    reply = await gate.ask(post(path, body_of(path), version=b"1.0"))
    assert error_of(path, reply.body.removeprefix(b"".join([*first, *content]))) == "worker_died_in_stream"


@pytest.mark.parametrize("path", APIS)
async def test_a_cut_stream_after_comments_ends_in_an_error(rig, path):
    first, content, _, _ = PARTS[path]

    async def script(script):
        await commented.wait()
        await script_of([*first, *content], "chunked")(script)

    commented = asyncio.Event()
    gate = await rig(script, timeouts={"header_delay_s": 0.05})
    reply = await gate.ask(post(path, body_of(path)), on_head=commented.set)
    rest = reply.body.partition(b"\n\n")[2]
    assert error_of(path, rest.removeprefix(b"".join([*first, *content]))) == "worker_died_in_stream"


@pytest.mark.parametrize("whole", [True, False])
async def test_a_stream_whose_usage_is_taken_out_is_judged_too(rig, whole):
    async def script(script):
        asked = b"include_usage" in script.seen.body
        last = [FINISH, *([usage_event()] if asked else []), DONE] if whole or not asked else []
        await script_of([event("a"), *last], "chunked, one write" if whole else "chunked")(script)

    gate = await rig(script, observe_usage=1.0)
    for _ in range(3):
        reply = await gate.ask(post())
    assert b'"include_usage":true' in gate.workers[0].requests[-1].body
    assert reply.body.startswith(event("a"))
    assert (b"worker_died_in_stream" in reply.body) is not whole
    assert reply.body.count(DONE) == 1


# aborted by the worker


@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("path", APIS)
async def test_an_abort_before_any_content_is_repeated_elsewhere(rig, path, framing):
    first, content, last, aborted = PARTS[path]
    good, bad = [*first, *content, *last], [*first, *aborted]
    gate = await rig(*once(script_of(bad, framing, apart=False), script_of(good, framing, apart=False)))
    reply = await gate.ask(post(path, body_of(path)))
    assert (reply.status, reply.body) == (200, b"".join(good))
    assert gate.recorded.events[1] == "retry answered"
    assert gate.recorded.last_reason == "the worker aborted the request"


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("framing", ["chunked", "until close", "HTTP/1.0"])
@pytest.mark.parametrize("path", [CHAT, TEXT, MESSAGES])
async def test_an_abort_after_content_is_an_error_and_no_end(rig, path, framing, apart):
    first, content, _, aborted = PARTS[path]

    async def script(script):
        if framing == "chunked":
            await script.say_apart(CHUNKED, *map(chunk, [*first, *content]))
            ending = [*map(chunk, aborted), END]
        else:
            await script.say_apart(EVENTS % (0 if framing == "HTTP/1.0" else 1) + b"\r\n", *first, *content)
            ending = list(aborted)
        await started.wait()
        await (script.say_apart(*ending) if apart else script.say(b"".join(ending)))
        script.writer.close()

    started = asyncio.Event()
    gate = await rig(script, script)
    reply = await gate.ask(post(path, body_of(path)), on_head=started.set)
    sent = b"".join([*first, *content])
    assert reply.body.startswith(sent)
    rest = reply.body[len(sent) :]
    if apart and rest.startswith(aborted[0]):  # a read with one event is passed on at once
        rest = rest[len(aborted[0]) :]
    else:
        assert aborted[0] not in rest
    assert error_of(path, rest) == "worker_died_in_stream"
    assert gate.recorded.events[-1] == "failed stream"
    assert [one[:2] for one in gate.counted("errors")] == [("worker_died_in_stream", "stream")]


BODIES = {
    CHAT: (
        {"choices": [{"message": {"content": ""}, "finish_reason": "abort"}]},
        {"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]},
    ),
    TEXT: (
        {"choices": [{"text": "", "finish_reason": "abort"}]},
        {"choices": [{"text": "a", "finish_reason": "stop"}]},
    ),
    MESSAGES: ({"type": "message", "content": []}, {"type": "message", "content": [], "stop_reason": "end_turn"}),
    RESPONSES: (
        {"object": "response", "status": "completed", "usage": {"output_tokens": 0}},
        {"object": "response", "status": "completed", "usage": {"output_tokens": 3}},
    ),
}


def body_script(body, framing):
    async def script(script):
        half = len(body) // 2
        if framing == "length":
            await script.say(json_head(len(body)) + body)
        elif framing == "length, in pieces":
            await script.say_apart(json_head(len(body)), body[:half], body[half:])
        elif framing == "chunked":
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
            await script.say_apart(head, chunk(body[:half]), chunk(body[half:]), END)
        else:
            await script.say_apart(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n", body[:half], body[half:]
            )
            script.writer.close()

    return script


@pytest.mark.parametrize("framing", ["length", "length, in pieces", "chunked", "until close"])
@pytest.mark.parametrize("path", APIS)
async def test_an_aborted_answer_in_one_piece_is_repeated_elsewhere(rig, path, framing):
    bad, good = (json.dumps(each).encode() for each in BODIES[path])
    gate = await rig(*once(body_script(bad, framing), body_script(good, framing)))
    reply = await gate.ask(post(path, body_of(path).replace(b"true", b"false")))
    assert (reply.status, reply.body) == (200, good)
    assert gate.recorded.events == ["ticket", "retry answered", "failed answered", "finished 200"]


async def test_an_abort_that_no_other_worker_can_take_over_is_an_error(rig):
    gate = await rig(body_script(json.dumps(BODIES[CHAT][0]).encode(), "length"))
    reply = await gate.ask(post(body=b'{"model":"m","messages":[]}'))
    assert (reply.status, reply.code) == (503, "worker_failed")


async def test_a_long_aborted_answer_is_not_passed_on_whole(rig):
    document = {"choices": [{"message": {"content": "x" * 400_000}, "finish_reason": "abort"}]}
    gate = await rig(body_script(json.dumps(document).encode(), "length, in pieces"))
    client = await gate.connect()
    with pytest.raises(asyncio.IncompleteReadError):
        await client.ask(post(body=b'{"model":"m","messages":[]}'))
    assert gate.recorded.events[-1] == "failed stream"


async def test_an_answer_in_pieces_is_passed_on_after_a_while(rig):
    body = json.dumps(BODIES[CHAT][1]).encode()

    async def script(script):
        await script.say(json_head(len(body)), body[:9])
        await begun.wait()
        await script.say(body[9:])

    begun = asyncio.Event()
    gate = await rig(script)
    reply = await gate.ask(post(body=b'{"model":"m","messages":[]}'), on_head=begun.set)
    assert reply.body == body


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_events_without_content_are_passed_on_after_a_moment(rig, path):
    first, content, last, _ = PARTS[path]

    async def script(script):
        await script.say(CHUNKED, *map(chunk, first))
        await begun.wait()
        await script.say(*map(chunk, [*content, *last]), END)

    begun = asyncio.Event()
    gate = await rig(script)
    reply = await gate.ask(post(path, body_of(path)), on_head=begun.set)
    assert reply.body == b"".join([*first, *content, *last])


async def test_a_worker_lost_after_events_without_content_is_replaced(rig):
    async def dies(script):
        await script.say_apart(CHUNKED + chunk(ROLE))
        await script.die()

    gate = await rig(*once(dies))
    assert (await gate.ask(post())).body.startswith(event("a"))
