import asyncio
import logging
from dataclasses import replace

import httpx
import msgspec
import psutil
import pytest

from backends.simulated.serving import serving, start
from backends.simulated.settings import WorkerSettings
from backends.vllm.probe import learn
from policies.view import Residency
from router.config.model import Config, HandoverConfig, HealthConfig, KvEventsConfig, ResidencyConfig, WorkerConfig
from router.placement.fleet.fleet import WorkerState
from router.workers import selftest
from tests.support.waiting import eventually, iterations

FAST = WorkerSettings(time_scale=0.0)
HEALTH = HealthConfig(probe_interval_s=0.05, probe_timeout_s=1.0, failure_threshold=2)


@pytest.fixture
def system(watching):
    """`watching` with settings of residency."""

    def make(health=HEALTH, handover=None, **residency):
        handover = handover or HandoverConfig()
        return watching(Config(health=health, residency=ResidencyConfig(**residency), handover=handover))

    return make


def view(system, endpoint):
    return system.residency.slot(endpoint.candidates[0].slot).state()


def lines(caplog, event):
    return [record for record in caplog.records if record.message == event]


async def test_a_worker_becomes_ready_with_an_exact_view(wire, system, metrics, caplog):
    caplog.set_level(logging.INFO, "warmroute")
    async with serving(FAST) as worker:
        its = system()
        endpoint = its.follow(worker.url)
        assert endpoint.state is WorkerState.STARTING
        await eventually(lambda: metrics.verdicts)
        assert endpoint.state is WorkerState.READY
        assert metrics.verdicts == ["exact"], its.watcher.statistics()
        assert view(its, endpoint).residency is Residency.EXACT
        assert "locally" in its.identity.describe(FAST.model_name)
        await eventually(lambda: endpoint.candidates[0].load is not None)
        assert {("full", True), ("quick", True), ("load", True)} <= set(metrics.probes)
        assert len(lines(caplog, "worker found")) == 1 and len(lines(caplog, "worker state")) == 1
        verdict = its.watcher.statistics()["endpoints"][endpoint.id]["self_tests"][endpoint.id]
        assert verdict["verdict"] == "exact" and "reported" in verdict["reason"]


async def test_a_restarted_worker_gets_an_exact_view_again(wire, system, metrics, caplog):
    caplog.set_level(logging.INFO, "warmroute")
    its = system()
    first = await start(FAST)
    addresses = (first.bound.kv_events_endpoint, first.bound.kv_events_replay_endpoint)
    ports = [int(address.rsplit(":", 1)[1]) for address in addresses]
    endpoint = its.follow(first.url)
    await eventually(lambda: metrics.verdicts == ["exact"])
    await first.kill()
    await eventually(lambda: endpoint.state is WorkerState.UNHEALTHY)
    assert view(its, endpoint).residency is Residency.UNKNOWN
    settings = replace(FAST, port=first.bound.port, kv_events_port=ports[0], kv_events_replay_port=ports[1])
    async with serving(settings):
        await eventually(lambda: endpoint.state is WorkerState.HALF_OPEN)
        await eventually(lambda: len(metrics.verdicts) == 2)
        assert metrics.verdicts[1] == "exact", its.watcher.statistics()
        await eventually(lambda: view(its, endpoint).residency is Residency.EXACT)
        assert its.watcher.statistics()["endpoints"][endpoint.id]["restarts"] == 1
        assert len(lines(caplog, "worker restarted")) == 1
        assert endpoint.state is WorkerState.READY  # the self-test was as good as a trial


async def test_an_unnoticed_restart_clears_the_approximate_view(wire, system, metrics):
    its = system(health=msgspec.structs.replace(HEALTH, failure_threshold=1_000))
    settings = replace(FAST, kv_events=False)
    first = await start(settings)
    endpoint = its.follow(first.url)
    await eventually(lambda: metrics.verdicts == ["approximate"])
    prompt = wire.prompt_of(list(range(100)))
    slot = endpoint.candidates[0].slot
    its.residency.slot(slot).finished(prompt, 1, 0)
    assert its.residency.match(prompt, [slot])[slot].tokens == 96
    await first.kill()
    async with serving(replace(settings, port=first.bound.port)):
        await eventually(lambda: its.residency.match(prompt, [slot])[slot].tokens == 0)
        assert endpoint.state is WorkerState.READY


async def test_a_worker_that_is_down_is_logged_once_and_still_probed(wire, system, metrics, caplog):
    caplog.set_level(logging.INFO, "warmroute")
    its = system()
    first = await start(FAST)
    url, port = first.url, first.bound.port
    await first.stop()
    endpoint = its.follow(url)
    await eventually(lambda: metrics.probes.count(("full", False)) >= 5)
    assert endpoint.state is WorkerState.STARTING and "cannot connect" in endpoint.reason
    assert len(caplog.records) == 1
    async with serving(replace(FAST, port=port)):
        await eventually(lambda: endpoint.state is WorkerState.READY)


