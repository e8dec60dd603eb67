"""Requests that the policy holds until their worker is free, their hold expires, or the fleet changes."""

import asyncio

import pytest

from policies.spec import PolicySpec
from policies.view import Decision
from tests.support.answers import answer_stream, die
from tests.support.raw_client import get, post
from tests.support.waiting import eventually

LONG_S = 60.0


class Patient:
    """Holds every request until the first worker has no prefill left, or `hold_s` have passed."""

    def __init__(self, hold_s=LONG_S, until_prefills_done=True):
        self.hold_s, self.until_prefills_done = hold_s, until_prefills_done

    def decide(self, request, fleet):
        first = fleet.workers[0]
        left_s = self.hold_s - request.waited_s if first.queued_requests else 0.0
        ranked = tuple(view.id for view in fleet.workers)
        return Decision(ranked, "first", hold_s=max(0.0, left_s), until_prefills_done=self.until_prefills_done)


class Slow:
    """A worker that answers its oldest waiting request at each call of `answer`."""

    def __init__(self):
        self.waiting = []

    async def __call__(self, script):
        go = asyncio.Event()
        self.waiting.append(go)
        await go.wait()
        await answer_stream(script)

    def answer(self):
        self.waiting.pop(0).set()


@pytest.fixture
async def gate(rig):
    """Two workers, of which the first is busy with a request, and another request that waits for it."""

    async def make(hold_s=LONG_S, until_prefills_done=True, **options):
        slow = Slow()
        made = await rig(slow, answer_stream, **options)
        made.slow = slow
        made.core.policies.default.adopt(Patient(hold_s, until_prefills_done), PolicySpec("patient"))
        made.first, made.second = await made.connect(), await made.connect()
        made.first.writer.write(post())
        await eventually(lambda: slow.waiting)
        made.second.writer.write(post())
        await eventually(lambda: made.recorded.events[1:2])
        return made

    return make


def held(gate):
    return gate.gateway.statistics()["held"]


async def test_a_held_request_is_sent_once_its_worker_has_no_prefill(gate):
    made = await gate()
    assert made.recorded.events == ["ticket", "held"] and held(made) == 1
    assert made.gateway.statistics()["held_by_route"] == [("default", "m", 1)]
    assert len(made.workers[0].requests) == 1
    seen_s = made.loop.time()
    await made.ask(get(b"/livez"))
    at_least_s = made.loop.time() - seen_s
    made.slow.answer()
    assert (await made.first.read()).status == 200
    await eventually(lambda: made.slow.waiting)
    made.slow.answer()
    assert (await made.second.read()).status == 200
    assert held(made) == 0 and not made.workers[1].requests
    assert made.gateway.statistics()["held_by_route"] == []
    assert made.counted("hold_seconds") == [()]
    assert at_least_s <= made.registry.histogram("hold_seconds").at().total < LONG_S
    assert at_least_s <= made.core.log.latest(1)[0].request.waited_s < LONG_S
    await eventually(lambda: made.idle)


@pytest.mark.parametrize("path", [b"/tokenize", b"/v1/messages/count_tokens", b"/v1/embeddings"])
async def test_requests_that_generate_nothing_are_never_held(gate, path):
    made = await gate()
    other = await made.send(post(path))
    await eventually(lambda: len(made.slow.waiting) == 2)
    assert held(made) == 1
    tokens = made.core.log.latest(1)[0].request.prompt_tokens
    assert (tokens > 0) is (path == b"/v1/embeddings"), "where the model computes something, a guess is reserved"
    made.slow.waiting[1].set()
    assert (await other.read()).status == 200


async def test_a_held_request_is_sent_when_its_hold_expires(gate):
    made = await gate(hold_s=0.2)
    await eventually(lambda: len(made.slow.waiting) == 2)
    assert made.core.log.latest(1)[0].request.waited_s > 0.199
    for _ in range(2):
        made.slow.answer()
    assert (await made.first.read()).status == (await made.second.read()).status == 200


async def test_a_hold_not_for_prefills_outlasts_the_prefills(gate):
    made = await gate(hold_s=0.5, until_prefills_done=False)
    made.slow.answer()
    assert (await made.first.read()).status == 200
    await eventually(lambda: made.slow.waiting)
    made.slow.answer()
    assert (await made.second.read()).status == 200
    assert made.recorded.events.count("held") == 1
    assert made.core.log.latest(1)[0].request.waited_s > 0.499


