"""When a role is due to change, and the drain and the change of one worker. Time is an argument."""

import logging

import pytest

from router.config.model import Config, HandoverConfig, RedisConfig, WorkerConfig
from router.control.change import Change
from router.control.edits import change_worker, remove_worker, set_maintenance
from router.control.role_flips import RoleFlips, left_behind, wanted
from router.diagnosis.split_plan import FleetPlan, PlannedPool, RoleCounts, SplitPlan
from router.placement.settings import check
from router.workers.settings import check as check_workers
from tests.router.control.conftest import Fleet

ON = HandoverConfig(connector="nixl_pull", flip_roles="on", flip_after_s=300.0, flip_margin=0.1, flip_drain_s=60.0)
ROLES = {"a:1": "prefill", "a:2": "decode", "a:3": "decode", "a:4": "decode"}


def split(now=(1, 3, 0), then=(2, 2, 0), delay_s=2.0, step_s=1.0, roles=ROLES, models=("m",)):
    pools = [
        PlannedPool(role, 0, [name for name, own in roles.items() if own == role], None, None, None, None, None, None)
        for role in ("prefill", "decode", "mixed")
    ]
    return SplitPlan(models, pools, RoleCounts(*now), RoleCounts(*then), delay_s, 0.5, step_s)


def plan(*splits):
    return FleetPlan(300.0, 600, "nixl_pull", list(splits) or [split()], [])


NOTHING = split(then=(1, 3, 0))


class Site:
    """A fleet in memory whose planner changes roles."""

    def __init__(self, config=ON):
        workers = tuple(WorkerConfig(url=f"http://{name}", role=role) for name, role in ROLES.items())
        self.fleet = Fleet(Config(workers=workers, handover=config))
        self.running = {"a:2": 3, "a:3": 1, "a:4": 2}
        self.flips = RoleFlips(config, self.fleet.control, self.in_flight)

    async def in_flight(self):
        return self.running

    async def hold(self, *, until_s, plans=None, since_s=0.0):
        for at_s in range(int(since_s), int(until_s) + 1, 15):
            await self.flips.step(plans or plan(), float(at_s))

    @property
    def workers(self):
        return self.fleet.control.state.settings.workers

    @property
    def drained(self):
        return [name for name, worker in self.workers.items() if worker.maintenance]

    @property
    def planned(self):
        return [one.what for one in self.fleet.control.history.revisions if one.source == "planner"]

    @property
    def counts(self):
        return {outcome: count for outcome, count in self.flips.state().counts.items() if count}


# when


@pytest.mark.parametrize(
    ("asked", "to_role"),
    [
        ({}, "prefill"),
        ({"now": (3, 1, 0), "then": (2, 2, 0)}, "decode"),
        ({"now": (1, 3, 2), "then": (2, 2, 2)}, "prefill"),
        ({"now": (0, 2, 0), "then": (1, 1, 0)}, "prefill"),
        ({"step_s": 1.79}, "prefill"),
        ({"step_s": 1.81}, None),
        ({"step_s": 3.0}, None),
        ({"then": (1, 3, 0)}, None),
        ({"now": (1, 1, 0), "then": (0, 2, 0)}, None),
        ({"now": (1, 1, 0), "then": (2, 0, 0)}, None),
        ({"now": (0, 0, 4), "then": (2, 2, 0)}, None),
        ({"delay_s": 0.02, "step_s": 0.011}, None),
    ],
)
def test_a_change_must_save_the_margin_and_never_takes_the_last_of_a_role(asked, to_role):
    found = wanted(split(**asked), 0.1)
    assert (None if found is None else found.to_role) == to_role


def test_a_plan_that_needs_more_asks_for_nothing():
    assert wanted(SplitPlan(("m",), [], RoleCounts(1, 3, 0), needs="traffic"), 0.1) is None


