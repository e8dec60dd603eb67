import asyncio
import re
from itertools import repeat

import pytest

from backends.worker import LoadReport
from tests.support.answers import DONE, END, chunk, event, json_head
from tests.support.raw_client import post
from tests.support.waiting import eventually

APIS = ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"]
BODY = b'{"model":"m","stream":true,"max_tokens":5,"messages":[],"prompt":"x","input":"x"}'
EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
STREAM = EVENTS + b"transfer-encoding: chunked\r\n\r\n"
COMMENT = re.compile(rb": the worker is working\n\n")
FIRST = b'event: content_block_delta\ndata: {"choices":[{"delta":{"content":"a"},"finish_reason":null}]}\n\n'
# The end of each API.
LAST = (
    b'event: x\ndata: {"choices":[{"finish_reason":"stop"}]}\n\n'
    b'event: message_delta\ndata: {"delta":{"stop_reason":"end_turn"},"type":"message_delta"}\n\n'
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
    b'event: response.completed\ndata: {"type":"response.completed"}\n\n'
)
SECOND = b'{"model":"m","messages":[],"stream":true,"user":"second"}'
SHORT = {"comment_interval_s": 0.04}


def comments(client):
    return len(COMMENT.findall(client.reply.body)) if client.reply is not None else 0


@pytest.mark.parametrize("framing", ["chunked", "until close"])
@pytest.mark.parametrize("path", APIS)
async def test_a_quiet_stream_gets_comments_between_its_events(rig, path, framing):
    async def script(script):
        chunked = framing == "chunked"
        await script.say(STREAM + chunk(FIRST) if chunked else EVENTS + b"\r\n" + FIRST)
        await eventually(lambda: comments(client) >= 2)
        await script.say(chunk(LAST) + END if chunked else LAST)
        if not chunked:
            script.writer.close()

    gate = await rig(script, timeouts=SHORT)
    client = await gate.connect()
    body = (await client.ask(post(path.encode(), BODY))).body
    assert COMMENT.sub(b"", body) == FIRST + LAST
    assert body.startswith(FIRST) and body.endswith(LAST), "only between the events"
    assert gate.counted("errors") == []
    assert gate.recorded.events[-1] == "finished 200"


async def test_an_old_client_gets_comments_too(rig):
    async def script(script):
        await script.say(STREAM, chunk(event("a")))
        await eventually(lambda: b"working" in seen)
        await script.say(chunk(event("b") + DONE), END)

    seen = bytearray()
    gate = await rig(script, timeouts=SHORT)
    client = await gate.send(post(version=b"1.0"))
    while data := await asyncio.wait_for(client.reader.read(65_536), 5):
        seen += data
    assert COMMENT.sub(b"", bytes(seen)).endswith(b"\r\n\r\n" + event("a") + event("b") + DONE)


async def undisturbed(rig, says, ends):
    """Return the body of an answer that begins with `says` and is quiet until another stream has had comments."""

    async def script(script):
        if b"second" in script.seen.body:
            await script.say(STREAM, chunk(event("a")))
            await released.wait()
            await script.say(chunk(DONE), END)
            return
        await script.say_apart(*says)
        await released.wait()
        await script.say(*ends)
        script.writer.close()

    released = asyncio.Event()
    gate = await rig(script, timeouts=SHORT)
    client, other = await gate.connect(), await gate.connect()
    asked = asyncio.ensure_future(client.ask(post()))
    await eventually(lambda: client.reply is not None)
    beside = asyncio.ensure_future(other.ask(post(body=SECOND)))
    await eventually(lambda: comments(other) >= 3)
    released.set()
    await beside
    return (await asked).body


HALVES = {
    "within a line": (event("a") + b"data: {", b'"choices":[]}\n\n'),
    "between the lines of an event": (event("a") + b"event: x\n", b"data: {}\n\n"),
    "at the end of its last line": (event("a") + b"data: {}", b"\n\n"),
    "a chunk that is the end of a line": (event("a") + b"data: {}", b"\r\n", b"\r\n"),
    "within the end of an event": (event("a") + b"data: {}\r\n", b"\r\n"),
}