async def test_held_requests_are_sent_one_by_one_in_order_of_arrival(gate):
    made = await gate()
    third = await made.send(post())
    await eventually(lambda: held(made) == 2)
    for client, left in ((made.first, 1), (made.second, 0), (third, 0)):
        made.slow.answer()
        assert (await client.read()).status == 200
        await eventually(lambda left=left: held(made) == left)
        await eventually(lambda left=left, client=client: made.slow.waiting or client is third)
    assert len(made.workers[0].requests) == 3


async def test_a_held_request_whose_client_leaves_is_not_sent(gate):
    made = await gate()
    made.second.leave()
    await eventually(lambda: held(made) == 0)
    made.slow.answer()
    assert (await made.first.read()).status == 200
    await eventually(lambda: made.idle)
    assert len(made.workers[0].requests) == 1 and made.counted("client_aborts") == [("before_first",)]


async def test_a_held_request_is_sent_when_the_client_before_it_leaves(gate):
    made = await gate()
    made.first.leave()
    await eventually(lambda: len(made.workers[0].requests) == 2)
    made.slow.waiting[-1].set()
    assert (await made.second.read()).status == 200


async def test_a_request_above_max_queued_requests_is_sent_at_once(gate):
    made = await gate(limits={"max_queued_requests": 1})
    await made.send(post())
    await eventually(lambda: len(made.slow.waiting) == 2)
    assert made.recorded.events.count("ticket") == 2 and held(made) == 1


@pytest.mark.parametrize("until_prefills_done", [True, False])
async def test_a_held_request_is_sent_elsewhere_when_its_worker_is_removed(gate, until_prefills_done):
    made = await gate(until_prefills_done=until_prefills_done)
    made.fleet.remove(made.workers[0].id)
    assert (await made.second.read()).status == 200
    assert len(made.workers[1].requests) >= 1


async def test_a_held_request_without_workers_is_queued_until_one_joins(gate):
    made = await gate()
    for worker in made.workers:
        made.fleet.remove(worker.id)
    await eventually(lambda: made.gateway.statistics()["queued"] == 1 and held(made) == 0)
    made.join(made.workers[1])
    assert (await made.second.read()).status == 200


async def test_a_retry_is_not_held(rig):
    slow = Slow()
    made = await rig(die, slow)

    class Late:
        def decide(self, request, fleet):
            busy = len(fleet.workers) == 1
            return Decision(tuple(view.id for view in fleet.workers), "first", hold_s=LONG_S if busy else 0.0)

    made.core.policies.default.adopt(Late(), PolicySpec("late"))
    client = await made.send(post())
    await eventually(lambda: slow.waiting)
    slow.answer()
    assert (await client.read()).status == 200 and "held" not in made.recorded.events


async def test_a_held_request_gets_503_at_shutdown(gate):
    made = await gate()
    closing = asyncio.ensure_future(made.gateway.aclose(0.1))
    reply = await made.second.read()
    assert (reply.status, reply.code) == (503, "shutting_down")
    await closing
    assert held(made) == 0


async def test_a_held_stream_gets_comments(gate):
    made = await gate(timeouts={"header_delay_s": 0.05, "comment_interval_s": 0.05})
    commented = asyncio.Event()
    reading = asyncio.create_task(made.second.read(on_head=commented.set))
    await commented.wait()
    made.slow.answer()
    await eventually(lambda: made.slow.waiting)
    made.slow.answer()
    reply = await reading
    assert reply.status == 200 and b": warmroute is waiting for a worker" in reply.body


async def test_a_held_request_gets_504_after_total_s(gate):
    made = await gate(timeouts={"total_s": 0.5})
    reply = await made.second.read()
    assert (reply.status, reply.code) == (504, "total_timeout")
    assert held(made) == 0


async def test_one_round_offers_a_bounded_number_of_held_requests(gate, monkeypatch):
    monkeypatch.setattr("router.placement.held_by_worker.ASKED_AT_ONCE", 2)
    made = await gate()
    others = [await made.connect() for _ in range(4)]
    for client in others:
        client.writer.write(post())
    await eventually(lambda: held(made) == 5)
    asked = made.recorded.events.count("held")
    made.core.policies.default.adopt(Hesitant(), PolicySpec("hesitant"))
    made.slow.answer()
    assert (await made.first.read()).status == 200
    await eventually(lambda: made.recorded.events.count("held") > asked)
    await made.ask(get(b"/livez"))
    assert made.recorded.events.count("held") == asked + 2 and held(made) == 5


class Hesitant:
    """Always holds requests for the second worker."""

    def decide(self, request, fleet):
        return Decision((fleet.workers[1].id, fleet.workers[0].id), "second", hold_s=LONG_S)
