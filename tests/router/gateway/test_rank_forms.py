import pytest

from backends.worker import RankCache, ServedModel, WorkerFacts
from router.placement.fleet.rank_numbers import RankForm
from tests.support.answers import answer_json
from tests.support.raw_client import PLAIN, post

REFUSAL = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n{}"


def facts(*engines):
    caches = {rank: RankCache(16, 1_000, True) for rank in range(len(engines))}
    return WorkerFacts("0.33.0", (ServedModel("m"),), caches, engines=engines)


def taking(*numbers):
    """Return the script of a worker that refuses all requests whose rank is not in `numbers`; None is no header."""

    async def script(script):
        if rank_of(script.seen) in numbers:
            await answer_json(script)
        else:
            await script.say(REFUSAL)

    return script


def rank_of(request):
    value = request.header(b"x-data-parallel-rank")
    return None if value is None else int(value)


async def start(rig, script, *engines):
    gate = await rig(script)
    worker = gate.fleet.endpoints[0]
    gate.fleet.probe_succeeded(worker.id, facts(*engines), 0.0)
    return gate, worker


async def sent(gate, requests):
    """Ask for the statuses of `requests` requests, and the ranks that the worker got."""
    statuses = [(await gate.ask(post(body=PLAIN))).status for _ in range(requests)]
    return statuses, [rank_of(request) for request in gate.workers[0].requests]


@pytest.mark.parametrize(
    ("taken", "form", "first"),
    [
        ((0, 1), RankForm.WITHIN, [{0, 1}]),
        ((4, 5), RankForm.OWN, [{0, 1}, {4, 5}]),
        ((None,), RankForm.NONE, [{0, 1}, {4, 5}, {None}]),
    ],
)
async def test_the_form_that_a_front_end_takes_is_learned(rig, taken, form, first):
    gate, worker = await start(rig, taking(*taken), 4, 5)
    assert [candidate.id for candidate in worker.candidates] == [f"{worker.id}#0", f"{worker.id}#1"]
    statuses, ranks = await sent(gate, 4)
    assert statuses == [200] * 4
    assert all(rank in allowed for rank, allowed in zip(ranks, first, strict=False))
    assert set(ranks[len(first) :]) <= set(taken)
    assert len(ranks) == len(first) + 3
    assert (worker.ranks.form, worker.ranks.settled) == (form, True)
    assert gate.counted("retries") == []


async def test_numbers_that_both_forms_have_settle_nothing(rig):
    gate, worker = await start(rig, taking(1, 2), 1, 2)
    statuses, ranks = await sent(gate, 6)
    assert statuses == [200] * 6
    assert ranks.count(0) <= 1
    assert worker.ranks.form is (RankForm.OWN if 0 in ranks else RankForm.WITHIN)


async def test_a_clients_mistake_is_its_own_answer_and_settles_nothing(rig):
    gate, worker = await start(rig, taking(), 0, 1)
    statuses, ranks = await sent(gate, 1)
    assert statuses == [400]
    assert len(ranks) == 2 and ranks[1] is None
    assert not worker.ranks.settled


async def test_mistakes_are_not_repeated_once_the_form_is_known(rig):
    gate, worker = await start(rig, taking(0, 1), 0, 1)
    assert (await sent(gate, 1))[0] == [200]
    gate.workers[0].script = taking()
    statuses, ranks = await sent(gate, 1)
    assert statuses == [400] and len(ranks) == 2
    gate.fleet.restarted(worker.id, 0.0)
    assert not worker.ranks.settled
