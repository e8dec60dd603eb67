"""Requests that leave their worker for one of an earlier class."""

from functools import partial

import pytest

from tests.support.answers import STREAM, chunk, event
from tests.support.busy_worker import Worker, busy, enters, named, waits
from tests.support.gateway_rig import COMPILED
from tests.support.raw_client import post
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(COMPILED, reason="prompts of a given length need the stand-in for the identity")
CLASSES = {"chat": {"share": 1.0}, "batch": {"share": 0.0}, "keen": {"share": 0.0, "preemptible": True}}


@pytest.fixture
async def gate(rig):
    """A gateway whose worker computes a long prompt of a batch job."""
    return partial(busy, rig, named(b"batch"), classes=CLASSES)


def preempted(made):
    return {
        labels: value
        for name, labels, value in made.gateway.readings()
        if name == "warmroute_class_preemptions" and value
    }


async def test_batch_work_that_was_just_sent_gives_way_to_a_chat(gate):
    made = await gate()
    later = await enters(made, "batch")
    chat = await made.send(post(extra=named(b"chat")))
    first = made.workers[0].requests[0]
    await first.gone.wait()
    await eventually(lambda: len(made.workers[0].requests) == 2)
    assert waits(made) == {"chat": 0, "batch": 2, "keen": 0}
    for client in (chat, made.first, later):
        await made.worker.answer()
        assert (await client.read()).status == 200
    bodies = [one.body for one in made.workers[0].requests]
    assert bodies[0] == bodies[2], "the same request comes again"
    assert preempted(made) == {("batch", "waits"): 1}
    assert made.counted("retries") == made.counted("attempt_failures") == []
    assert made.core.statistics()["retried"] == 0
    assert not made.gateway._parts.requests.quarantine.active
    await eventually(lambda: made.idle)


async def test_a_client_that_leaves_after_it_gave_way_leaves_nothing(gate):
    made = await gate()
    chat = await made.send(post(extra=named(b"chat")))
    await eventually(lambda: waits(made)["batch"] == 1)
    made.first.leave()
    await eventually(lambda: waits(made)["batch"] == 0 and len(made.worker.waiting) == 1)
    await made.worker.answer()
    assert (await chat.read()).status == 200
    await eventually(lambda: made.idle)
    assert len(made.workers[0].requests) == 2


@pytest.mark.parametrize("start", [b"HTTP/1.1 2", STREAM, STREAM + chunk(event("a"))], ids=["byte", "head", "event"])
async def test_an_answer_that_has_begun_stays(rig, start):
    made = await busy(rig, named(b"batch"), Worker(start), classes=CLASSES)
    chat = await made.send(post(extra=named(b"chat")))
    if b"data" in start:
        await eventually(lambda: len(made.workers[0].requests) == 2)  # its prefill has ended, so there is room
    else:
        await eventually(lambda: waits(made)["chat"] == 1)
    assert preempted(made) == {}
    assert not made.workers[0].requests[0].gone.is_set()
    chat.leave()
    made.first.leave()
    await eventually(lambda: made.idle)


async def test_bytes_that_nobody_has_read_are_the_start_of_an_answer(gate):
    made = await gate()
    (driver,) = made.gateway._parts.requests.running
    attempt = driver._outbound.flow.attempt
    assert attempt.unanswered
    made.worker.scripts[0].writer.write(b"H")
    assert not attempt.unanswered


@pytest.mark.parametrize("of", ["keen", "batch"])
async def test_an_answer_in_progress_ends_with_an_error_if_its_class_is_preemptible(rig, of):
    worker = Worker(STREAM + chunk(event("a")))
    made = await busy(rig, named(of.encode()), worker, classes=CLASSES, limits={"max_requests_per_worker": 1})
    await made.first.reader.readuntil(b"data: ")
    worker.start = b""
    chat = await made.send(post(extra=named(b"chat")))
    if of == "batch":
        assert (await chat.read()).status == 503
        assert preempted(made) == {}
        return
    assert b'"code":"preempted"' in await made.first.reader.readuntil(b"0\r\n\r\n")
    await eventually(lambda: len(made.workers[0].requests) == 2 and len(worker.waiting) == 1)
    await worker.answer()
    assert (await chat.read()).status == 200
    assert preempted(made) == {("keen", "left"): 1}
    await eventually(lambda: made.idle)
