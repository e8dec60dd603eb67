import shutil
from pathlib import Path

import msgspec
import pytest

from backends.simulated.settings import shipped_model_dir
from router.app import GatewayProcess
from router.config.model import Config, KvEventsConfig, ModelConfig, WorkerConfig
from router.config.problems import ConfigError
from router.control.change import Change
from router.control.state.edits import add_worker
from router.control.state.named_settings import MODELS

WORKER = {"url": "http://127.0.0.1:9", "labels": {"rack": "1"}, "maintenance": True}


@pytest.fixture
async def system():
    settings = {"host": "127.0.0.1", "port": 0, "admin_port": 0, "workers": [WORKER]}
    system = GatewayProcess(msgspec.convert(settings, Config))
    await system.start()
    yield system
    await system.aclose()


def changed(**settings):
    worker = msgspec.convert({**WORKER, **settings}, WorkerConfig)
    return lambda now: msgspec.structs.replace(now, workers={"127.0.0.1:9": worker})


async def make(system, edit):
    return await system.control.make(Change(edit, "a test"))


async def test_maintenance_of_the_settings_drains_from_the_start(system):
    assert system.fleet.get("127.0.0.1:9").state == "draining"
    await make(system, changed(maintenance=False))
    assert system.fleet.get("127.0.0.1:9").state == "starting"


async def test_labels_change_in_place(system):
    endpoint = system.fleet.get("127.0.0.1:9")
    await make(system, changed(labels={"rack": "2"}))
    assert system.fleet.get("127.0.0.1:9") is endpoint
    assert endpoint.labels == {"rack": "2"}


async def test_name_weight_and_role_change_in_place(system):
    endpoint = system.fleet.get("127.0.0.1:9")
    assert (endpoint.name, endpoint.weight, endpoint.role) == (None, 1.0, "mixed")
    before = system.fleet.candidate_sets.of(None)
    await make(system, changed(name="left", weight=0.5, role="prefill"))
    assert system.fleet.get("127.0.0.1:9") is endpoint
    assert (endpoint.name, endpoint.weight, endpoint.role) == ("left", 0.5, "prefill")
    assert system.fleet.candidate_sets.of(None) is not before, "the table's rows have the old weight"


async def test_a_new_key_or_event_address_watches_the_same_endpoint_again(system):
    endpoint, watch = system.fleet.get("127.0.0.1:9"), system.watcher._watches["127.0.0.1:9"]
    await make(system, changed(api_key="k", kv_events={"endpoint": "tcp://127.0.0.1:1"}))
    again = system.watcher._watches["127.0.0.1:9"]
    assert system.fleet.get("127.0.0.1:9") is endpoint
    assert again is not watch
    assert again._events.endpoint == "tcp://127.0.0.1:1"
    await make(system, changed(api_key="k"))
    assert system.watcher._watches["127.0.0.1:9"]._events is None


async def test_another_scheme_is_another_endpoint(system):
    endpoint = system.fleet.get("127.0.0.1:9")
    await make(system, changed(url="https://127.0.0.1:9"))
    assert system.fleet.get("127.0.0.1:9") is not endpoint
    assert system.fleet.get("127.0.0.1:9").endpoint.url == "https://127.0.0.1:9"


async def test_the_process_shows_the_settings_that_it_was_given(system):
    worker = WorkerConfig(url="http://127.0.0.1:10", kv_events=KvEventsConfig(endpoint="tcp://127.0.0.1:2"))
    outcome = await make(system, add_worker(worker))
    assert system.running.settings.workers == outcome.state.settings.workers
    system.fleet.undrain("127.0.0.1:9")
    assert not system.running.settings.workers["127.0.0.1:9"].maintenance
    await make(system, lambda now: now)
    assert system.fleet.get("127.0.0.1:9").draining, "a process that has become something else is corrected"


async def test_a_tokenizer_changes_in_place_and_its_workers_are_tested_again(system, tmp_path):
    folder = shutil.copytree(shipped_model_dir(), tmp_path / "model")
    tested = []
    system.watcher.test_again = lambda models: tested.append(set(models))
    wanted = {"m": ModelConfig(dir=str(folder), aliases=("chat",))}
    await make(system, MODELS.change("m", msgspec.to_builtins(wanted["m"])))
    assert system.running.settings.models == wanted
    assert system.identity.describe("m") == f"rendered locally from {folder}"
    assert system.gateway._parts.identifier.names.target("chat") == "m"
    assert tested == [{"m"}]
    await make(system, MODELS.remove("m"))
    assert system.identity.describe("m").startswith("text only")


async def test_a_broken_tokenizer_is_refused_and_the_old_one_stays(system, tmp_path):
    folder = Path(shutil.copytree(shipped_model_dir(), tmp_path / "model"))
    await make(system, MODELS.change("m", {"dir": str(folder)}))
    broken = Path(shutil.copytree(folder, tmp_path / "broken"))
    (broken / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError) as refused:
        await make(system, MODELS.change("m", {"dir": str(broken)}))
    assert (refused.value.problems[0].place, system.control.state.version) == ("models.m.dir", 2)
    assert system.identity.describe("m") == f"rendered locally from {folder}"
