"""The queries of a Grafana dashboard as Prometheus gets them, and a Prometheus that scrapes one gateway."""

import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from loadtest.fleet.ports import free_ports
from tests.support.waiting import block_until

RATE_INTERVAL = "15s"
"""In place of Grafana's `$__rate_interval`."""


def queries(dashboard: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the title and each query of the panels, with values in place of variables."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            query: str = target["expr"].replace("$__rate_interval", RATE_INTERVAL)
            for variable in dashboard["templating"]["list"]:
                query = query.replace(f"${variable['name']}", variable.get("allValue", ".*"))
            assert "$" not in query, query
            yield panel["title"], query


class Prometheus:
    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=10)

    def ask(self, query: str) -> list[dict[str, Any]]:
        answer = self._client.get("/api/v1/query", params={"query": query})
        assert answer.is_success, f"{query}: {answer.text}"
        found: list[dict[str, Any]] = answer.json()["data"]["result"]
        return found

    def alerts(self) -> list[tuple[str, str]]:
        """Return name and state (pending or firing) of the active alerts."""
        active = self._client.get("/api/v1/alerts").json()["data"]["alerts"]
        return [(alert["labels"]["alertname"], alert["state"]) for alert in active]

    def exemplars(self, metric: str) -> list[dict[str, Any]]:
        now_s = time.time()
        span: dict[str, str | float] = {"query": metric, "start": now_s - 600, "end": now_s + 60}
        found = self._client.get("/api/v1/query_exemplars", params=span).json()["data"]
        return [exemplar for one in found for exemplar in one["exemplars"]]

    @property
    def ready(self) -> bool:
        try:
            return self._client.get("/-/ready").is_success
        except httpx.TransportError:
            return False


@contextmanager
def prometheus(target: str, folder: Path, rules: Path | None = None) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes the gateway's admin port at `target` (HOST:PORT) every second."""
    settings = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [] if rules is None else [str(rules)],
        "scrape_configs": [{"job_name": "warmroute", "static_configs": [{"targets": [target]}]}],
    }
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(settings))
    port = free_ports(1)
    command = ["prometheus", f"--config.file={file}", f"--storage.tsdb.path={folder / 'tsdb'}"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--enable-feature=exemplar-storage"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        running = Prometheus(f"http://127.0.0.1:{port}")
        block_until(lambda: running.ready, 60)
        yield running
    finally:
        process.terminate()
        process.wait(30)
