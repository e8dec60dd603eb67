"""A rolling restart of workers, pickers and Envoys under load: no request fails."""

import threading
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from loadtest.fleet.embedded import start_picker, start_workers
from loadtest.fleet.envoy import start_envoy
from loadtest.fleet.ports import free_ports
from loadtest.fleet.process import until

ENVOY = Path(__file__).parents[2] / ".venv-envoy" / "bin" / "envoy"
WORKERS, CLIENTS = 4, 8
SEEN_S = 2.5
"""By then an Envoy has seen that a picker is about to stop, or is back: it asks each second."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not ENVOY.exists(), reason="Envoy is not installed: run `make envoy-env`"),
]


class Site:
    """Workers, two pickers and two Envoys on ports that stay, and the Envoys that clients use."""

    def __init__(self, stack):
        self.stack = stack
        first = free_ports(WORKERS + 4)
        self.worker_ports = range(first, first + WORKERS)
        self.picker_ports = (first + WORKERS, first + WORKERS + 1)
        self.envoy_ports = (first + WORKERS + 2, first + WORKERS + 3)
        self.worker_urls = [f"http://127.0.0.1:{port}" for port in self.worker_ports]
        self.workers = {port: self.worker(port) for port in self.worker_ports}
        self.pickers = {port: self.picker(port) for port in self.picker_ports}
        for port in self.picker_ports:
            self.is_ready(port)
        self.envoys = {port: self.envoy(port) for port in self.envoy_ports}
        self.in_service = list(self.envoy_ports)
        self.model = httpx.get(f"{self.worker_urls[0]}/v1/models").json()["data"][0]["id"]

    def worker(self, port):
        ((_, process),) = start_workers(self.stack, [["--host", "127.0.0.1", "--port", str(port)]])
        return process

    def picker(self, port):
        flags = [flag for url in self.worker_urls for flag in ("--worker", url)]
        process, _, admin = start_picker(
            self.stack,
            [*flags, "--grpc-port", str(port), "--set=timeouts.drain_delay_s=3", "--set=health.probe_interval_s=0.5"],
        )
        return process, admin

    def envoy(self, port):
        return start_envoy(self.stack, ENVOY, self.worker_urls, self.picker_ports, port=port)[0]

    def is_ready(self, port):
        admin = self.pickers[port][1]

        def ready():
            listed = httpx.get(f"{admin}/admin/v1/workers").json()["workers"]
            return [one["state"] for one in listed] == ["ready"] * WORKERS

        until(ready, lambda: f"not every worker is ready: {httpx.get(f'{admin}/admin/v1/workers').text}", 30.0)

    def restart_worker(self, port):
        for _, admin in self.pickers.values():
            httpx.post(f"{admin}/admin/v1/workers/127.0.0.1:{port}/drain").raise_for_status()
        until(lambda: idle(port), lambda: f"worker {port} has requests", 30.0)
        self.workers[port].stop()
        self.workers[port] = self.worker(port)
        for _, admin in self.pickers.values():
            httpx.post(f"{admin}/admin/v1/workers/127.0.0.1:{port}/undrain").raise_for_status()
        for one in self.picker_ports:
            self.is_ready(one)

    def restart_picker(self, port):
        process = self.pickers[port][0]
        process.terminate()
        process.wait(30.0)
        self.pickers[port] = self.picker(port)
        self.is_ready(port)
        time.sleep(SEEN_S)

    def restart_envoy(self, port, clients):
        self.in_service.remove(port)
        clients.until_more(CLIENTS * 4)
        self.envoys[port].stop()
        self.envoys[port] = self.envoy(port)
        time.sleep(SEEN_S)
        self.in_service.append(port)


def idle(port):
    page = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    return all(
        float(line.rsplit(" ", 1)[1]) == 0
        for line in page.splitlines()
        if line.startswith(("vllm:num_requests_running", "vllm:num_requests_waiting"))
    )


class Clients:
    """Ask without a pause, each time on a new connection to an Envoy in service."""

    def __init__(self, site):
        self.site, self.failures, self.done = site, [], 0
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(CLIENTS)]

    def _ask(self, number):
        turn = 0
        while not self._over.is_set():
            turn += 1
            port = self.site.in_service[(number + turn) % len(self.site.in_service)]
            said = [{"role": "user", "content": f"client {number} speaks of turn {turn}. " * 20}]
            try:
                answer = httpx.post(
                    f"http://127.0.0.1:{port}/v1/chat/completions",
                    json={"model": self.site.model, "messages": said, "max_tokens": 8},
                    timeout=30.0,
                )
                assert answer.status_code == 200, f"{answer.status_code}: {answer.text}"
                self.done += 1
            except Exception as error:  # any error is a failed request
                self.failures.append(error)

    def until_more(self, count=CLIENTS * 10):
        wanted = self.done + count
        until(lambda: self.done >= wanted, lambda: f"{self.done} of {wanted} answers: {self.failures[:3]}", 60.0)

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error):
        self._over.set()
        for thread in self._threads:
            thread.join()


@pytest.mark.timeout(240)
def test_no_request_fails_while_everything_is_restarted_in_turn():
    with ExitStack() as stack:
        site = Site(stack)
        with Clients(site) as clients:
            clients.until_more()
            for port in site.worker_ports:
                site.restart_worker(port)
            clients.until_more()
            for port in site.picker_ports:
                site.restart_picker(port)
            clients.until_more()
            for port in site.envoy_ports:
                site.restart_envoy(port, clients)
            clients.until_more()
        assert clients.failures == []
        assert clients.done > 200
