"""A real Prometheus that scrapes a gateway with embedded workers: the dashboards have data, an alert fires and ends."""

import json
import shutil
import threading
from itertools import count
from pathlib import Path

import httpx
import pytest
import yaml

from loadtest.fleet.process import Process, warmroute
from tests.support.monitoring import prometheus, queries
from tests.support.waiting import block_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is not installed"),
]
DEPLOY = Path(__file__).parents[2] / "deploy"
ROUTES = '[{"name":"chats","slo":{"ttft":5,"tpot":1},"max_requests":100}]'
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


class Traffic:
    """Streams of chats that share their beginning, one after the other, until `stop`; and requests for no model."""

    def __init__(self, system):
        self._system = system
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        headers = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
        with httpx.Client(base_url=self._system.url, timeout=30, headers=headers) as client:
            for number in count():
                if self._over.is_set():
                    return
                text = "Name three rivers of the north, and say where each begins. " * 20 + str(number % 7)
                body = {"model": self._system.model, "messages": [{"role": "user", "content": text}]}
                body |= {"max_tokens": 40, "stream": True, "stream_options": {"include_usage": True}}
                client.post("/v1/chat/completions", json=body)
                client.post("/v1/chat/completions", json=body | {"model": "nothing"})

    def stop(self):
        self._over.set()
        self._thread.join(60)


@pytest.fixture
def busy(start):
    """A fleet of three workers under load."""
    system = start(workers=3, serve_flags=("--set", f"routes={ROUTES}", "--set", "health.probe_interval_s=0.2"))
    traffic = Traffic(system)
    yield system
    traffic.stop()


def target(system):
    return system.running.admin_url.removeprefix("http://")


def test_every_panel_of_every_dashboard_has_data(busy, tmp_path):
    files = sorted((DEPLOY / "grafana").glob("*.json"))
    asked = {
        f"{file.stem}: {title}: {query}": query
        for file in files
        for title, query in queries(json.loads(file.read_text()))
    }
    with prometheus(target(busy), tmp_path) as running:

        def without_data():
            for name in [name for name, query in asked.items() if running.ask(query)]:
                del asked[name]
            return list(asked)

        try:
            block_until(lambda: not without_data(), 90)
        except AssertionError:
            pytest.fail(f"no data: {list(asked)}")
        for metric in ("route_prompt_tokens_total", "errors_total", "route_requests"):
            assert running.ask(f'warmroute_{metric}{{route="chats"}}'), metric
        exemplars = running.exemplars("warmroute_time_to_first_token_seconds_bucket")
        assert {exemplar["labels"]["trace_id"] for exemplar in exemplars} == {TRACE}


def test_an_alert_fires_when_a_worker_is_killed_and_ends_when_another_takes_its_address(busy, tmp_path):
    rules = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())
    kept = [rule for group in rules["groups"] for rule in group["rules"] if rule["alert"] == "WarmrouteWorkerUnhealthy"]
    kept[0]["for"] = "2s"
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "fleet", "rules": kept}]}))
    with prometheus(target(busy), tmp_path, file) as running:
        block_until(lambda: running.ask('warmroute_worker_state{state="ready"} == 1'), 30)
        assert running.alerts() == []
        busy.running.workers[0].kill()
        block_until(lambda: running.alerts() == [("WarmrouteWorkerUnhealthy", "firing")], 60)
        port = busy.running.worker_urls[0].rpartition(":")[2]
        again = Process(warmroute("worker", "--host", "127.0.0.1", "--port", port), "worker")
        try:
            block_until(lambda: running.alerts() == [], 60)
        finally:
            again.stop()
