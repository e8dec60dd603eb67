import asyncio
import os

import pytest
from msgspec.structs import replace

from router.config.model import (
    AuthConfig,
    Config,
    LimitsConfig,
    ModelConfig,
    PolicyConfig,
    RateLimitsConfig,
    TenantConfig,
    TimeoutsConfig,
)
from router.config.problems import ConfigError, Problem
from router.control.change import Change
from router.control.start import sources_of
from router.control.state.edits import add_worker, set_maintenance
from router.control.state.named_settings import TENANT_LIMITS
from router.control.state.pending import RESTART, RESTART_OR_TAKE_OVER, pending, pending_lines, remedy
from router.security.reload import FileWatch
from tests.router.control.conftest import Fleet, worker
from tests.support.waiting import eventually

WRONG = ConfigError([Problem("w.yaml:2:3", "unknown setting x", "remove it")])


async def test_a_reload_applies_what_the_file_changed(fleet, config):
    fleet.read = replace(config, workers=(worker(2), worker(3)), policy=PolicyConfig(rule="random"))
    found = await fleet.control.reload()
    assert list(fleet.control.state.settings.workers) == ["a:2", "a:3"]
    assert fleet.agree()
    assert (found.conflicts, found.pending, len(found.outcome.differences)) == ((), (), 3)
    assert fleet.control.history.revisions[-1].source == "reload"
    again = await fleet.control.reload()
    assert (again.outcome.differences, fleet.control.state.version) == ((), 2)


async def test_a_file_with_a_mistake_changes_nothing(fleet):
    fleet.read = WRONG
    before = fleet.control.state
    with pytest.raises(ConfigError):
        await fleet.control.reload()
    assert fleet.control.state is before
    assert fleet.processes[0].calls == 0


async def test_changes_of_the_api_stay_and_conflicts_are_named(fleet, config):
    await fleet.control.make(Change(add_worker(worker(3)), "a test"))
    await fleet.control.make(Change(set_maintenance("a:1", True), "a test"))
    await fleet.control.make(Change(set_maintenance("a:2", True), "a test"))
    fleet.read = replace(config, workers=(config.workers[0],))
    found = await fleet.control.reload()
    assert [str(one).split(":")[0] for one in found.conflicts] == ["workers[a"]
    assert {name: each.maintenance for name, each in fleet.control.state.settings.workers.items()} == {
        "a:1": True,
        "a:3": False,
    }
    fleet.read = config
    await fleet.control.reload()
    assert not fleet.control.state.settings.workers["a:2"].maintenance, "the file decides on it again"


async def test_a_dry_run_of_a_reload_changes_nothing(fleet, config):
    fleet.read = replace(config, workers=())
    change = Change(lambda now: now, "reloaded", "reload", dry_run=True)
    found = await fleet.control.reload(change)
    assert [one.place for one in found.outcome.differences] == ["workers[a:1]", "workers[a:2]"]
    assert (fleet.control.state.version, fleet.control.file.workers.keys()) == (1, {"a:1", "a:2"})
    await fleet.control.reload()
    assert fleet.control.state.settings.workers == {}


async def test_a_merge_that_is_not_valid_changes_nothing(fleet, config):
    await fleet.control.make(Change(add_worker(worker(3, labels={"lane": "prefill"})), "a test"))
    fleet.processes[0].refuses = "random"
    fleet.read = replace(config, policy=PolicyConfig(rule="random"))
    fleet.control.reloads.soon("a test")
    await asyncio.gather(*fleet.control.reloads.running)
    assert (fleet.control.state.version, fleet.control.file.policy.rule) == (2, "lpwl")


async def test_settings_that_cannot_change_live_are_named_with_what_to_do(fleet, config, caplog):
    fleet.read = replace(config, timeouts=TimeoutsConfig(drain_s=60.0), admin_token="k-5371", port=9000)
    found = await fleet.control.reload()
    assert [one.place for one in found.pending] == ["port", "admin_token", "timeouts.drain_s"]
    assert [remedy(one, 1) for one in found.pending] == [RESTART, RESTART_OR_TAKE_OVER, RESTART_OR_TAKE_OVER]
    assert remedy(found.pending[2], 2) == RESTART, "several processes cannot be taken over"
    lines = pending_lines(found.pending, 1)
    assert lines[2] == f"timeouts.drain_s: 30.0 -> 60.0; to apply it, {RESTART_OR_TAKE_OVER}"
    assert "5371" not in str(lines)
    assert fleet.control.state.version == 1
    fleet.control.reloads.soon("a test")
    await asyncio.gather(*fleet.control.reloads.running)
    assert "a changed setting does not take effect" in caplog.text