async def test_a_role_changes_after_the_time_without_a_break_and_once_the_worker_is_empty():
    site = Site()
    await site.hold(until_s=285)
    assert (site.drained, site.flips.draining) == ([], False)
    assert site.flips.state().due == [
        "m: one decode worker as prefill worker would save 1 s of delay per second; so for 285 s of 300 s"
    ]
    await site.flips.step(plan(), 300.0)
    assert (site.drained, site.flips.draining) == (["a:3"], True), "the one with the fewest requests"
    assert (site.flips.state().draining, site.flips.state().to_role) == ("a:3", "prefill")
    await site.flips.step(plan(), 310.0)
    assert site.workers["a:3"].role == "decode"
    site.running = {}
    await site.flips.step(plan(), 311.0)
    assert (site.workers["a:3"].role, site.drained, site.flips.draining) == ("prefill", [], False)
    assert site.fleet.agree()
    assert site.counts == {"changed": 1}
    drained, changed = site.planned
    assert drained.startswith("drained worker a:3") and changed.startswith("changed worker a:3 from decode to prefill")
    await site.hold(since_s=312, until_s=600)
    assert not site.flips.draining, "the next change needs the whole time again"


async def test_a_break_begins_the_time_anew():
    site = Site()
    await site.hold(until_s=285)
    await site.flips.step(plan(NOTHING), 290.0)
    await site.hold(since_s=300, until_s=585)
    assert not site.flips.draining
    await site.flips.step(plan(), 600.0)
    assert site.flips.draining


async def test_another_direction_begins_the_time_anew():
    site = Site()
    await site.hold(until_s=285)
    back = split(now=(3, 1, 0), then=(2, 2, 0), roles={"a:1": "prefill", "a:2": "prefill", "a:3": "decode"})
    await site.hold(since_s=300, until_s=585, plans=plan(back))
    assert not site.flips.draining


async def test_only_one_worker_changes_at_a_time():
    site = Site()
    await site.hold(until_s=300, plans=plan(split(), split(models=("n",), step_s=0.5, roles={"a:4": "decode"})))
    assert site.drained == ["a:4"], "the change that saves more"
    await site.hold(since_s=301, until_s=350, plans=plan(split()))
    assert site.drained == ["a:4"]


@pytest.mark.parametrize("mode", ["off", "advise"])
async def test_without_on_nothing_changes_and_advice_is_logged_once_a_period(mode, caplog):
    site = Site(HandoverConfig(connector="nixl_pull", flip_roles=mode, flip_after_s=300.0))
    with caplog.at_level(logging.WARNING, "warmroute.control"):
        await site.hold(until_s=500)
    assert (site.drained, site.planned) == ([], [])
    assert site.counts == ({} if mode == "off" else {"advised": 1})
    assert [record.advice for record in caplog.records] == (
        [] if mode == "off" else ["m: one decode worker as prefill worker would save 1 s of delay per second"]
    )


# the drain


async def draining():
    site = Site()
    await site.hold(until_s=300)
    assert site.drained == ["a:3"]
    return site


async def test_a_drain_that_takes_too_long_is_given_up_and_the_role_stays():
    site = await draining()
    await site.flips.step(None, 359.0)
    assert site.drained == ["a:3"]
    await site.flips.step(None, 360.0)
    assert (site.drained, site.workers["a:3"].role, site.counts) == ([], "decode", {"given_up": 1})
    assert "not done within 60 s" in site.planned[-1]


@pytest.mark.parametrize(
    "edit", [set_maintenance("a:3", False), remove_worker("a:3"), change_worker("a:3", {"role": "mixed"})]
)
async def test_what_an_operator_does_meanwhile_stands(edit):
    site = await draining()
    await site.fleet.control.make(Change(edit, "an operator"))
    before = site.workers
    site.running = {}
    await site.flips.step(plan(), 310.0)
    assert (site.workers, site.flips.draining, site.counts) == (before, False, {"interrupted": 1})


@pytest.mark.parametrize("outcome", ["changed", "given_up", "interrupted"])
async def test_after_a_drain_the_time_begins_once_the_load_of_earlier_has_left_the_window(outcome):
    site = await draining()
    if outcome == "interrupted":
        await site.fleet.control.make(Change(set_maintenance("a:3", False), "an operator"))
    site.running = {} if outcome == "changed" else {"a:3": 1}
    await site.flips.step(plan(), 360.0)
    assert site.counts == {outcome: 1}
    await site.hold(since_s=361, until_s=719)
    assert site.flips.state().due == [], "300 s of the window and the present minute"
    await site.hold(since_s=720, until_s=1_019)
    assert not site.flips.draining
    await site.flips.step(plan(), 1_020.0)
    assert site.flips.draining


