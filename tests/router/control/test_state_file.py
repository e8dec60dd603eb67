"""The desired state on disk: replaced as a whole, and never overwritten when it cannot be read."""

import json
import os
import stat

import msgspec
import pytest
from msgspec.structs import replace

from router.config.model import Config
from router.config.problems import ConfigError
from router.control import state_file
from router.control.change import Change
from router.control.start import Sources, initial, sources_of
from router.control.state.edits import add_worker, remove_worker, set_maintenance
from router.control.state.revisions import RevisionUnknownError, kept
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


def set_aside(folder):
    return sorted(folder.glob("state.unread-*.json"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "not a state that this version can read: Input data was truncated"),
        (b'{"format": 1', "Input data was truncated"),
        (b'{"format": 2}', "missing required field `state`"),
        (b'{"format": 0}', "Expected `int` >= 1"),
        (b'{"format": 1, "state": {}}', "missing required field `version`"),
        (b"[" * 100_000, "recursion"),
        (b"\xff", "not a state"),
        (b"null", "Expected `object`, got `null`"),
    ],
)
def test_a_damaged_file_is_set_aside_by_the_first_save(folder, stored, caplog, text, said):
    folder.mkdir()
    (folder / "state.json").write_bytes(text)
    store = StateFile(str(folder))
    assert store.load() is None
    assert (folder / "state.json").read_bytes() == text, "a check of the settings changes no file"
    store.save(stored)
    assert StateFile(str(folder)).load() == stored
    (aside,) = set_aside(folder)
    assert aside.read_bytes() == text
    (record,) = caplog.records
    assert (record.levelname, record.kept_as, said in record.reason) == ("ERROR", str(aside), True)
    assert store.set_aside == 1


def newer(stored):
    """The text of a file that a later version wrote, with members at several depths."""
    tree = json.loads(state_file.encode(stored))
    tree |= {"format": 2, "quotas": {}}
    tree["state"]["epoch"] = 7
    tree["state"]["settings"]["workers"]["a:1"]["colour"] = "red"
    tree["file"]["models"] = {"m": {"tokenizer_kind": "new"}}
    return json.dumps(tree).encode()


def test_members_of_another_version_are_ignored_and_the_file_is_kept(folder, stored, caplog):
    folder.mkdir()
    text = newer(stored)
    (folder / "state.json").write_bytes(text)
    store = StateFile(str(folder))
    read = store.load()
    assert read.state == stored.state
    assert list(read.file.models) == ["m"]
    store.save(stored)
    store.save(stored)
    (aside,) = set_aside(folder)
    assert aside.read_bytes() == text
    (record,) = caplog.records
    places = "format 2, quotas, state.epoch, state.settings.workers.a:1.colour, file.models.m.tokenizer_kind"
    assert record.reason == f"written by another version, and this one ignores {places}"
    assert record.levelname == "WARNING"


def test_few_files_that_were_set_aside_are_kept(folder, stored):
    for _ in range(state_file.SET_ASIDE_KEPT + 3):
        store = StateFile(str(folder))
        store.load()
        store.refuse("a test")
        (folder / "state.json").touch()
        store.owned()
        store.refuse("a test")
        store.save(stored)
    assert len(set_aside(folder)) == state_file.SET_ASIDE_KEPT


def test_a_file_that_is_too_large_is_not_read(folder, monkeypatch):
    monkeypatch.setattr(state_file, "MOST_BYTES", 10)
    folder.mkdir()
    (folder / "state.json").write_bytes(b" " * 11)
    assert StateFile(str(folder)).load() is None


def test_a_full_disk_leaves_the_damaged_file_where_it_is(folder, stored, monkeypatch):
    folder.mkdir()
    (folder / "state.json").write_bytes(b"damaged")
    store = StateFile(str(folder))
    store.load()
    with monkeypatch.context() as patched:
        patched.setattr(state_file.os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(NotSavedError):
            store.save(stored)
    assert os.listdir(folder) == ["state.json"]
    store.save(stored)
    assert len(set_aside(folder)) == 1


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


def test_a_kept_state_that_is_not_valid_is_set_aside_and_the_settings_count(folder, config, stored, caplog):
    store = StateFile(str(folder))
    store.load()
    added = add_worker(worker(3, labels={"lane": "fast"}))(stored.state.settings)
    kept = replace(stored, state=replace(stored.state, settings=added))
    store.save(kept)
    first = Sources(config, lambda: config, store, kept).initial()
    assert first.stored.state.settings == stored.state.settings
    store.save(first.stored)
    assert state_file.decode(set_aside(folder)[0].read_bytes()).stored == kept
    (record,) = caplog.records
    assert record.reason.startswith("not valid with these settings: workers[2].labels.lane: 'fast' is no lane")


async def test_the_history_is_bounded_and_reaches_back_to_every_revision(config, monkeypatch):
    monkeypatch.setattr("router.control.control.REVISIONS_KEPT", 5)
    fleet = Fleet(config)
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
    size_bytes = len(msgspec.json.encode(first))
    monkeypatch.setattr("router.control.state.revisions.MOST_BYTES", 3 * size_bytes)
    assert len(kept([first] * 8, 9)) == 3


def test_the_file_can_be_read_by_people(folder, stored):
    store = StateFile(str(folder))
    store.load()
    store.save(stored)
    assert json.loads(store.path.read_text())["state"]["version"] == 1
    assert store.path.read_text().count("\n") > 10
