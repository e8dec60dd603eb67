"""Objectives: requests with a negative priority are refused while every worker is saturated."""

import pytest

from backends.worker import LoadReport
from router.config.model import PickerConfig
from router.picker.pools.pool_objects import ObjectsOfPool, PoolObjects
from router.picker.protocol.names import DROP_REASON, OBJECTIVE, OLD_OBJECTIVE
from tests.support.gateway_stream import body, chat, picked, picker_rig, refused, request_headers, set_headers

TWO = ("10.0.0.1:8000", "10.0.0.2:8000")
SETTINGS = {"picker": {"objectives": {"batch": -1, "chat": 10}}, "auth": {"allow": ("priority",)}}
FULL, FREE = {"waiting": 6}, {"waiting": 5, "kv_usage": 0.8}


def report(rig, worker, *, waiting=0, kv_usage=0.0):
    load = LoadReport(rank=0, running=1, waiting=waiting, kv_usage=kv_usage)
    rig.fleet.load_reported(worker, load, rig.system.now_s())


async def ask(rig, objective="batch", name=OBJECTIVE):
    return (await rig.ask(request_headers(headers=[(name, objective)]), body(chat())))[0]


@pytest.mark.parametrize("name", [OBJECTIVE, OLD_OBJECTIVE])
async def test_a_sheddable_request_gets_429_with_a_reason_and_a_time(name):
    async with picker_rig(TWO, **SETTINGS) as rig:
        for worker in TWO:
            report(rig, worker, **FULL)
        answer = await ask(rig, name=name)
        status, error = refused(answer)
        assert (status, error["code"]) == (429, "overloaded")
        said = set_headers(answer)
        assert (said[DROP_REASON], said["retry-after"]) == ("rejected-saturated", "1")
        assert rig.load == {}


@pytest.mark.parametrize("objective", ["chat", "unknown", ""])
async def test_others_are_picked_for(objective):
    async with picker_rig(TWO, **SETTINGS) as rig:
        for worker in TWO:
            report(rig, worker, **FULL)
        assert picked(await ask(rig, objective)) in TWO


@pytest.mark.parametrize(("first", "shed"), [(FULL, True), ({"kv_usage": 0.81}, True), (FREE, False)])
async def test_one_worker_with_room_is_enough(first, shed):
    async with picker_rig(TWO, **SETTINGS) as rig:
        report(rig, TWO[0], **first)
        report(rig, TWO[1], **FULL)
        answer = await ask(rig)
        assert answer.HasField("immediate_response") is shed


async def test_a_worker_at_its_limit_of_requests_is_saturated():
    async with picker_rig(TWO, limits={"max_requests_per_worker": 1}, **SETTINGS) as rig:
        report(rig, TWO[0], **FULL)
        answer = await ask(rig)  # the other one has room
        assert picked(answer) in TWO
        await rig.pick()
        assert refused(await ask(rig))[0] == 429


async def test_only_workers_that_may_take_the_request_count():
    async with picker_rig(TWO, **SETTINGS) as rig:
        report(rig, TWO[0], **FULL)
        message = request_headers(headers=[(OBJECTIVE, "batch")], subset=[TWO[0]])
        assert refused((await rig.ask(message, body(chat())))[0])[0] == 429
        rig.eject(TWO[1])
        assert refused(await ask(rig))[0] == 429
        rig.eject(TWO[0])
        empty = request_headers(headers=[(OBJECTIVE, "batch")], subset=[TWO[0]])
        assert refused((await rig.ask(empty, body(chat())))[0])[0] == 503, "nobody is ready, so nobody is saturated"


async def test_a_caller_without_the_permission_names_no_objective():
    async with picker_rig(TWO, picker=SETTINGS["picker"]) as rig:
        for worker in TWO:
            report(rig, worker, **FULL)
        assert picked(await ask(rig)) in TWO


def test_the_settings_priority_of_an_objective_comes_before_that_of_a_pool():
    objects = PoolObjects(PickerConfig(objectives={"batch": -1}))
    objects.adopt("chat", ObjectsOfPool({"batch": 5, "own": -3}))
    assert [objects.priority(name, "chat") for name in ("batch", "own", "other")] == [-1, -3, 0]
    assert objects.priority("own", "embed") == 0
    assert objects.statistics() == {"objectives": 2, "rewrites": 0}