async def test_unknown_requests_are_no_empty_worker():
    site = await draining()
    site.running = None
    await site.flips.step(plan(), 310.0)
    assert (site.drained, site.workers["a:3"].role) == (["a:3"], "decode")
    fresh = Site()
    fresh.running = None
    await fresh.hold(until_s=300)
    assert fresh.drained == []
    fresh.running = {}
    await fresh.flips.step(plan(), 315.0)
    assert fresh.drained == ["a:2"], "it is tried again, and of equal workers the first one changes"


async def test_workers_in_maintenance_or_unknown_are_not_moved():
    site = Site()
    for name in ("a:2", "a:3"):
        await site.fleet.control.make(Change(set_maintenance(name, True), "an operator"))
    await site.fleet.control.make(Change(remove_worker("a:4"), "an operator"))
    await site.hold(until_s=330)
    assert not site.flips.draining


@pytest.mark.parametrize("patch", [{"labels": {"kv_connector": "none"}}, {"role": "batch"}])
async def test_workers_without_the_connector_or_of_another_role_are_not_moved(patch):
    site = Site()
    for name in ("a:2", "a:3"):
        await site.fleet.control.make(Change(change_worker(name, patch), "an operator"))
    site.running = {"a:4": 9}
    await site.hold(until_s=300)
    assert site.drained == ["a:4"]
    await site.flips.end()
    await site.fleet.control.make(Change(change_worker("a:4", patch), "an operator"))
    await site.hold(since_s=315, until_s=2_000)
    assert site.drained == []


async def test_a_refused_change_is_logged_and_leaves_the_worker(caplog):
    site = Site()
    site.fleet.processes[0].breaks_at = 1
    await site.hold(until_s=300)
    assert (site.drained, site.flips.draining) == ([], False)
    assert "refused" in caplog.text
    await site.flips.step(plan(), 315.0)
    assert site.drained == ["a:3"]


async def test_a_refused_change_of_the_role_is_tried_again():
    site = await draining()
    site.running = {}
    process = site.fleet.processes[0]
    process.breaks_at = process.calls + 1
    await site.flips.step(None, 310.0)
    assert (site.drained, site.flips.draining) == (["a:3"], True)
    await site.flips.step(None, 311.0)
    assert (site.workers["a:3"].role, site.drained) == ("prefill", [])


async def test_a_gateway_that_stops_lets_the_worker_take_requests_again():
    site = await draining()
    await site.flips.end()
    assert (site.drained, site.counts) == ([], {"given_up": 1})
    await site.flips.end()
    assert len(site.planned) == 2


async def test_a_drain_that_a_dead_process_left_behind_is_ended():
    site = await draining()
    site.running = {}
    later = RoleFlips(ON, site.fleet.control, site.in_flight)
    await later.step(None, 1_000.0)
    assert site.drained == []
    assert "not finished" in site.planned[-1]


async def test_the_drain_of_an_operator_is_not_left_behind():
    site = await draining()
    make = site.fleet.control.make
    await make(Change(set_maintenance("a:3", False), "an operator"))
    await make(Change(set_maintenance("a:3", True), "an operator"))
    assert left_behind(site.fleet.control.history.revisions, site.fleet.control.state.settings) == []


@pytest.mark.parametrize(
    ("handover", "redis", "problems"),
    [
        (HandoverConfig(), RedisConfig(), 0),
        (ON, RedisConfig(), 0),
        (HandoverConfig(flip_roles="on"), RedisConfig(), 1),
        (HandoverConfig(flip_roles="advise"), RedisConfig(), 1),
        (ON, RedisConfig(url="redis://r"), 1),
        (HandoverConfig(connector="nixl_pull", flip_roles="advise"), RedisConfig(url="redis://r"), 0),
    ],
)
def test_flips_that_would_help_nobody_are_a_mistake_of_the_settings(handover, redis, problems):
    found = list(check(Config(handover=handover, redis=redis)))
    assert [place for place, _, _ in found] == [("handover", "flip_roles")] * problems


@pytest.mark.parametrize(
    ("connector", "mode", "problems"),
    [("nixl_pull", "on", 0), ("mooncake", "on", 1), ("moriio_pull", "on", 1), ("mooncake", "advise", 0)],
)
def test_a_connector_whose_workers_start_for_one_role_allows_advice_alone(connector, mode, problems):
    found = list(check_workers(Config(handover=HandoverConfig(connector=connector, flip_roles=mode))))
    assert [place for place, _, _ in found] == [("handover", "flip_roles")] * problems
