import asyncio
import logging
from types import SimpleNamespace

import msgspec
import pytest

from backends.worker import LoadReport
from router.app import System
from router.config.model import Config, DiagnosisConfig, HandoverConfig, WorkerConfig
from router.control import role_planner
from router.control.change import Change
from router.control.edits import set_maintenance
from router.control.role_flips import SOURCE, RoleFlips
from router.control.role_planner import RolePlanner
from router.diagnosis.split_plan import FleetPlan, PlannedPool, RoleCounts, SplitPlan
from tests.router.control.conftest import Fleet
from tests.support.waiting import eventually

CONNECTED = HandoverConfig(connector="nixl_pull")
POOLS = [
    PlannedPool(role, 1, [], price_s, 0.0, None, None, None, None)
    for role, price_s in (("prefill", 0.5), ("decode", 2))
]
PLAN = SplitPlan(("m", "n"), POOLS, RoleCounts(1, 1, 0), RoleCounts(0, 2, 0), 3.0, 1.0)


def planner_of(config, make):
    return RolePlanner(config, make, RoleFlips(config, Fleet(Config()).control, None), lambda: 0.0)


def fleet_plan(*plans):
    return FleetPlan(300.0, 600, "nixl_pull", list(plans), [])


async def test_a_plan_that_fails_is_logged_and_the_next_one_is_made(caplog):
    answers = [fleet_plan(PLAN), RuntimeError("the fleet is gone"), fleet_plan()]

    async def make():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    planner = planner_of(CONNECTED, make)
    await planner.look()
    with caplog.at_level(logging.ERROR, "warmroute.control"):
        await planner.look()
    assert planner.latest == fleet_plan(PLAN)
    assert [record.reason for record in caplog.records] == ["the fleet is gone"]
    await planner.look()
    assert {name for name, _, _ in planner.readings()} == {"warmroute_role_changes"}


async def test_a_change_that_fails_is_logged_and_tried_with_the_next_plan(caplog, monkeypatch):
    async def make():
        return fleet_plan(PLAN)

    async def step(plan, now_s):
        assert plan == fleet_plan(PLAN)
        raise RuntimeError("no room")

    planner = planner_of(CONNECTED, make)
    monkeypatch.setattr(planner._flips, "step", step)
    with caplog.at_level(logging.ERROR, "warmroute.control"):
        await planner.look()
        await planner.look()
    assert [record.reason for record in caplog.records] == ["no room"] * 2


@pytest.mark.parametrize(("config", "watched"), [(HandoverConfig(), False), (CONNECTED, True)])
async def test_only_a_fleet_with_a_connector_is_watched(config, watched, monkeypatch):
    monkeypatch.setattr(role_planner, "LOOK_S", 0.0)
    looks = []

    async def make():
        looks.append(1)
        return fleet_plan()

    planner = planner_of(config, make)
    planner.start()
    if watched:
        await eventually(lambda: len(looks) > 1)
    else:
        await asyncio.wait_for(planner._task, 5.0)
        assert (looks, planner.latest) == ([], None)
    await planner.aclose()


@pytest.mark.parametrize("config", [HandoverConfig(), CONNECTED])
async def test_a_worker_left_drained_takes_requests_again_whatever_the_settings_are_now(config, monkeypatch):
    monkeypatch.setattr(role_planner, "LOOK_S", 0.0)
    control = Fleet(Config(workers=(WorkerConfig(url="http://a:1"),))).control
    await control.make(Change(set_maintenance("a:1", True), "drained worker a:1", SOURCE))

    async def make():
        return fleet_plan()

    planner = RolePlanner(config, make, RoleFlips(config, control, None), lambda: 0.0)
    planner.start()
    await eventually(lambda: not control.state.settings.workers["a:1"].maintenance)
    await planner.aclose()


async def test_prices_and_the_recommended_split_are_metrics():
    system = System(msgspec.structs.replace(Config(), handover=CONNECTED))
    assert b"warmroute_role_price_ratio{" not in system.exposition()[0]
    unknown = SplitPlan(("x",), [msgspec.structs.replace(POOLS[0], price_s=None)], RoleCounts(1, 0, 0), needs="traffic")
    system.role_planner.latest = fleet_plan(PLAN, unknown)
    page = system.exposition()[0].decode()
    assert 'warmroute_role_price_ratio{models="m,n",role="decode"} 2.0' in page
    assert 'warmroute_recommended_replicas{models="m,n",role="prefill"} 0.0' in page
    assert 'models="x"' not in page
    await system.aclose()


@pytest.mark.parametrize(("plan_window_s", "diagnosis_s", "minutes"), [(600.0, 120.0, 11), (60.0, 900.0, 2)])
async def test_a_plan_looks_back_for_its_own_window(plan_window_s, diagnosis_s, minutes, monkeypatch):
    handover = HandoverConfig(plan_window_s=plan_window_s)
    system = System(Config(handover=handover, diagnosis=DiagnosisConfig(window_s=diagnosis_s)))
    for minute in range(20):
        system.measurements.load_reported(SimpleNamespace(id="a:1"), LoadReport(0, 1, 0, 0.5), 60.0 * minute)
    monkeypatch.setattr(system, "now_s", lambda: 20 * 60.0 - 1)
    assert (await system.role_plan()).seconds == 60 * minutes - 1
    assert system.plan_inputs().measured.workers["a:1"].reports == minutes
    assert system.known().measured.seconds == diagnosis_s - 1
    await system.aclose()


async def test_a_gateway_plans_for_what_it_has_served():
    system = System(Config())
    plan = await system.role_plan()
    assert (plan.requests, plan.plans, plan.connector) == (0, [], None)
    assert plan.seconds == pytest.approx(1.0, abs=5.0)
    await system.aclose()
