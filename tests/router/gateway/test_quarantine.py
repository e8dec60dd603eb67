import asyncio

import pytest

from backends.connect_errors import is_refusal
from policies.spec import PolicySpec
from policies.view import Decision
from tests.support.answers import after, answer_stream, die, json_head
from tests.support.raw_client import get, post
from tests.support.waiting import eventually, iterations

DEADLY = b'{"model":"m","messages":[{"role":"user","content":"deadly"}],"stream":true}'
GOOD = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true}'
CODE = "request_crashes_workers"
PAUSE = 100
"""Iterations that a worker takes for a request, which is time enough for the gateway to send it others."""


class Mortals:
    """`count` workers that die `pause` iterations after a query of death, and answer all other requests.

    `spared`: they live on until `let_die`. `exits`: a worker answers 500 first, as vLLM does when its engine has died.
    """

    def __init__(self, count, pause=0, exits=False, spared=False):
        self.pause, self.exits = pause, exits
        self.may_die = [asyncio.Event() for _ in range(count)]
        if not spared:
            self.let_die(*range(count))
        self.scripts = [self.script_of(number) for number in range(count)]
        self.dead = []

    async def build(self, rig, **settings):
        self.gate = await rig(*self.scripts, **settings)
        return self.gate

    def script_of(self, number):
        async def script(script):
            if b"deadly" not in script.seen.body:
                await answer_stream(script)
                return
            await self.may_die[number].wait()
            await iterations(self.pause)
            if self.exits:
                await script.say(json_head(2, b"500 Internal Server Error"), b"{}")
                await iterations(PAUSE)
            self.die(number)

        return script

    def let_die(self, *numbers):
        for number in numbers:
            self.may_die[number].set()

    def die(self, number):
        if number not in self.dead:
            self.dead.append(number)
            worker = self.gate.workers[number]
            worker.server.close()
            current = asyncio.current_task()
            for task in worker.tasks - {current}:
                task.cancel()
            if current in worker.tasks:
                raise ConnectionError("dead")

    async def ask(self, body=DEADLY, **options):
        return await self.gate.ask(post(body=body, **options))

    def hesitant(self, script):
        """Return `script` for workers that answer good requests later than they die."""

        async def answer(one):
            if b"deadly" not in one.seen.body:
                await self.may_die[0].wait()
                await iterations(3 * PAUSE)
            await script(one)

        return answer

    async def proven(self, count):
        """Wait until `count` workers are dead, and the gateway has proof of it."""
        await eventually(lambda: len(self.dead) == len(self.gate.counted("worker_deaths")) == count)


@pytest.mark.parametrize("pause", [0, PAUSE])
async def test_one_body_crashes_at_most_two_workers_with_an_sdk_that_retries(rig, pause):
    mortals = Mortals(4, pause)
    gate = await mortals.build(rig)
    codes = []
    for _ in range(6):  # two calls of an SDK that tries three times
        reply = await mortals.ask()
        codes.append((reply.status, reply.code))
        await mortals.proven(2)
    assert len(mortals.dead) == 2
    assert codes[0] == (503, "worker_failed")
    assert set(codes[1:]) == {(422, CODE)}
    assert (await mortals.ask(GOOD)).status == 200
    assert gate.counted("worker_deaths") == [("blamed",), ("blamed",)]
    assert gate.gateway.statistics()["quarantine"]["refused_requests"] >= 4


async def test_a_worker_lost_on_a_pooled_connection_counts_as_dead(rig):
    """The connection looks as if the worker had closed it while idle, so the request goes to the worker again."""
    mortals = Mortals(4)
    gate = await mortals.build(rig)
    for _ in range(8):
        assert (await mortals.ask(GOOD)).status == 200  # leaves idle connections to all four
    for _ in range(4):
        await mortals.ask()
        await mortals.proven(2)
    assert "retry sent" in gate.recorded.events


async def test_bodies_that_lose_pooled_connections_go_to_the_other_worker(rig):
    """The refused dial of the second body proves the death while that body is still at the dead worker."""
    mortals = Mortals(2)
    gate = await mortals.build(rig)
    gate.fleet.drain(gate.workers[1].id)
    may_answer = asyncio.Event()
    gate.workers[0].script = after(may_answer, gate.workers[0].script)

    async def both(*words):
        count = len(gate.workers[0].requests)
        asking = [asyncio.create_task(mortals.ask(GOOD.replace(b"hi", word))) for word in words]
        await eventually(lambda: len(gate.workers[0].requests) == count + 2)
        return asyncio.gather(*asking)

    asking = await both(b"one", b"two")
    may_answer.set()
    assert [answer.status for answer in await asking] == [200, 200]  # leaves two idle connections
    gate.workers[0].script = silent
    asking = await both(b"three", b"four")
    gate.fleet.undrain(gate.workers[1].id)
    mortals.die(0)
    assert [answer.status for answer in await asking] == [200, 200]
    assert gate.recorded.events.count("retry sent") == 2


