import pytest
from msgspec.structs import replace

from router.config.model import Config
from router.control.change import Change
from router.control.control import API, SETTINGS
from router.control.discovered import lasting
from router.control.state.desired_state import FoundWorker
from router.control.state.edits import add_worker, remove_worker, set_maintenance
from router.control.state_file import StateFile
from tests.router.control.conftest import Fleet, worker


def found(*ports, source="lab", **how):
    return {f"a:{port}": FoundWorker(worker=worker(port), source=source, **how) for port in ports}


def change(edit):
    return Change(edit, "a test")


async def test_discovered_workers_come_and_go_without_a_revision(fleet):
    await fleet.control.discover(found(3, 4))
    assert list(fleet.processes[0].settings.workers) == ["a:1", "a:2", "a:3", "a:4"]
    assert fleet.control.origin_of("a:3") == ("lab", ())
    await fleet.control.discover(found(4))
    assert (fleet.agree(), list(fleet.processes[0].settings.workers)) == (True, ["a:1", "a:2", "a:4"])
    assert (fleet.control.state.version, len(fleet.control.history.revisions)) == (1, 1)
    assert fleet.control.state.mark == "1.2", "the processes must follow all the same"


async def test_the_same_answer_again_changes_no_process(fleet):
    await fleet.control.discover(found(3))
    calls = fleet.processes[0].calls
    await fleet.control.discover(found(3))
    assert (fleet.processes[0].calls, fleet.control.state.discovery) == (calls, 1)


async def test_the_settings_come_before_a_source(fleet):
    await fleet.control.discover({"a:1": FoundWorker(worker=worker(1, labels={"zone": "b"}), source="lab")})
    assert fleet.processes[0].settings.workers["a:1"] == worker(1, labels={"lane": "decode"})
    assert fleet.control.origin_of("a:1") == (SETTINGS, ("lab",))


async def test_a_worker_that_the_settings_let_go_stays_with_its_source(fleet):
    await fleet.control.discover(found(2))
    fleet.read = Config(workers=(worker(1),))
    await fleet.control.reload()
    assert fleet.control.origin_of("a:2") == ("lab", ())
    await fleet.control.discover({})
    assert "a:2" not in fleet.processes[0].settings.workers


async def test_a_worker_of_the_settings_does_not_leave_with_its_source(fleet):
    await fleet.control.discover(found(1))
    await fleet.control.discover(found(1, leaving=True))
    assert not fleet.processes[0].settings.workers["a:1"].maintenance


async def test_a_worker_that_the_api_added_does_not_leave_with_a_source(fleet):
    await fleet.control.make(change(add_worker(worker(3, labels={"zone": "c"}))))
    await fleet.control.discover(found(3))
    assert fleet.processes[0].settings.workers["a:3"].labels == {"zone": "c"}
    assert fleet.control.origin_of("a:3") == (API, ("lab",))
    await fleet.control.discover({})
    assert "a:3" in fleet.processes[0].settings.workers


async def test_a_worker_that_the_api_lets_go_stays_with_its_source(fleet):
    await fleet.control.make(change(add_worker(worker(3, labels={"zone": "c"}))))
    await fleet.control.discover(found(3))
    await fleet.control.make(change(remove_worker("a:3")))
    assert fleet.processes[0].settings.workers["a:3"].labels == {}


async def test_the_api_removes_a_discovered_worker_while_a_source_names_it(fleet):
    await fleet.control.discover(found(3))
    await fleet.control.make(change(remove_worker("a:3")))
    await fleet.control.discover(found(3, 4))
    assert "a:3" not in fleet.processes[0].settings.workers
    await fleet.control.discover(found(4))
    await fleet.control.discover(found(3, 4))
    assert "a:3" in fleet.processes[0].settings.workers, "another worker has the address now"


async def test_a_drain_of_a_discovered_worker_stays_when_its_labels_change(fleet):
    await fleet.control.discover(found(3))
    await fleet.control.make(change(set_maintenance("a:3", True)))
    await fleet.control.discover({"a:3": FoundWorker(worker=worker(3, labels={"zone": "b"}), source="lab")})
    assert fleet.processes[0].settings.workers["a:3"] == worker(3, labels={"zone": "b"}, maintenance=True)