def test_equal_settings_have_nothing_pending():
    assert pending(Config(trusted_proxies=("10.0.0.0/8",)), Config(trusted_proxies=("10.0.0.0/8",))) == ()


async def test_a_reload_by_signal_logs_every_mistake(fleet, caplog):
    fleet.read = ConfigError([*WRONG.problems, Problem("w.yaml:3:1", "no", "yes")])
    fleet.control.reloads.soon("SIGHUP")
    await asyncio.gather(*fleet.control.reloads.running)
    logged = [record for record in caplog.records if record.message == "settings not reloaded, the old ones stay"]
    assert [record.reason for record in logged] == ["w.yaml:2:3: unknown setting x; remove it", "w.yaml:3:1: no; yes"]
    await fleet.control.yield_state()
    fleet.read = Config()
    fleet.control.reloads.soon("SIGHUP")
    await asyncio.gather(*fleet.control.reloads.running)
    assert caplog.records[-1].reason == "another process has taken over"


async def test_a_changed_file_is_noticed_once_it_is_settled(tmp_path):
    file, changes = tmp_path / "w.yaml", []
    file.write_text("port: 1\n")
    watch = FileWatch()
    watch.watch((str(file),), lambda: changes.append(file.read_text()))
    watch.look()
    file.write_text("port: 2\n")
    watch.look()
    assert changes == [], "it may still be written"
    watch.look()
    watch.look()
    assert changes == ["port: 2\n"]
    new = tmp_path / "new"
    new.write_text("port: 3\n")
    os.replace(new, file)
    watch.look()
    watch.look()
    assert changes == ["port: 2\n", "port: 3\n"]


async def test_a_watched_file_is_reloaded(config, tmp_path, monkeypatch):
    monkeypatch.setattr("router.security.reload.LOOK_S", 0.001)
    file = tmp_path / "w.yaml"
    file.write_text("a")
    fleet = Fleet(replace(config, watch=True), file=file)
    await fleet.control.opened()
    fleet.read = replace(config, watch=True, workers=())
    file.write_text("bb")
    await eventually(lambda: fleet.control.state.settings.workers == {})
    fleet.control.reloads.close()


def test_a_watch_needs_a_file(config):
    with pytest.raises(ConfigError, match="there is no settings file to watch; write --config FILE"):
        sources_of(replace(config, watch=True))


KEYED = AuthConfig(api_keys=("a sha256:" + "0" * 64,))


async def test_models_tenants_and_limits_apply_and_the_other_limits_are_pending():
    config = Config(auth=KEYED, tenants={"red": TenantConfig(keys=("a",))})
    fleet = Fleet(config)
    limited = {"red": RateLimitsConfig(requests_per_minute=60)}
    fleet.read = replace(
        config,
        models={"m": ModelConfig(aliases=("chat",))},
        limits=LimitsConfig(max_queued_requests=7, tenants=limited),
    )
    found = await fleet.control.reload()
    assert [str(one).split(":")[0] for one in found.outcome.differences] == ["models[m]", "limits.tenants[red]"]
    assert [one.place for one in found.pending] == ["limits.max_queued_requests"]
    assert fleet.agree()
    assert fleet.processes[0].settings.limits.tenants == limited


async def test_limits_that_the_api_and_the_file_changed_are_one_conflict():
    config = Config(limits=LimitsConfig(tenants={"default": RateLimitsConfig(requests_per_minute=60)}))
    fleet = Fleet(config)
    await fleet.control.make(Change(TENANT_LIMITS.change("default", {"tokens_per_minute": 9}), "a test"))
    new = {"default": RateLimitsConfig(requests_per_minute=6, burst_requests=9)}
    fleet.read = replace(config, limits=LimitsConfig(tenants=new))
    found = await fleet.control.reload()
    assert [one.path for one in found.conflicts] == [("limits", "tenants", "default")]
    assert fleet.control.state.settings.limits.tenants == new
