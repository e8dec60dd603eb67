import asyncio
from itertools import islice
from random import Random

import pytest

from loadtest.soak.faults import Breaker, Fault
from loadtest.soak.fleet import Worker
from loadtest.soak.traffic import Traffic, conversations
from tests.support.waiting import eventually


def test_conversations_never_end_and_follow_from_the_seed():
    one, again, other = (list(islice(conversations(seed), 130)) for seed in (3, 3, 4))
    assert one == again != other


def test_manners_come_in_the_shares_asked_for():
    traffic = Traffic("http://127.0.0.1:1", "m", 1, lambda seen, manner: None)
    manners = [traffic._manner() for _ in range(400)]
    assert 240 < sum(manner.stream for manner in manners) < 330
    assert 80 < sum(manner.fresh for manner in manners) < 160
    assert all(manner.stream for manner in manners if manner.slow)


class Quiet:
    """A fleet and its admin port, where nothing is broken but noted."""

    def __init__(self):
        self.workers = [Worker(index, 9000 + index, None) for index in range(3)]
        self.relays = self
        self.done = []

    def lose(self, index, batches):
        self.done.append(("lose", index))

    def kill(self, worker):
        self.done.append(("kill", worker.index))

    def restart(self, worker):
        self.done.append(("restart", worker.index))

    def pause(self, worker):
        self.done.append(("pause", worker.index))

    def resume(self, worker):
        self.done.append(("resume", worker.index))

    async def drain(self, worker_id, on):
        self.done.append(("drain" if on else "undrain", worker_id))

    async def until_ready(self, worker_ids, limit_s):
        return True


async def test_every_fault_is_ended_and_remembered(monkeypatch):
    monkeypatch.setattr("loadtest.soak.faults.DURATION_S", dict.fromkeys(Fault, (0.0, 0.01)))
    quiet = Quiet()
    breaker = Breaker(quiet, quiet, Random(5), 0.005)
    task = asyncio.create_task(breaker.run())
    await eventually(lambda: task.done() or min(breaker.log.counts().values()) >= 2, 30)
    assert not task.done()
    task.cancel()
    await breaker.heal()
    assert breaker.troubles == []
    assert all(window.begin_s <= window.end_s < float("inf") for window in breaker.log.windows)
    names = [name for name, _ in quiet.done]
    for begun, ended in (("kill", "restart"), ("pause", "resume"), ("drain", "undrain")):
        assert names.count(begun) == names.count(ended) > 0


async def test_a_worker_that_stays_away_is_reported():
    quiet = Quiet()

    async def never(worker_ids, limit_s):
        return False

    quiet.until_ready = never
    breaker = Breaker(quiet, quiet, Random(5), 0.001)
    await breaker._break(quiet.workers[0], Fault.LOST_EVENTS, 0.0, 1)
    assert "127.0.0.1:9000 was not ready" in breaker.troubles[0]


async def test_the_highest_rate_counts_the_answers_of_all_clients(monkeypatch):
    played = []

    async def play(*given, **more):
        played.append(given)
        await asyncio.sleep(0.02)
        return 4

    traffic = Traffic("http://127.0.0.1:1", "m", 1, lambda seen, manner: None)
    monkeypatch.setattr(traffic, "_play", play)
    began_s = asyncio.get_running_loop().time()
    rate = await traffic.keep_busy(10, 0.2)
    assert rate * (asyncio.get_running_loop().time() - began_s) == pytest.approx(4 * len(played), rel=0.1)


def test_conversations_claim_classes_and_tenants_only_if_there_are_classes():
    traffic = Traffic("http://127.0.0.1:1", "m", 1, lambda seen, manner: None, ["chat", "batch"])
    claims = [dict(traffic._manner().claims) for _ in range(100)]
    assert {one["x-request-class"] for one in claims} == {"chat", "batch"}
    assert len({one["x-llm-d-inference-fairness-id"] for one in claims}) == 5
    without = Traffic("http://127.0.0.1:1", "m", 1, lambda seen, manner: None)
    assert without._manner().claims == ()