async def test_a_worker_that_leaves_is_drained_and_undrained_when_it_returns(fleet):
    await fleet.control.discover(found(3))
    await fleet.control.discover(found(3, leaving=True))
    assert fleet.processes[0].settings.workers["a:3"].maintenance
    await fleet.control.discover(found(3))
    assert not fleet.processes[0].settings.workers["a:3"].maintenance


async def test_a_drain_outlives_a_moment_in_which_the_worker_was_leaving(fleet):
    await fleet.control.discover(found(3))
    await fleet.control.make(change(set_maintenance("a:3", True)))
    await fleet.control.discover(found(3, leaving=True))
    await fleet.control.discover(found(3))
    assert fleet.processes[0].settings.workers["a:3"].maintenance


async def test_a_restore_does_not_bring_back_a_worker_that_has_left(fleet):
    await fleet.control.discover(found(3))
    await fleet.control.make(change(set_maintenance("a:3", True)))
    await fleet.control.discover({})
    settings = fleet.control.history.settings_at(1, fleet.control.state)
    assert list(settings.workers) == ["a:1", "a:2"]


async def test_a_process_that_refuses_leaves_the_answer_for_the_next_try(fleet):
    fleet.processes[0].breaks_at = 1
    with pytest.raises(Exception, match="broken"):
        await fleet.control.discover(found(3))
    assert "a:3" not in fleet.control.state.settings.workers
    await fleet.control.discover(found(3))
    assert "a:3" in fleet.processes[0].settings.workers


async def test_only_discovered_workers_that_the_api_changed_are_kept_on_disk(config, tmp_path):
    store = StateFile(str(tmp_path))
    store.load()
    fleet = Fleet(config, store=store)
    await fleet.control.opened()
    await fleet.control.discover(found(3, 4, 5))
    assert store.load().state.settings.workers.keys() == {"a:1", "a:2"}
    await fleet.control.make(change(set_maintenance("a:3", True)))
    await fleet.control.make(change(remove_worker("a:4")))
    kept = store.load()
    assert kept == lasting(fleet.control.stored)
    assert kept.state.settings.workers.keys() == {"a:1", "a:2", "a:3"}
    assert kept.state.discovered == found(3, 4)

    again = Fleet(config, kept=kept)
    await again.control.discover(found(3, 4, 5))
    assert again.control.state.settings.workers == {
        "a:1": worker(1, labels={"lane": "decode"}),
        "a:2": worker(2),
        "a:3": worker(3, maintenance=True),
        "a:5": worker(5),
    }


async def test_a_change_of_the_discovered_workers_alone_writes_nothing(config, tmp_path):
    store = StateFile(str(tmp_path))
    store.load()
    fleet = Fleet(config, store=store)
    await fleet.control.opened()
    before = store.path.stat()
    await fleet.control.discover(found(3))
    assert store.path.stat().st_mtime_ns == before.st_mtime_ns


async def test_a_successor_has_the_workers_before_its_own_sources_answer(config):
    first = Fleet(config)
    await first.control.discover(found(3))
    second = Fleet(config)
    await second.control.take_over(await first.control.yield_state())
    assert "a:3" in second.processes[0].settings.workers
    await first.control.discover(found(3, 4))
    assert "a:4" not in first.processes[0].settings.workers, "the other process decides"
    await first.control.resume(())
    assert "a:4" in first.processes[0].settings.workers


async def test_names_are_unique_over_all_workers(fleet):
    await fleet.control.make(change(add_worker(worker(8, name="gpu-8"))))
    twins = {f"a:{port}": FoundWorker(worker=worker(port, name=name), source="lab") for port, name in TWINS}
    await fleet.control.discover(twins)
    assert [fleet.processes[0].settings.workers[f"a:{port}"].name for port, _ in TWINS] == [None, "gpu-4", None, None]
    await fleet.control.make(change(set_maintenance("a:4", True)))
    await fleet.control.discover({**twins, "a:4": replace(twins["a:4"], leaving=True)})
    assert fleet.processes[0].settings.workers["a:5"].name == "gpu-4", "the name of a pod that was replaced"


TWINS = ((3, "gpu-8"), (4, "gpu-4"), (5, "gpu-4"), (6, None))
