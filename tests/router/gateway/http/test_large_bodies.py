"""Very large bodies are parsed in steps while other clients are served, with the same result as small ones."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise

import pytest

from router.requests.time_slices import SLICE_S, TimeSlices
from router.tokenization.body.intake import READ_AT_ONCE_BYTES
from tests.support.answers import END, answer_json, answer_stream
from tests.support.raw_client import PLAIN, post
from tests.support.waiting import eventually, iterations


def large(**fields: object) -> bytes:
    body = {"model": "m", "messages": [{"role": "user", "content": "word " * (READ_AT_ONCE_BYTES // 5)}], **fields}
    return json.dumps(body).encode()


async def test_a_large_body_arrives_unchanged_and_its_fields_are_read(rig):
    gate = await rig(answer_json)
    body = large(session_id="s", max_tokens=7, tools=[{"type": "function"}])
    assert (await gate.ask(post(body=body))).status == 200
    assert gate.workers[0].requests[0].body == body
    request = gate.recorded.requests[0]
    assert (request.model, request.session_id, request.max_tokens, request.kind.value) == ("m", "s", 7, "agent")
    assert gate.idle


async def test_a_large_body_with_stream_is_streamed(rig):
    gate = await rig(answer_stream)
    reply = await gate.ask(post(body=large(stream=True)))
    assert reply.status == 200 and reply.raw.endswith(END)
    assert gate.recorded.requests[0].stream


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        (b"/v1/chat/completions", large()[:-1] + b" x", "invalid_json"),
        (b"/v1/chat/completions", large(model=5), "invalid_body"),
        (b"/v1/completions", large(prompt={"a": 1}), "invalid_body"),
        (b"/v1/embeddings", large()[:-1] + b" x", "invalid_json"),
    ],
)
async def test_an_invalid_large_body_is_refused(rig, path, body, code):
    gate = await rig(answer_json)
    client = await gate.connect()
    reply = await client.ask(post(path, body))
    assert (reply.status, reply.code) == (400, code)
    assert (await client.ask(post(body=PLAIN))).status == 200
    assert gate.idle and not gate.gateway.statistics()["buffered_body_bytes"]


async def test_a_client_that_leaves_during_a_large_body_frees_its_memory(rig):
    gate = await rig(answer_json)
    client = await gate.send(post(body=large()))
    await eventually(lambda: gate.gateway.statistics()["streams"])
    client.leave()
    await eventually(lambda: gate.idle)
    assert not gate.gateway.statistics()["buffered_body_bytes"]


async def test_each_loop_iteration_has_one_slice():
    now_s = 0.0
    log: list[str] = []

    def work(name, steps):
        nonlocal now_s
        for _ in range(steps):
            now_s += SLICE_S / 2
            log.append(name)
            yield
        return name

    slices = TimeSlices(lambda: now_s)
    tasks = [asyncio.create_task(slices.finish(work(name, 6))) for name in "ab"]
    passed = 0
    while not all(task.done() for task in tasks):
        done = len(log)
        await iterations(1)
        passed += 1
        assert len(log) - done <= 2
        assert passed < 100
    assert [task.result() for task in tasks] == ["a", "b"]
    assert "".join(log) == "aabbaabbaabb"


async def test_one_large_body_is_read_per_iteration(rig, monkeypatch):
    gate = await rig(answer_json)
    slices = gate.gateway._parts.identifier.slices
    taken = [slices.take(gate.loop) for _ in range(3)]
    assert taken == [True, False, False]
    await iterations(1)
    assert slices.take(gate.loop)
    body = large()[: READ_AT_ONCE_BYTES // 2] + b'"}]}'
    replies = await asyncio.gather(*(gate.ask(post(body=body)) for _ in range(6)))
    assert [reply.status for reply in replies] == [200] * 6


async def test_waiters_get_slices_one_by_one():
    slices = TimeSlices()
    loop = asyncio.get_running_loop()
    assert slices.take(loop)
    waiting = [asyncio.create_task(slices.available()) for _ in range(3)]
    counts = []
    for _ in range(12):
        await iterations(1)
        counts.append(sum(task.done() for task in waiting))
    assert counts[-1] == 3 and all(after - before <= 1 for before, after in pairwise(counts))


async def test_failed_work_releases_the_slice():
    def broken():
        yield
        raise ZeroDivisionError

    slices = TimeSlices()
    with pytest.raises(ZeroDivisionError):
        await slices.finish(broken())
    assert await slices.finish(iter_of(3)) == 3


def iter_of(steps):
    for _ in range(steps):
        yield
    return steps
