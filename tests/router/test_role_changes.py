"""The change of a role from its plan to the next requests, on a whole gateway with embedded workers."""

import asyncio
import itertools
from contextlib import AsyncExitStack

import httpx
import msgspec
import pytest

from backends.simulated.serving import serving
from backends.simulated.settings import WorkerSettings
from router.app import System
from router.config.model import Config
from router.diagnosis.split_plan import RoleCounts
from router.gateway.server import address_of
from router.placement.health import WorkerState
from tests.support.waiting import eventually

ROLES = ("prefill", "decode", "decode")
HANDOVER = {"connector": "nixl_pull", "flip_roles": "on", "flip_drain_s": 1e6}


@pytest.fixture
async def system():
    """A gateway before a prefill worker and two decode workers."""
    async with AsyncExitStack() as stack:
        settings = WorkerSettings(model_name="m", kv_events=False, kv_connector="nixl_pull")
        running = [await stack.enter_async_context(serving(settings)) for _ in ROLES]
        workers = [{"url": one.url, "role": role} for one, role in zip(running, ROLES, strict=True)]
        fields = {"host": "127.0.0.1", "port": 0, "admin_port": 0, "workers": workers, "handover": HANDOVER}
        system = System(msgspec.convert(fields, Config))
        await system.start()
        stack.push_async_callback(system.aclose, 0.0)
        await eventually(lambda: [one.state for one in system.fleet.endpoints] == [WorkerState.READY] * 3)
        yield system


@pytest.fixture
async def client(system):
    async with httpx.AsyncClient(base_url=f"http://{address_of(system.gateway.listeners[0].getsockname())}") as client:
        yield client


def asks_for_prefill(system):
    """Let the planner find that one decode worker should be a prefill worker, while there are two.

    It looks when the test says so, and ten minutes pass between two looks.
    """
    system.role_planner._task.cancel()
    system.role_planner._now_s = itertools.count(0.0, 600.0).__next__
    own = system.role_planner._make_plan

    async def make():
        plan = await own()
        (split,) = plan.plans
        then = RoleCounts(2, 1, 0) if split.now == RoleCounts(1, 2, 0) else split.now
        split = msgspec.structs.replace(split, recommended=then, delay_s=2.0, first_step_delay_s=1.0)
        return msgspec.structs.replace(plan, plans=[split])

    system.role_planner._make_plan = make


async def streams(client, count):
    """Let streams run that end with the tasks returned."""

    async def one():
        body = {"model": "m", "prompt": [1, 2, 3], "max_tokens": 5_000, "stream": True}
        async with client.stream("POST", "/v1/completions", json=body, timeout=60.0) as answer:
            async for _ in answer.aiter_raw():
                pass

    return [asyncio.create_task(one()) for _ in range(count)]


async def test_a_worker_drains_its_streams_changes_its_role_and_takes_requests_again(system, client):
    planner, decoders = system.role_planner, [one for one in system.fleet.endpoints if one.role == "decode"]
    asks_for_prefill(system)
    tasks = await streams(client, 4)
    await eventually(lambda: all(system.in_flight().get(one.id, 0) for one in decoders))
    await planner.look()
    await planner.look()
    (drained,) = [one for one in decoders if one.draining]
    await planner.look()
    assert (drained.role, drained.draining) == ("decode", True), "its streams run"
    plan = await system.role_plan()
    assert (plan.flips.draining, plan.flips.to_role) == (drained.id, "prefill")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await eventually(lambda: not system.in_flight().get(drained.id, 0))
    await planner.look()
    assert (drained.role, drained.draining, planner._flips.draining) == ("prefill", False, False)
    revisions = [(one.source, one.what.split()[0]) for one in system.control.history.revisions[1:]]
    assert revisions == [("planner", "drained"), ("planner", "changed")]
    assert b'warmroute_role_changes_total{outcome="changed"} 1.0' in system.exposition()[0]
    await planner.look()
    await planner.look()
    assert [one.role for one in system.fleet.endpoints].count("decode") == 1, "the last one stays"
    answer = await client.post("/v1/completions", json={"model": "m", "prompt": [1, 2, 3], "max_tokens": 2})
    assert answer.status_code == 200
    listed = [one["outcome"] for one in _decisions(system)]
    assert "failed" not in " ".join(listed)


async def test_a_gateway_that_stops_during_the_drain_leaves_no_worker_drained(system, client):
    asks_for_prefill(system)
    tasks = await streams(client, 4)
    await eventually(lambda: len([one for one in system.in_flight().values() if one]) == 2)
    await system.role_planner.look()
    await system.role_planner.look()
    assert any(one.draining for one in system.fleet.endpoints)
    await system.role_planner.aclose()
    assert not any(one.draining for one in system.fleet.endpoints)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _decisions(system):
    return [record.to_builtins(chosen_only=True) for record in system.dispatcher.decisions(100)]