async def test_a_change_during_a_probe_is_found_by_another_one(wire, system, monkeypatch):
    """For one, an adapter that is loaded after the probe has read the models."""
    probes = []

    async def changed_meanwhile(*arguments, **settings):
        facts = await learn(*arguments, **settings)
        probes.append(facts)
        if len(probes) == 1:
            its.watcher.look_again_at(endpoint.id)
        return facts

    monkeypatch.setattr("router.workers.endpoint_watch.learn", changed_meanwhile)
    async with serving(FAST) as worker:
        its = system(self_test=False, kv_events=False)
        endpoint = its.follow(worker.url)
        await eventually(lambda: len(probes) == 2)


async def test_a_sleeping_worker_takes_no_traffic_until_it_wakes(wire, system):
    async with serving(replace(FAST, dev_mode=True)) as worker:
        its = system()
        endpoint = its.follow(worker.url)
        await eventually(lambda: endpoint.state is WorkerState.READY)
        async with httpx.AsyncClient() as client:
            await client.post(f"{worker.url}/sleep?level=1")
            await eventually(lambda: endpoint.state is WorkerState.ASLEEP)
            await client.post(f"{worker.url}/wake_up")
            await eventually(lambda: endpoint.state is WorkerState.READY)


@pytest.mark.parametrize(
    ("changes", "verdict", "words"),
    [
        ({"kv_events": False}, "approximate", "--kv-events-config"),
        ({"kv_events": False, "prompt_tokens_details": False}, "approximate", "--enable-prompt-tokens-details"),
        ({"prompt_tokens_details": False}, "exact", "counted by its metrics"),
        ({"kv_events": False, "prompt_tokens_details": False, "log_stats": False}, "approximate", "cannot be read"),
        ({"kv_events": False, "prompt_tokens_details": False, "openai_only": True}, "approximate", "cannot be read"),
    ],
)
async def test_a_worker_with_fewer_features_gets_a_weaker_verdict(wire, system, metrics, changes, verdict, words):
    async with serving(replace(FAST, **changes)) as worker:
        its = system()
        endpoint = its.follow(worker.url)
        await eventually(lambda: metrics.verdicts)
        report = its.watcher.statistics()["endpoints"][endpoint.id]["self_tests"][endpoint.id]
        assert (report["verdict"], metrics.verdicts) == (verdict, [verdict]) and words in report["reason"]


async def test_settings_switch_events_and_self_tests_off(wire, system, metrics):
    async with serving(FAST) as worker:
        its = system(self_test=False, kv_events=False)
        endpoint = its.follow(worker.url)
        await eventually(lambda: metrics.probes.count(("load", True)) >= 3)
        statistics = its.watcher.statistics()["endpoints"][endpoint.id]
        assert statistics["subscriptions"] == {} and metrics.verdicts == []
        assert view(its, endpoint).residency is Residency.APPROXIMATE


async def test_configured_event_addresses_are_used(wire, system, metrics):
    async with serving(FAST) as worker:
        its = system()
        events = KvEventsConfig(
            endpoint=worker.bound.kv_events_endpoint.replace("127.0.0.1", "*"),
            replay_endpoint=worker.bound.kv_events_replay_endpoint,
        )
        its.follow(worker.url, WorkerConfig(url=worker.url, kv_events=events))
        await eventually(lambda: metrics.verdicts == ["exact"])


async def test_forget_closes_sockets_and_drops_series(wire, system, metrics):
    async with serving(FAST) as worker:
        its = system()
        endpoint = its.follow(worker.url)
        await eventually(lambda: metrics.verdicts)
        metrics.event_replays.add(1.0, (endpoint.id, "empty"))
        metrics.event_replays.add(1.0, ("other:1", "filled"))
        its.watcher.forget(endpoint.id)
        its.fleet.remove(endpoint.id)
        its.watcher.forget(endpoint.id)
        assert metrics.replays == ["filled"]
        assert its.watcher.statistics()["endpoints"] == {}
        await its.watcher.aclose()
        assert not [task for task in asyncio.all_tasks() if "watch" in task.get_name()]


async def test_repeated_watches_leave_no_descriptor_open(wire, system, metrics):
    async with serving(FAST) as worker:
        its = system()
        for number in range(1, 13):
            endpoint = its.follow(worker.url)
            await eventually(lambda number=number: len(metrics.verdicts) == number)
            its.watcher.forget(endpoint.id)
            its.fleet.remove(endpoint.id)
            if number == 1:
                await eventually(lambda: not _connections(worker.bound.port))
                before = psutil.Process().num_fds()
        await eventually(lambda: not _connections(worker.bound.port))
        assert psutil.Process().num_fds() <= before + 1


def _connections(port):
    own = psutil.Process().net_connections("tcp")
    return [one for one in own if one.status == psutil.CONN_ESTABLISHED and one.raddr and one.raddr.port == port]


