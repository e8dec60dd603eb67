import msgspec

from router.app import GatewayProcess
from router.config.model import Config, WorkerConfig
from router.control.change import Change
from router.control.state.edits import add_worker, remove_worker
from router.security.keys import KeyEntry, digest_of, new_key
from tests.support.metrics import counted


async def test_a_request_for_an_unknown_model_makes_the_watch_look_again(monkeypatch):
    system = GatewayProcess(Config())
    looked = []
    monkeypatch.setattr(system.watcher, "look_again", lambda: looked.append(True))
    for callback in system.fleet.on_unknown_model:
        callback("a-model-loaded-a-moment-ago")
    assert looked == [True]
    await system.aclose()


async def test_every_reading_is_in_the_catalogue():
    system = GatewayProcess(Config())
    page, content_type = await system.view.exposition()
    parts = ("queued_requests", "buffered_bytes", "identified_prompt_tokens", "state_problems", "build_info")
    assert all(b"warmroute_%s" % part.encode() in page for part in parts)
    assert content_type.startswith("text/plain")
    await system.aclose()


async def test_policy_errors_are_counted_and_logged_once(caplog):
    system = GatewayProcess(Config())
    failures = system.core.policies.default._failed, system.running._failed
    for failed, first in zip(failures, (True, False), strict=True):
        failed("mine", "it raised KeyError('x')", first)
    assert counted(system.registry, "policy_errors") == [("mine",)] * 2
    (record,) = caplog.records
    assert (record.levelname, record.policy, record.reason) == ("WARNING", "mine", "it raised KeyError('x')")
    await system.aclose()


async def test_a_worker_added_at_run_time_gets_its_key_with_requests_until_it_leaves():
    key = KeyEntry("alice", digest_of(new_key().encode())).line
    settings = {"host": "127.0.0.1", "port": 0, "admin_port": 0, "auth": {"api_keys": [key]}}
    system = GatewayProcess(msgspec.convert(settings, Config))
    await system.start()
    try:
        worker = WorkerConfig(url="https://127.0.0.1:9", api_key="the-key-of-the-worker")
        await system.control.make(Change(add_worker(worker), "a test"))
        keys = system.gateway._parts.worker_keys
        assert keys.line("127.0.0.1:9") == b"Authorization: Bearer the-key-of-the-worker"
        await system.control.make(Change(remove_worker("127.0.0.1:9"), "a test"))
        assert keys.line("127.0.0.1:9") == b""
    finally:
        await system.aclose()


async def test_policies_see_the_labels_of_configured_and_of_added_workers():
    workers = [{"url": "http://127.0.0.1:9", "labels": {"lane": "prefill"}}]
    settings = {"host": "127.0.0.1", "port": 0, "admin_port": 0, "workers": workers}
    system = GatewayProcess(msgspec.convert(settings, Config))
    await system.start()
    try:
        worker = WorkerConfig(url="http://127.0.0.1:10", labels={"lane": "decode"})
        await system.control.make(Change(add_worker(worker), "a test"))
        assert [one.labels for one in system.fleet.endpoints] == [{"lane": "prefill"}, {"lane": "decode"}]
    finally:
        await system.aclose()
