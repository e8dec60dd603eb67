import pytest

from backends.discovery.registration import Registration
from router.config.model import Config, DiscoverySourceConfig
from router.discovery.discovery import Discovery
from tests.router.control.conftest import Fleet
from tests.router.discovery.conftest import Rig
from tests.support.waiting import eventually


async def test_the_first_source_that_names_a_worker_counts(rig):
    async with rig.running():
        rig.second.names("a:1", "b:1", role="decode", labels={"from": "second"})
        await eventually(lambda: rig.workers.keys() == {"a:1", "b:1"})
        rig.first.names("a:1", labels={"from": "first"})
        await eventually(lambda: rig.workers["a:1"].labels == {"from": "first"})
        assert rig.fleet.control.origin_of("a:1") == ("first", ("second",))
        assert rig.fleet.control.origin_of("b:1") == ("second", ())
        rig.first.names()
        await eventually(lambda: rig.workers["a:1"].labels == {"from": "second"})
        assert not rig.workers["a:1"].maintenance, "another source still names it"


async def test_two_thousand_workers_are_one_change(rig):
    async with rig.running():
        rig.first.names(*(f"a:{port}" for port in range(1, 2_001)))
        await eventually(lambda: len(rig.workers) == 2_000)
        assert rig.fleet.control.state.discovery == 1


async def test_a_worker_that_goes_is_drained_until_it_has_no_request(rig):
    async with rig.running():
        rig.first.names("a:1", "b:1")
        await eventually(lambda: len(rig.workers) == 2)
        rig.requests = {"a:1": 1}
        rig.first.names("b:1")
        await eventually(lambda: rig.workers["a:1"].maintenance)
        assert not rig.workers["b:1"].maintenance
        rig.requests = None  # a process does not say
        state = rig.fleet.control.state
        assert state.discovered["a:1"].leaving
        rig.requests = {}
        await eventually(lambda: "a:1" not in rig.workers)


async def test_a_worker_that_goes_is_removed_after_the_longest_drain():
    rig = Rig(drain_s=0.05)
    async with rig.running():
        rig.first.names("a:1")
        await eventually(lambda: rig.workers)
        rig.requests = {"a:1": 1}
        rig.first.names()
        await eventually(lambda: rig.workers["a:1"].maintenance)
        await eventually(lambda: not rig.workers)


async def test_a_worker_that_returns_while_it_leaves_gets_requests_again(rig):
    async with rig.running():
        rig.first.names("a:1")
        await eventually(lambda: rig.workers)
        rig.requests = {"a:1": 1}
        rig.first.names()
        await eventually(lambda: rig.workers["a:1"].maintenance)
        rig.first.names("a:1")
        await eventually(lambda: not rig.workers["a:1"].maintenance)


async def test_a_source_that_fails_keeps_its_last_answer_and_says_so(rig):
    async with rig.running():
        rig.first.names("a:1")
        await eventually(lambda: rig.workers)
        rig.first.report.failed("the server is away")
        state = rig.discovery.statistics()["first"]
        assert (state["failing_since"] is not None, state["error"]) == (True, "the server is away")
        assert state["workers"] == 1
        rig.second.names("b:1")
        await eventually(lambda: rig.workers.keys() == {"a:1", "b:1"})


async def test_a_source_that_ends_with_an_error_is_run_again(rig):
    rig.first.breaks = 2
    async with rig.running():
        await eventually(lambda: rig.first.report is not None)
        assert rig.discovery.statistics()["first"]["error"] == "RuntimeError: the source is broken"
        rig.first.names("a:1")
        await eventually(lambda: rig.workers)


async def test_a_worker_that_cannot_be_used_is_left_out_and_named(rig):
    async with rig.running():
        wrong = Registration(url="http://a:1", labels={"lane": "fast"})
        right = Registration(url="http://b:1")
        rig.first.report.answer({"a:1": wrong, "b:1": right}, ["pod c: no port"])
        await eventually(lambda: rig.workers.keys() == {"b:1"})
        state = rig.discovery.statistics()["first"]
        assert state["refused"] == 2
        assert state["refused_first"][0] == "pod c: no port" and "'fast' is no lane" in state["refused_first"][1]


async def test_the_workers_of_a_source_have_its_defaults_and_its_key():
    source = DiscoverySourceConfig(file="/x", api_key="k", defaults={"label.zone": "a", "kv-events-port": "5557"})
    rig = Rig(sources={"first": source})
    async with rig.running():
        rig.first.names("a:1", model="llama", labels={"rack": "7"})
        await eventually(lambda: rig.workers)
        worker = rig.workers["a:1"]
        assert (worker.api_key, worker.labels) == ("k", {"zone": "a", "rack": "7", "model": "llama"})
        assert worker.kv_events.endpoint == "tcp://a:5557"


async def test_workers_of_an_earlier_process_stay_until_their_source_has_answered():
    before = Rig()
    async with before.running():
        before.first.names("a:1")
        before.second.names("b:1")
        await eventually(lambda: len(before.workers) == 2)
    stored = await before.fleet.control.yield_state()
    after = Rig()
    async with after.running():
        await after.fleet.control.take_over(stored)
        after.first.names("c:1")
        await eventually(lambda: after.workers.keys() == {"b:1", "c:1"})
        after.second.report.failed("the server is away")
        await eventually(lambda: after.discovery.statistics()["second"]["failing_since"])
        assert "b:1" in after.workers and not after.workers["b:1"].maintenance
        after.second.names()
        await eventually(lambda: after.workers.keys() == {"c:1"})


async def test_workers_of_an_earlier_process_do_not_stay_for_ever(monkeypatch):
    monkeypatch.setattr("router.discovery.discovery._FIRST_ANSWER_S", 0.05)
    before = Rig()
    async with before.running():
        before.first.names("a:1")
        await eventually(lambda: before.workers)
    after = Rig()
    async with after.running():
        await after.fleet.control.take_over(await before.fleet.control.yield_state())
        await eventually(lambda: not after.workers)


async def test_workers_of_a_source_that_the_settings_no_longer_have_leave():
    before = Rig()
    async with before.running():
        before.first.names("a:1")
        await eventually(lambda: before.workers)
    stored = await before.fleet.control.yield_state()
    fleet = Fleet(Config())
    alone = Discovery(Config(), fleet.control, before.in_flight, {})
    alone.start()
    await fleet.control.take_over(stored)
    await eventually(lambda: not fleet.processes[0].settings.workers)
    await alone.aclose()


async def test_a_registration_lasts_for_its_lease(rig):
    async with rig.running():
        registered = rig.discovery.registered
        registration = Registration(url="http://a:1")
        assert registered.register(registration, 0.1)
        assert not registered.register(registration, 0.1), "it was renewed"
        await eventually(lambda: rig.workers)
        assert rig.fleet.control.origin_of("a:1") == ("registered", ())
        await eventually(lambda: not rig.workers)


@pytest.mark.parametrize("breaks_at", [1, 2])
async def test_a_change_that_a_process_refuses_is_tried_again(rig, breaks_at):
    rig.fleet.processes[0].breaks_at = breaks_at
    async with rig.running():
        rig.first.names("a:1", "b:1")
        await eventually(lambda: len(rig.workers) == 2)