async def test_eight_copies_at_one_worker_crash_two_workers(rig):
    """All eight are at one worker first, where prefix routing sends them."""
    mortals = Mortals(4, PAUSE, spared=True)
    gate = await mortals.build(rig)
    for worker in gate.workers[1:]:
        gate.fleet.drain(worker.id)
    asking = [asyncio.create_task(mortals.ask()) for _ in range(8)]
    await eventually(lambda: len(gate.workers[0].requests) == 8)
    for worker in gate.workers[1:]:
        gate.fleet.undrain(worker.id)
    mortals.let_die(*range(4))
    replies = await asyncio.gather(*asking)
    assert len(mortals.dead) == 2
    assert {reply.status for reply in replies} <= {503, 422}


async def test_copies_at_four_workers_crash_at_most_one_worker_more(rig):
    """At most one worker is lost that did not have the body when the first one died."""
    mortals = Mortals(6, PAUSE)
    gate = await mortals.build(rig)
    replies = await asyncio.gather(*(mortals.ask() for _ in range(4)))  # round robin: one at each of four workers
    assert {reply.status for reply in replies} <= {503, 422}
    assert len(mortals.dead) <= 5
    lost = len(mortals.dead)
    await mortals.proven(lost)
    assert (await mortals.ask()).code == CODE
    assert len(mortals.dead) == lost
    assert (await mortals.ask(GOOD)).status == 200
    assert gate.idle


async def test_a_worker_that_answers_500_and_exits_counts_as_dead(rig):
    mortals = Mortals(4, exits=True)
    await mortals.build(rig)
    codes = []
    for _ in range(4):
        reply = await mortals.ask()
        codes.append(reply.status)
        await mortals.proven(2)
    assert codes == [500, 422, 422, 422]


async def test_without_retries_each_request_crashes_one_worker(rig):
    mortals = Mortals(4)
    await mortals.build(rig, retries={"max_attempts": 1})
    replies = []
    for _ in range(4):
        replies.append(await mortals.ask())
        await mortals.proven(min(len(replies), 2))
    assert [reply.status for reply in replies] == [503, 503, 422, 422]
    assert len(mortals.dead) == 2


async def test_switched_off_every_request_crashes_its_workers(rig):
    mortals = Mortals(4)
    await mortals.build(rig, retries={"query_of_death_s": 0})
    for _ in range(2):
        assert (await mortals.ask()).status == 503
    assert len(mortals.dead) == 4


async def test_a_good_body_at_a_dying_worker_is_cleared_by_its_answer(rig):
    """A good request waits beside the query of death at both workers that die. One is answered between the deaths."""
    mortals = Mortals(3, spared=True)
    gate = await mortals.build(rig)
    gate.core.policies.default.adopt(InOrder(), PolicySpec("in_order"))
    may_answer = asyncio.Event()

    def waiting(script):
        async def answer(one):
            if one.seen.body == GOOD:
                await may_answer.wait()
            await script(one)

        return answer

    for worker in gate.workers:
        worker.script = waiting(worker.script)
    deadly, good = (asyncio.create_task(mortals.ask(body)) for body in (DEADLY, GOOD))
    await eventually(lambda: len(gate.workers[0].requests) == 2)
    mortals.let_die(0)
    await eventually(lambda: [len(worker.requests) for worker in gate.workers[1:]] == [1, 1])
    may_answer.set()
    assert (await good).status == 200
    may_answer.clear()
    doomed, other = (1, 2) if gate.workers[1].requests[0].body == DEADLY else (2, 1)
    gate.fleet.drain(gate.workers[other].id)
    good = asyncio.create_task(mortals.ask(GOOD))
    await eventually(lambda: len(gate.workers[doomed].requests) == 2)
    gate.fleet.undrain(gate.workers[other].id)
    mortals.let_die(doomed)
    may_answer.set()
    assert [(await asking).status for asking in (deadly, good)] == [503, 200]
    await mortals.proven(2)
    assert (await mortals.ask()).code == CODE
    assert (await mortals.ask(GOOD)).status == 200


