import asyncio
from types import SimpleNamespace

import pytest

from router.config.model import Config, PolicyConfig
from router.config.problems import ConfigError
from router.control.change import Change, NotAppliedError, StaleTagError
from router.control.start import initial
from router.control.state.edits import add_worker, remove_worker, set_maintenance, set_policy
from router.control.state.named_settings import NameUnknownError
from router.control.state_file import NotSavedError
from tests.router.control.conftest import Fleet, worker


def change(edit, **how):
    return Change(edit, "a test", **how)


async def test_a_change_makes_a_version_and_a_revision(fleet):
    outcome = await fleet.control.make(change(set_maintenance("a:1", True), who="alice"))
    assert [str(one) for one in outcome.differences] == ["workers[a:1].maintenance: false -> true"]
    assert (outcome.state.version, outcome.kept) == (2, False)
    assert fleet.processes[0].settings.workers["a:1"].maintenance
    first, second = fleet.control.history.revisions
    assert (first.number, first.source, first.differences) == (1, "start", ())
    assert (second.number, second.source, second.who, second.what) == (2, "api", "alice", "a test")


async def test_a_change_that_changes_nothing_makes_no_version(fleet):
    outcome = await fleet.control.make(change(set_maintenance("a:1", False)))
    assert (outcome.differences, outcome.state.version, len(fleet.control.history.revisions)) == ((), 1, 1)


@pytest.mark.parametrize(
    ("edit", "error"),
    [
        (remove_worker("b:9"), NameUnknownError),
        (set_policy(PolicyConfig(rule="lpvl")), ConfigError),
        (add_worker(worker(3, labels={"lane": "fast"})), ConfigError),
    ],
)
async def test_a_change_that_is_not_valid_changes_nothing(fleet, edit, error):
    before = fleet.control.state
    with pytest.raises(error):
        await fleet.control.make(change(edit))
    assert fleet.control.state is before
    assert (fleet.processes[0].calls, len(fleet.control.history.revisions)) == (0, 1)


async def test_a_refused_state_is_not_recorded(fleet):
    fleet.processes[0].refuses = "random"
    with pytest.raises(NotAppliedError):
        await fleet.control.make(change(set_policy(PolicyConfig(rule="random"))))
    assert (fleet.control.state.version, fleet.agree()) == (1, True)


async def test_a_dry_run_returns_the_difference_and_changes_nothing(fleet):
    outcome = await fleet.control.make(change(remove_worker("a:1"), dry_run=True))
    assert [one.place for one in outcome.differences] == ["workers[a:1]"]
    assert (outcome.state.version, fleet.agree(), fleet.processes[0].calls) == (1, True, 0)
    with pytest.raises(ConfigError):
        await fleet.control.make(change(set_policy(PolicyConfig(rule="lpvl")), dry_run=True))


async def test_a_change_may_name_the_state_that_it_is_based_on(fleet):
    tag = fleet.control.state.tag
    await fleet.control.make(change(set_maintenance("a:1", True), if_match=tag))
    with pytest.raises(StaleTagError, match="the desired state is"):
        await fleet.control.make(change(set_maintenance("a:1", False), if_match=tag))
    await fleet.control.make(change(set_maintenance("a:2", True), if_match="*"))
    await fleet.control.make(change(remove_worker("a:2"), if_match=f'"x", {fleet.control.state.tag}'))


async def test_changes_are_made_one_after_another(fleet):
    added = [fleet.control.make(change(add_worker(worker(port)))) for port in range(10, 30)]
    outcomes = await asyncio.gather(*added)
    assert sorted(outcome.state.version for outcome in outcomes) == list(range(2, 22))
    assert fleet.agree()


async def test_a_change_is_finished_although_its_caller_left(config):
    fleet = Fleet(config)
    applied = asyncio.Event()

    async def slowly(state):
        await applied.wait()
        await fleet.apply(state)

    fleet.control._apply = slowly
    making = asyncio.create_task(fleet.control.make(change(remove_worker("a:1"))))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    making.cancel()
    applied.set()
    with pytest.raises(asyncio.CancelledError):
        await making
    async with fleet.control.lock:
        assert (fleet.control.state.version, fleet.agree()) == (2, True)


class FullDisk:
    def save(self, stored):
        raise NotSavedError("state.json: No space left on device")


async def test_a_change_that_cannot_be_saved_is_undone(config):
    fleet = Fleet(config, processes=2, store=FullDisk())
    before = fleet.control.state
    with pytest.raises(NotSavedError):
        await fleet.control.make(change(remove_worker("a:1")))
    assert fleet.control.state is before
    assert fleet.agree()
    assert fleet.processes[1].calls == 2
    assert fleet.control.saving.unsaved == "state.json: No space left on device"
    fleet.control.saving._store = SimpleNamespace(save=lambda stored: None)
    await fleet.control.make(change(remove_worker("a:1")))
    assert fleet.control.saving.unsaved is None


async def test_a_start_continues_from_what_was_kept(fleet, config, caplog):
    await fleet.control.make(change(remove_worker("a:1")))
    await fleet.control.make(change(add_worker(worker(3))))
    same = initial(config, fleet.control.stored)
    assert (same.stored.state, same.conflicts) == (fleet.control.state, ())
    changed = Config(workers=(worker(1, labels={"rack": "7"}), worker(2)), policy=config.policy)
    later = initial(changed, fleet.control.stored)
    assert list(later.stored.state.settings.workers) == ["a:1", "a:2", "a:3"]
    assert (later.stored.state.version, len(later.conflicts)) == (4, 1)
    assert later.stored.revisions[-1].source == "start"
    successor = Fleet(changed)
    await successor.control.take_over(fleet.control.stored)
    assert successor.control.state.settings == later.stored.state.settings
    assert successor.agree()
    assert "a change of the admin API was replaced" in caplog.text