async def test_watching_an_unknown_endpoint_raises(system):
    with pytest.raises(KeyError):
        system().watcher.watch("127.0.0.1:1")


async def test_another_server_on_the_port_is_logged(wire, system):
    async with wire.answering(lambda request: httpx.Response(200, text="<html>")) as (_, at):
        endpoint = system().follow(at.url)
        await eventually(lambda: "HTML" in endpoint.reason)
        assert endpoint.state is WorkerState.STARTING


async def test_events_switched_off_are_named_as_the_reason(wire, system, metrics):
    async with serving(FAST) as worker:
        its = system(kv_events=False)
        endpoint = its.follow(worker.url)
        await eventually(lambda: metrics.verdicts == ["approximate"])
        assert view(its, endpoint).reason == "KV events are switched off by residency.kv_events"


async def test_events_that_do_not_arrive_are_named_as_the_reason(wire, system, metrics, monkeypatch):
    monkeypatch.setattr(selftest, "SETTLE_S", 0.3)
    async with serving(FAST) as worker:
        its = system()
        events = KvEventsConfig(endpoint="tcp://127.0.0.1:9")
        followed = its.follow(worker.url, WorkerConfig(url=worker.url, kv_events=events))
        await eventually(lambda: metrics.verdicts == ["approximate"])
        state = view(its, followed)
        assert state.reason == "KV events cannot be reached at tcp://127.0.0.1:9; its cache is modelled"
        assert state.residency is Residency.APPROXIMATE


async def test_look_again_finds_a_new_adapter_at_a_limited_rate(wire, watching, metrics):
    async with serving(replace(FAST, kv_events=False)) as worker:
        now_s = [100.0]
        its = watching(Config(health=HEALTH, residency=ResidencyConfig(self_test=False)), clock=lambda: now_s[0])
        endpoint = its.follow(worker.url)
        await eventually(lambda: endpoint.state is WorkerState.READY)
        full = metrics.probes.count(("full", True))
        now_s[0] += 1.0
        for _ in range(5):
            its.watcher.look_again()
        await eventually(lambda: metrics.probes.count(("full", True)) == full + 1)
        its.watcher.look_again()
        quick = metrics.probes.count(("quick", True))
        now_s[0] += HEALTH.probe_interval_s
        await eventually(lambda: metrics.probes.count(("quick", True)) > quick)
        assert metrics.probes.count(("full", True)) == full + 1


async def test_first_probes_of_many_workers_are_spread(watching, metrics):
    its = watching(Config(health=HEALTH, residency=ResidencyConfig(self_test=False)), clock=lambda: 100.0)
    its.watcher.spread_s = 100_000.0
    for port in range(1, 101):
        its.follow(f"http://127.0.0.1:{port}")
    await eventually(lambda: len(metrics.probes) == 1)
    its.watcher.look_again()  # a client asked for a model that nobody serves
    await iterations(100)
    assert len(metrics.probes) == 1, "the others come later"


class Undeveloped:
    """A worker without vLLM's development mode. It answers `status` to ``/server_info``, and counts the questions."""

    def __init__(self, status):
        self.status, self.started, self.asked = status, 1, 0

    def __call__(self, request):
        if request.url.path == "/server_info":
            self.asked += 1
            return httpx.Response(self.status)
        loads = f'vllm:num_requests_running{{engine="0"}} 0\nprocess_start_time_seconds {self.started}\n'
        answers = {"/version": '{"version":"0.33.0"}', "/v1/models": '{"data":[{"id":"m"}]}', "/metrics": loads}
        return httpx.Response(200, text=answers.get(request.url.path, "{}"))


async def test_a_worker_is_asked_once_for_its_connector_until_it_starts_again(wire, system, metrics):
    worker = Undeveloped(500)
    async with wire.answering(worker) as (_, at):
        its = system(handover=HandoverConfig(connector="nixl_pull"), self_test=False)
        endpoint = its.follow(at.url)

        async def look():
            full = metrics.probes.count(("full", True))
            its.watcher.look_again_at(endpoint.id)
            await eventually(lambda: metrics.probes.count(("full", True)) > full)

        await eventually(lambda: endpoint.state is WorkerState.READY)
        await look()
        assert worker.asked == metrics.probes.count(("full", True)) >= 2, "a failure is no answer"
        worker.status = 404
        await look()
        asked = worker.asked
        await look()
        assert worker.asked == asked
        assert endpoint.facts.connector is None
        worker.started += 1
        await eventually(lambda: worker.asked == asked + 1)


async def test_the_workers_api_key_is_sent_with_probes(wire, system):
    asked = []

    def worker(request):
        asked.append(request.headers.get("authorization"))
        return httpx.Response(200, text="{}")

    async with wire.answering(worker) as (_, at):
        config = WorkerConfig(url=at.url, api_key="s3cret")
        assert "s3cret" not in repr(config)
        system().follow(at.url, config)
        await eventually(lambda: len(asked) >= 2)
        assert set(asked) == {"Bearer s3cret"}