async def test_bodies_suspected_of_one_death_go_to_different_workers(rig):
    """The good request waits beside the query of death only once, though the policy prefers one worker for both."""
    mortals = Mortals(3, PAUSE, spared=True)
    gate = await mortals.build(rig)
    gate.core.policies.default.adopt(InOrder(), PolicySpec("in_order"))
    for worker in gate.workers:
        worker.script = mortals.hesitant(worker.script)
    asking = [asyncio.create_task(mortals.ask(body)) for body in (DEADLY, GOOD)]
    await eventually(lambda: len(gate.workers[0].requests) == 2)
    mortals.let_die(*range(3))
    deadly, good = await asyncio.gather(*asking)
    assert (deadly.status, good.status) == (503, 200)
    assert [len(worker.requests) for worker in gate.workers] == [2, 1, 1]


class InOrder:
    """Prefers the first worker, then the second."""

    def decide(self, request, fleet):
        return Decision(tuple(view.id for view in fleet.workers), "in order")


async def test_the_only_other_worker_takes_all_bodies_suspected_of_one_death(rig):
    mortals = Mortals(2)
    gate = await mortals.build(rig)
    gate.workers[0].script = silent
    gate.workers[1].script = mortals.hesitant(gate.workers[1].script)
    gate.fleet.drain(gate.workers[1].id)
    asking = [asyncio.create_task(mortals.ask(GOOD.replace(b"hi", word))) for word in (b"one", b"two", b"three")]
    await eventually(lambda: len(gate.workers[0].requests) == 3)
    gate.fleet.undrain(gate.workers[1].id)
    mortals.die(0)
    assert [answer.status for answer in await asyncio.gather(*asking)] == [200, 200, 200]
    assert len(gate.workers[1].requests) == 3


async def silent(script):
    await asyncio.Event().wait()


async def test_a_reset_without_a_death_is_not_blamed_on_the_body(rig):
    """The worker still listens, and a probe finds the same process."""

    gate = await rig(die, die)
    doubted = []
    gate.fleet.on_doubt.append(doubted.append)
    reply = await gate.ask(post(body=DEADLY))
    assert reply.code == "worker_failed"
    reply = await gate.ask(post(body=DEADLY))
    assert (reply.status, reply.header(b"retry-after")) == (503, b"1")
    assert len(gate.workers[0].requests) + len(gate.workers[1].requests) == 2  # to no worker while in doubt
    for endpoint in doubted:
        gate.fleet.continues(endpoint.id, gate.loop.time() + 0.01)
    await gate.ask(post(body=DEADLY))
    assert len(gate.workers[0].requests) + len(gate.workers[1].requests) == 4


async def test_another_process_at_the_address_proves_a_death(rig):
    gate = await rig(die, die)
    await gate.ask(post(body=DEADLY))
    for endpoint in gate.fleet.endpoints:
        gate.fleet.restarted(endpoint.id, gate.loop.time())
    reply = await gate.ask(post(body=DEADLY))
    assert (reply.status, reply.code) == (422, CODE)
    assert b'"param":null' in reply.body
    assert reply.header(b"retry-after") is None


async def test_the_same_bytes_on_another_path_are_another_request(rig):
    gate = await rig(die, die)
    for path in (b"/v1/chat/completions", b"/v1/embeddings"):
        await gate.ask(post(path, body=DEADLY))
        for endpoint in gate.fleet.endpoints:
            gate.fleet.restarted(endpoint.id, gate.loop.time())
        refused = await gate.ask(post(path, body=DEADLY))
        assert refused.code == CODE
    assert sum(len(worker.requests) for worker in gate.workers) == 4


async def test_requests_without_a_body_are_never_blamed(rig):
    gate = await rig(die, die, extra_paths={"/v1/thing": ["GET"]})
    for _ in range(3):
        reply = await gate.ask(get(b"/v1/thing"))
        assert reply.status == 503
        for endpoint in gate.fleet.endpoints:
            gate.fleet.restarted(endpoint.id, gate.loop.time())
    assert gate.counted("worker_deaths") == []


def test_only_a_refusal_at_all_addresses_counts_as_a_refusal():
    refused = ConnectionRefusedError(111, "Connection refused")
    both = OSError("Multiple exceptions: [Errno 111] Connect call failed ('::1', 1), [Errno 111] Connect call failed")
    mixed = OSError("Multiple exceptions: [Errno 111] Connect call failed ('::1', 1), [Errno 113] No route to host")
    assert is_refusal(refused) and is_refusal(both)
    assert not is_refusal(mixed) and not is_refusal(TimeoutError()) and not is_refusal(OSError(113, "No route"))
