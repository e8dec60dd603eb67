import asyncio
import errno
import json
from itertools import repeat

import msgspec
import pytest

from router.placement.retry_budget import RetryBudget
from router.requests.queues import lost_workers
from tests.support.answers import (
    DONE,
    END,
    STREAM,
    after,
    answer_json,
    answer_stream,
    chunk,
    die,
    event,
    once,
    saying,
    says,
    silent,
    stream_until,
    usage_event,
)
from tests.support.raw_client import PLAIN, get, post
from tests.support.scripted_worker import ScriptedWorker
from tests.support.waiting import WAIT_S, eventually

LIVEZ = get(b"/livez")


async def die_behind_head(script):
    await script.say_apart(STREAM)
    await script.die()


ERROR = b'data: {"error":{"message":"engine died","type":"x","param":null,"code":500}}\n\n'


FAILURES = {
    "dies at once": die,
    "dies behind its head": die_behind_head,
    "500": saying(b"HTTP/1.1 500 No\r\ncontent-length: 2\r\n\r\n{}"),
    "502 without length": saying(b"HTTP/1.1 502 No\r\n\r\n{}"),
    "garbage": saying(b"SSH-2.0-OpenSSH_9.2\r\n"),
    "both lengths": saying(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
    "two lengths": saying(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}"),
    "unknown coding": saying(b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n{}"),
    "identity, chunked": saying(b"HTTP/1.1 200 OK\r\ntransfer-encoding: identity, chunked\r\n\r\n0\r\n\r\n"),
    "chunked in 1.0": saying(b"HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
    "bad chunk": saying(STREAM + b"zz\r\n"),
    "unasked switch": saying(b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"),
    "error event": saying(STREAM + b"%x\r\n" % len(ERROR) + ERROR + b"\r\n0\r\n\r\n"),
    "comments, then an error event": saying(STREAM + b"6\r\n: hi\n\n\r\n%x\r\n" % len(ERROR) + ERROR + b"\r\n"),
    "named error event": saying(STREAM + b'24\r\nevent: error\ndata: {"type":"error"}\n\n\r\n0\r\n\r\n'),
    "a stream of nothing": saying(STREAM + b"0\r\n\r\n"),
    "half an event, then death": saying(STREAM + b"6\r\ndata: \r\n0\r\n\r\n"),
    "too large a head": saying(b"HTTP/1.1 200 OK\r\n" + b"x-pad: " + b"x" * 70_000 + b"\r\n\r\n"),
    "endless head": saying(b"HTTP/1.1 200 OK\r\n" + b"x-pad: y\r\n" * 10_000),
    "endless comments": saying(STREAM, *[b"1000\r\n:" + b"x" * 4093 + b"\n\n\r\n"] * 300),
}


ANSWERED = {"500", "502 without length", "error event", "comments, then an error event"}


@pytest.mark.parametrize("name", FAILURES)
async def test_a_failure_before_the_first_event_is_retried_unseen(rig, name):
    gate = await rig(*once(FAILURES[name]))
    reply = await gate.ask(post())
    assert reply.status == 200
    assert reply.body.startswith(event("a"))
    assert b"error" not in reply.raw
    events = gate.recorded.events
    phase = "answered" if name in ANSWERED else "sent"
    assert events[:3] == ["ticket", f"retry {phase}", f"failed {phase}"] and events[-1] == "finished 200"
    assert gate.counted("retries") == [(phase,)]
    pools = gate.gateway.statistics()["pools"]
    assert pools["open"] - pools["idle"] <= 1  # the failed connection, if its close has not been noticed yet
    assert gate.idle


@pytest.mark.parametrize("name", ["dies at once", "500", "garbage", "error event"])
async def test_a_request_that_fails_two_workers_goes_to_no_third(rig, name):
    gate = await rig(*[FAILURES[name]] * 4)
    reply = await gate.ask(post())
    if name == "500":  # the worker's own message, which does not suggest another try
        assert (reply.status, reply.header(b"retry-after")) == (500, None)
    else:
        assert (reply.status, reply.code) == (503, "worker_failed")
        assert int(reply.header(b"retry-after")) >= 1
    assert sum(len(worker.requests) for worker in gate.workers) == 2
    assert gate.idle


async def test_a_refusal_is_retried_on_up_to_two_other_workers(rig):
    async def refuse(script):
        await answer_json(script, b"503 Busy", b'{"error":"The model is currently scaling"}')

    gate = await rig(refuse, refuse, refuse, refuse)
    client = await gate.connect()
    reply = await client.ask(post())
    assert (reply.status, reply.code) == (503, "overloaded")
    assert int(reply.header(b"retry-after")) >= 1
    assert sum(len(worker.requests) for worker in gate.workers) == 3
    assert gate.recorded.events[:3] == ["ticket", "retry refused", "failed refused"]
    assert gate.gateway.statistics()["pools"]["idle"] == 3  # a refusal does not close the connection
    assert (await client.ask(LIVEZ)).status == 200


async def test_a_429_is_relayed_and_does_not_pause_the_worker(rig):
    limit = b'{"error":{"message":"slow down","code":429}}'

    limited = says(
        b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 9\r\ncontent-length: %d\r\n\r\n" % len(limit), limit
    )
    limited_in_stream = says(STREAM, chunk(b"data: " + limit + b"\n\n"), chunk(DONE), END)
    gate = await rig(*once(limited))
    reply = await gate.ask(post())
    assert (reply.status, reply.header(b"retry-after"), reply.body) == (429, b"9", limit)
    assert gate.recorded.events == ["ticket", "finished 429"]
    for _ in range(4):
        assert (await gate.ask(post())).status == 200
    assert {len(worker.requests) for worker in gate.workers} == {2, 3}  # both still get requests
    gate = await rig(*once(limited_in_stream))
    assert (await gate.ask(post())).body == b"data: " + limit + b"\n\n" + DONE
    assert not any(each.startswith("retry") for each in gate.recorded.events)


async def test_a_503_as_first_event_is_retried_as_a_refusal(rig):
    busy = ERROR.replace(b"500", b"503")
    gate = await rig(*once(saying(STREAM + chunk(busy))))
    assert (await gate.ask(post())).body.startswith(event("a"))
    assert gate.recorded.events[1] == "retry refused"


async def test_a_clients_mistake_as_first_event_is_passed_on(rig):
    mistake = ERROR.replace(b"500", b"400")

    script = says(STREAM, chunk(mistake), chunk(DONE), END)
    gate = await rig(script, script)
    assert (await gate.ask(post())).body == mistake + DONE
    events = [each for each in gate.recorded.events if not each.startswith("progress")]
    assert events == ["ticket", "finished 400"], "no other worker is asked, and nothing is learned of a first token"


async def test_the_retry_after_of_a_refusal_is_relayed(rig):
    refuse = says(b"HTTP/1.1 503 Busy\r\nretry-after: 7\r\ncontent-length: 0\r\n\r\n")
    gate = await rig(refuse)
    assert (await gate.ask(post())).header(b"retry-after") == b"7"


async def test_requests_to_an_unreachable_worker_are_retried(rig):
    gone = await ScriptedWorker(answer_stream).start()
    gate = await rig()
    gate.join(gone)
    await gone.stop()
    await gate.add(answer_stream)
    for _ in range(2):
        assert (await gate.ask(post())).status == 200
    assert "retry connect" in gate.recorded.events


async def test_a_worker_silent_above_first_event_s_is_replaced(rig):
    gate = await rig(*once(silent), timeouts={"first_event_s": 0.1})
    assert (await gate.ask(post())).body.startswith(event("a"))
    stuck = next(seen for worker in gate.workers for seen in worker.requests if seen.gone.is_set())
    assert stuck is not None
    assert gate.recorded.events[1] == "retry late"


FORM = (
    b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n'
    b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nsound\r\n--x--\r\n'
)
IN_ONE_PIECE = {
    b"/v1/chat/completions": PLAIN,
    b"/v1/completions": b'{"model":"m","prompt":"hi","stream":false}',
    b"/v1/messages": b'{"model":"m","max_tokens":5,"messages":[]}',
    b"/v1/responses": b'{"model":"m","input":"hi"}',
    b"/v1/embeddings": b'{"model":"m","input":"hi"}',
    b"/v1/chat/completions/batch": b'{"model":"m","messages":[]}',
    b"/v1/audio/transcriptions": FORM,
    b"/custom": b"anything",
}


@pytest.mark.parametrize("path", IN_ONE_PIECE)
async def test_an_answer_in_one_piece_has_no_limit_on_its_first_byte(rig, path):
    async def script(script):
        if script.seen.path != path:
            await script.gone()
        await late.wait()
        await answer_json(script)

    late = asyncio.Event()
    # A stream that is sent after it meets the limit before it.
    gate = await rig(
        script, script, timeouts={"first_event_s": 0.1}, extra_paths={"/custom": ["POST"]}, retries={"max_attempts": 1}
    )
    client = await gate.connect()
    raw = post(path, IN_ONE_PIECE[path])
    form = path == b"/v1/audio/transcriptions"
    client.writer.write(raw.replace(b"application/json", b"multipart/form-data; boundary=x") if form else raw)
    await eventually(lambda: any(worker.requests for worker in gate.workers))
    other = b"/v1/completions" if path == b"/v1/chat/completions" else b"/v1/chat/completions"
    reply = await gate.ask(post(other, b'{"model":"m","prompt":"x","messages":[],"stream":true}'))
    assert (reply.status, reply.code) == (503, "worker_failed")
    late.set()
    assert (await client.read()).status == 200
    assert sum(len(worker.requests_to(path)) for worker in gate.workers) == 1
    assert gate.recorded.events[-1] == "finished 200"


async def test_a_stream_that_the_request_does_not_show_has_a_limit_on_its_first_event(rig):
    silent = saying(STREAM)
    gate = await rig(*once(silent, answer_json), timeouts={"first_event_s": 0.1}, extra_paths={"/custom": ["POST"]})
    assert (await gate.ask(post(b"/custom", b"anything"))).status == 200
    assert gate.recorded.events == ["ticket", "retry late", "failed late", "finished 200"]


async def test_an_answer_in_one_piece_above_total_s_is_not_repeated(rig):
    gate = await rig(silent, silent, timeouts={"first_event_s": 0.05, "total_s": 0.2})
    reply = await gate.ask(post(body=PLAIN))
    assert (reply.status, reply.code) == (504, "total_timeout")
    assert gate.recorded.events == ["ticket", "cancelled"], "no retry, and no failure of the worker"


def eject(gate, worker):
    for second in range(3):
        gate.fleet.probe_failed(worker.id, "timed out", second)


@pytest.mark.parametrize("how", ["ejected", "removed"])
async def test_requests_of_a_lost_worker_are_retried_on_another(rig, how):
    gate = await rig(*once(silent))
    client = await gate.send(post())
    await eventually(lambda: any(worker.requests for worker in gate.workers))
    stuck = next(worker for worker in gate.workers if worker.requests)
    if how == "ejected":
        for second in range(2):
            gate.fleet.probe_failed(stuck.id, "timed out", second)
        await gate.ask(LIVEZ)
        assert gate.recorded.events == ["ticket"]  # below the threshold: the worker may just be slow
        gate.fleet.probe_failed(stuck.id, "timed out", 2)
    else:
        gate.fleet.remove(stuck.id)
    assert (await client.read()).body.startswith(event("a"))
    assert gate.recorded.events[:3] == ["ticket", "retry sent", "failed sent"]
    await asyncio.wait_for(stuck.requests[0].gone.wait(), WAIT_S)
    assert gate.idle


async def test_requests_of_a_lost_worker_wait_until_another_is_ready(rig):
    gate = await rig(*once(silent))
    client = await gate.send(post())
    await eventually(lambda: any(worker.requests for worker in gate.workers))
    stuck, other = sorted(gate.workers, key=lambda worker: not worker.requests)
    gate.fleet.drain(other.id)
    eject(gate, stuck)
    await gate.ask(LIVEZ)
    assert gate.recorded.events == ["ticket"]
    gate.fleet.undrain(other.id)
    assert (await client.read()).body.startswith(event("a"))


async def test_requests_of_a_lost_worker_wait_for_retry_budget(rig, monkeypatch):
    affords, asked = [False], []

    def affordable(*_):
        asked.append(True)
        return affords[0]

    monkeypatch.setattr(RetryBudget, "affords", affordable)
    monkeypatch.setattr(lost_workers, "LOOK_AGAIN_S", 0.01)
    gate = await rig(*once(silent))
    client = await gate.send(post())
    await eventually(lambda: any(worker.requests for worker in gate.workers))
    eject(gate, next(worker for worker in gate.workers if worker.requests))
    await eventually(lambda: len(asked) >= 3)
    assert gate.recorded.events == ["ticket"]
    affords[0] = True
    assert (await client.read()).body.startswith(event("a"))


async def test_started_streams_and_requests_of_drained_workers_are_not_retried(rig):
    go_on = asyncio.Event()

    slow_end = asyncio.Event()
    gate = await rig(*once(after(go_on, answer_stream)))
    client = await gate.send(post())
    await eventually(lambda: any(worker.requests for worker in gate.workers))
    worker = next(worker for worker in gate.workers if worker.requests)
    gate.fleet.drain(worker.id)
    gate.fleet.remove(worker.id)
    await gate.ask(LIVEZ)
    go_on.set()
    assert (await client.read()).status == 200
    assert not any(each.startswith("retry") for each in gate.recorded.events)
    gate = await rig(*once(stream_until(slow_end)))
    client = await gate.send(post())
    await client.reader.readuntil(b"\n\n")
    eject(gate, next(worker for worker in gate.workers if worker.requests))
    await gate.ask(LIVEZ)
    slow_end.set()
    await client.reader.readuntil(b"\r\n0\r\n\r\n")
    assert gate.recorded.events[-1].startswith("finished") or gate.recorded.events[-1] == "first_token"


# after the first event


async def test_a_worker_lost_between_chunks_gives_an_error_event(rig):
    async def script(script):
        await script.say(STREAM, chunk(event("a")))
        await started.wait()
        await script.die()

    started = asyncio.Event()
    gate = await rig(script)
    client = await gate.connect()
    reply = await client.ask(post(), on_head=started.set)
    events = reply.body.split(b"\n\n")
    assert events[0] + b"\n\n" == event("a")
    assert msgspec.json.decode(events[1][6:])["error"]["code"] == "worker_died_in_stream"
    assert events[2:] == [b"data: [DONE]", b""]
    assert gate.recorded.events == ["ticket", "first_token", "failed stream"]
    assert (await client.ask(LIVEZ)).status == 200  # a clean end: the connection stays open
    assert [one[:2] for one in gate.counted("errors")] == [("worker_died_in_stream", "stream")]


async def test_a_stalled_stream_ends_with_an_error(rig):
    gate = await rig(saying(STREAM, chunk(event("a"))), timeouts={"stream_idle_s": 0.1})
    reply = await gate.ask(post())
    assert b"stream_idle_timeout" in reply.body and reply.body.endswith(DONE)
    assert gate.workers[0].requests[0].gone.is_set() or await gate.workers[0].requests[0].gone.wait()


async def test_a_request_above_total_s_gets_total_timeout(rig):
    async def endless(script):
        await script.say(STREAM)
        await script.drip(repeat(chunk(event("a"))), 0.005)

    gate = await rig(endless, timeouts={"total_s": 0.15})
    assert b"total_timeout" in (await gate.ask(post())).body
    gate = await rig(silent, timeouts={"total_s": 0.15})
    reply = await gate.ask(post())
    assert (reply.status, reply.code) == (504, "total_timeout")
    assert gate.recorded.events == ["ticket", "cancelled"]


# held heads and comments


async def test_a_worker_lost_after_comments_is_replaced(rig):
    async def slow_death(script):
        await script.say(STREAM, chunk(b": keep-alive\n\n"))
        await eventually(lambda: client.reply is not None and client.reply.body.count(b": warmroute") >= 2)
        await script.die()

    gate = await rig(*once(slow_death), timeouts={"header_delay_s": 0.05, "comment_interval_s": 0.05})
    client = await gate.connect()
    reply = await client.ask(post(extra=b"X-Request-Id: r\r\n"))
    assert reply.status == 200
    assert reply.header(b"content-type").startswith(b"text/event-stream")
    assert reply.header(b"x-request-id") == b"r"
    _, _, rest = reply.body.partition(b"data: ")
    assert b"data: " + rest == b"".join(map(event, "abc")) + usage_event() + DONE
    assert gate.recorded.usage.cached_tokens == 32
    assert (await client.ask(LIVEZ)).status == 200


async def test_an_event_that_comments_interrupt_is_relayed_whole(rig):
    whole = event("a")

    async def script(script):
        await script.say(STREAM, chunk(whole[:9]))
        await commented.wait()
        await script.say(chunk(whole[9:]), chunk(DONE), END)

    commented = asyncio.Event()
    gate = await rig(script, timeouts={"header_delay_s": 0.05, "comment_interval_s": 5})
    body = (await gate.ask(post(), on_head=commented.set)).body
    assert body.startswith(b": warmroute") and body.endswith(b"\n\n" + whole + DONE)


async def test_an_error_after_comments_becomes_an_event(rig):
    async def refused(script):
        await commented.wait()
        await answer_json(script, b"400 Bad", b'{"error":\n{"message":"no"}}')

    async def dead(script):
        await commented.wait()
        await script.die()

    commented = asyncio.Event()
    held = {"header_delay_s": 0.05, "comment_interval_s": 5}
    gate = await rig(refused, timeouts=held)
    body = (await gate.ask(post(), on_head=commented.set)).body
    assert body.partition(b"\n\n")[2] == b'data: {"error":\ndata: {"message":"no"}}\n\n' + DONE
    assert gate.recorded.events[-1] == "finished 400"
    commented.clear()
    gate = await rig(dead, timeouts=held)
    body = (await gate.ask(post(), on_head=commented.set)).body
    events = body.split(b"\n\n")
    assert json.loads(events[1][6:])["error"]["code"] == "worker_failed"
    assert events[2] == b"data: [DONE]"


async def test_a_request_without_stream_gets_no_comments(rig):
    commented = asyncio.Event()
    gate = await rig(after(commented), timeouts={"header_delay_s": 0.05})
    client = await gate.send(post(body=PLAIN))
    await gate.workers[0].arrived.wait()
    await gate.ask(post(), on_head=commented.set)  # a later request, which is a stream and gets a comment
    assert (await client.read()).header(b"content-length")


# no worker


async def test_a_queued_request_is_sent_when_a_worker_joins(rig):
    gate = await rig()
    client = await gate.send(post())
    await eventually(lambda: gate.gateway.statistics().get("queued") == 1)
    await gate.add(answer_stream)
    assert (await client.read()).status == 200
    assert gate.counted("queue_seconds") == [("true",)]


async def test_a_queued_request_gets_503_after_queue_s(rig):
    gate = await rig(timeouts={"queue_s": 0.1})
    reply = await gate.ask(post())
    assert (reply.status, reply.code) == (503, "no_worker_available")
    assert reply.header(b"retry-after") == b"1"
    assert gate.counted("queue_seconds") == [("false",)]
    gate = await rig(timeouts={"queue_s": 0})
    assert (await gate.ask(post())).status == 503


async def test_a_request_above_max_queued_requests_gets_503(rig):
    gate = await rig(limits={"max_queued_requests": 1})
    client = await gate.send(post())
    await eventually(lambda: gate.gateway.statistics()["queued"] == 1)
    reply = await gate.ask(post())
    assert (reply.status, reply.code) == (503, "too_many_requests")
    client.leave()
    await eventually(lambda: gate.gateway.statistics()["queued"] == 0)


async def test_the_fleet_is_notified_of_an_unknown_model(rig):
    gate = await rig(answer_json)
    asked = []
    gate.fleet.on_unknown_model.append(asked.append)
    assert (await gate.ask(post(body=b'{"model":"other","messages":[]}'))).status == 404
    assert (await gate.ask(post(body=PLAIN))).status == 200
    assert asked == ["other"]


async def test_an_exception_in_the_gateway_answers_500_and_ends_the_ticket(rig, caplog):
    gate = await rig(answer_json)

    def broken(*_):
        raise RuntimeError("defect")

    gate.identity.identify_now = broken
    reply = await gate.ask(post(body=PLAIN))
    assert (reply.status, reply.code) == (500, "internal_error")
    del gate.identity.identify_now
    gate.core.tickets.first_token = broken
    gate.workers[0].script = answer_stream
    assert (await gate.ask(post())).status == 500
    assert gate.recorded.events[-1] == "cancelled"
    assert gate.idle
    caplog.clear()


class OutOfDescriptors:
    """An event loop that cannot open another socket."""

    def __init__(self, loop):
        self.loop = loop

    def __getattr__(self, name):
        return getattr(self.loop, name)

    async def create_connection(self, *arguments, **options):
        raise OSError(errno.EMFILE, "Too many open files")


async def test_a_lack_of_descriptors_answers_503_and_ejects_no_worker(rig, monkeypatch):
    gate = await rig(answer_stream, answer_stream)
    with monkeypatch.context() as patched:
        patched.setattr(gate.gateway._parts.pools, "loop", OutOfDescriptors(gate.loop))
        for _ in range(5):
            reply = await gate.ask(post())
            assert (reply.status, reply.code) == (503, "gateway_exhausted")
            assert int(reply.header(b"retry-after")) >= 1
    assert [endpoint.state.value for endpoint in gate.fleet.endpoints] == ["ready", "ready"]
    assert gate.counted("retries") == []
    assert (await gate.ask(post())).status == 200
    assert len(gate.counted("decision_seconds")) == 6
    assert gate.idle