@pytest.mark.parametrize("reframed", [False, True])
@pytest.mark.parametrize("case", HALVES)
async def test_no_comment_is_written_within_an_event(rig, case, reframed):
    *parts, rest = HALVES[case]
    if reframed:
        body = await undisturbed(rig, [EVENTS + b"\r\n", *parts], [rest + DONE])
    else:
        body = await undisturbed(rig, [STREAM, *map(chunk, parts)], [chunk(rest + DONE), END])
    assert body == b"".join(parts) + rest + DONE


@pytest.mark.parametrize("whole", [event("a") + DONE, b'{"choices":["' + b"x" * 70_000 + b'"]}'])
async def test_an_answer_of_announced_length_gets_no_comment(rig, whole):
    stream = whole.startswith(b"data")
    head = EVENTS + b"content-length: %d\r\n\r\n" % len(whole) if stream else json_head(len(whole))
    assert await undisturbed(rig, [head, whole[: -len(DONE)]], [whole[-len(DONE) :]]) == whole


# whether the worker works


class Engine:
    """Reports a worker's figures to the fleet. Its tokens grow while it `works`; its server answers probes all the
    time."""

    def __init__(self, gate, worker):
        self.works = True
        self._task = asyncio.ensure_future(self._report(gate, worker))

    async def _report(self, gate, worker):
        tokens = 0
        while True:
            tokens += self.works
            report = LoadReport(0, running=1, waiting=0, kv_usage=0.5, generation_tokens=tokens)
            gate.fleet.load_reported(worker.id, report, asyncio.get_running_loop().time())
            await asyncio.sleep(0.02)

    def stop(self):
        self._task.cancel()


@pytest.fixture
async def engines():
    made = []

    def start(gate):
        made.extend(Engine(gate, worker) for worker in gate.workers)
        return made

    yield start
    for engine in made:
        engine.stop()


def quiet(go_on):
    async def script(script):
        await script.say(STREAM, chunk(FIRST))
        await go_on.wait()
        await script.say(chunk(LAST), END)

    return script


@pytest.mark.parametrize("path", APIS)
async def test_a_quiet_stream_of_a_working_worker_goes_on_and_one_of_a_hung_engine_ends(rig, engines, path):
    go_on = asyncio.Event()
    gate = await rig(quiet(go_on), quiet(go_on), timeouts={"stream_idle_s": 0.5})
    working = engines(gate)
    clients = [await gate.connect() for _ in gate.workers]
    replies = [asyncio.ensure_future(client.ask(post(path.encode(), BODY))) for client in clients]
    await eventually(lambda: all(worker.requests for worker in gate.workers))
    working[0].works = False
    first, _ = await asyncio.wait(replies, return_when=asyncio.FIRST_COMPLETED)
    assert len(first) == 1
    assert b"stream_idle_timeout" in first.pop().result().body
    go_on.set()
    whole = [reply.result().body for reply in replies if await reply and b"stream_idle" not in reply.result().body]
    assert [COMMENT.sub(b"", body) for body in whole] == [FIRST + LAST]
    assert [one[:2] for one in gate.counted("errors")] == [("stream_idle_timeout", "stream")]
    assert sorted(each for each in gate.recorded.events if each.startswith("f") and each != "first_token") == [
        "failed stream",
        "finished 200",
    ]


async def test_other_answers_show_that_a_worker_without_counters_works(rig):
    async def script(script):
        if b"second" in script.seen.body:
            await script.say(STREAM)
            await script.drip(repeat(chunk(event("a"))), 0.02)
        await quiet(go_on)(script)

    go_on = asyncio.Event()
    gate = await rig(script, timeouts={"stream_idle_s": 0.5, "comment_interval_s": 0.2})
    client, other = await gate.connect(), await gate.connect()
    asked = asyncio.ensure_future(client.ask(post()))
    await eventually(lambda: client.reply is not None)
    other.writer.write(post(body=SECOND))
    await eventually(lambda: comments(client) >= 4)
    go_on.set()
    assert COMMENT.sub(b"", (await asked).body) == FIRST + LAST


async def test_comments_of_the_gateway_do_not_hide_a_trickle(rig):
    async def script(script):
        await script.say(STREAM, chunk(event("a")))
        await script.drip(repeat(chunk(b":\n\n")), 0.7)

    gate = await rig(script, timeouts={"stream_idle_s": 0.8, "comment_interval_s": 0.05})
    client = await gate.connect()
    reply = await client.ask(post())
    assert b"stream_idle_timeout" in reply.body
    assert comments(client) >= 2
