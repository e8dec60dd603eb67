"""The desired state on disk: replaced as a whole, and never overwritten when it cannot be read."""

import json
import os
import stat

import pytest
from msgspec.structs import replace

from router.config.model import Config
from router.config.problems import ConfigError
from router.control import state_file
from router.control.change import Change
from router.control.edits import add_worker, remove_worker, set_maintenance
from router.control.revisions import RevisionHistory, RevisionUnknownError
from router.control.start import Sources, initial, sources_of
from router.control.state_file import NotSavedError, StateFile
from tests.router.control.conftest import Fleet, worker


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "state"


@pytest.fixture
def stored(config):
    return initial(config).stored


def test_what_was_saved_is_read_again_by_the_next_process(folder, stored):
    first = StateFile(str(folder))
    assert first.load() is None
    first.save(stored)
    assert StateFile(str(folder)).load() == stored
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(first.path.stat().st_mode) == 0o600, "it has the workers' keys"
    assert os.listdir(folder) == ["state.json"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "not a state that this version can read: Input data was truncated"),
        (b'{"format": 1', "Input data was truncated"),
        (b'{"format": 2}', "Invalid enum value 2"),
        (b'{"format": 1, "state": {}}', "missing required field `version`"),
        (b"\xff", "not a state"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_and_stays(folder, text, said):
    folder.mkdir()
    (folder / "state.json").write_bytes(text)
    with pytest.raises(ConfigError) as raised:
        StateFile(str(folder)).load()
    (problem,) = raised.value.problems
    assert problem.place == str(folder / "state.json")
    assert said in problem.problem
    assert problem.fix == "restore the file from a backup, or move it away to start from the settings alone"
    assert (folder / "state.json").read_bytes() == text


def test_a_folder_that_cannot_be_used_is_named(tmp_path):
    with pytest.raises(ConfigError, match="does not exist; write a path in an existing folder"):
        StateFile(str(tmp_path / "no" / "state")).load()
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="file: File exists; write a folder"):
        StateFile(str(tmp_path / "file")).load()


def test_a_second_gateway_on_the_same_folder_overwrites_nothing(folder, stored):
    one, two = StateFile(str(folder)), StateFile(str(folder))
    assert (one.load(), two.load()) == (None, None)
    one.save(stored)
    with pytest.raises(NotSavedError, match="give each gateway its own state_dir"):
        two.save(stored)
    one.save(stored)
    two.owned()
    two.save(stored)


def test_a_write_that_fails_leaves_the_old_file(folder, stored, monkeypatch):
    one = StateFile(str(folder))
    one.load()
    one.save(stored)
    before = one.path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(state_file.os, "fsync", full)
    with pytest.raises(NotSavedError, match="No space left on device"):
        one.save(stored)
    assert one.path.read_bytes() == before
    assert os.listdir(folder) == ["state.json"]


async def test_changes_survive_a_restart_and_their_history_too(folder, config):
    sources = sources_of(Config(workers=config.workers, policy=config.policy, state_dir=str(folder)))
    fleet = Fleet(sources.loaded, store=sources.store)
    await fleet.control.opened()
    outcome = await fleet.control.make(Change(remove_worker("a:1"), "removed worker a:1", who="alice"))
    assert outcome.kept
    again = sources_of(sources.loaded)
    assert again.initial().stored.state == fleet.control.state
    assert again.kept.revisions == fleet.control.history.revisions


def test_a_kept_state_that_is_no_longer_valid_stops_the_start(folder, config, stored):
    store = StateFile(str(folder))
    store.load()
    added = add_worker(worker(3, labels={"lane": "fast"}))(stored.state.settings)
    kept = replace(stored, state=replace(stored.state, settings=added))
    with pytest.raises(ConfigError) as raised:
        Sources(config, lambda: config, store, kept).initial()
    assert str(raised.value).startswith(f"{folder}/state.json: workers[2].labels.lane: 'fast' is no lane")


async def test_the_history_is_bounded_and_reaches_back_to_every_revision(config):
    fleet = Fleet(Config(workers=config.workers, policy=config.policy, revisions_kept=5))
    for number in range(8):
        await fleet.control.make(Change(set_maintenance("a:1", number % 2 == 0), "a test"))
    history = fleet.control.history
    assert [one.number for one in history.revisions] == [5, 6, 7, 8, 9]
    drained = [history.settings_at(n, fleet.control.state).workers["a:1"].maintenance for n in range(5, 10)]
    assert drained == [False, True, False, True, False]
    for unknown in (4, 10):
        with pytest.raises(RevisionUnknownError, match=f"revision {unknown} is not kept; the history has 5 to 9"):
            history.settings_at(unknown, fleet.control.state)


def test_the_history_is_bounded_in_bytes(monkeypatch, fleet):
    (first,) = fleet.control.history.revisions
    size_bytes = RevisionHistory(9, [first]).statistics()["bytes"]
    monkeypatch.setattr("router.control.revisions.MOST_BYTES", 3 * size_bytes)
    assert RevisionHistory(9, [first] * 8).statistics() == {"revisions": 3, "bytes": 3 * size_bytes}


def test_the_file_can_be_read_by_people(folder, stored):
    store = StateFile(str(folder))
    store.load()
    store.save(stored)
    assert json.loads(store.path.read_text())["state"]["version"] == 1
    assert store.path.read_text().count("\n") > 10
