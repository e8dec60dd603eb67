"""A real fleet: embedded workers and the gateway as processes, for whole-product tests."""

import time

import httpx
import pytest

from loadtest.demo import fleet
from loadtest.demo.run import wait_until_ready

HEADERS_ON = {
    "WARMROUTE_HEADERS__WORKER": "true",
    "WARMROUTE_HEADERS__PREDICTED_CACHED_TOKENS": "true",
}


class System:
    """A running fleet with what tests ask of it."""

    def __init__(self, running: fleet.Running, model: str) -> None:
        self.running = running
        self.model = model
        self.url = running.public_url
        self.admin = httpx.Client(base_url=running.admin_url, timeout=10)

    def workers(self) -> dict[str, dict]:
        listed = self.admin.get("/admin/v1/workers").json()["workers"]
        return {worker["id"]: worker for worker in listed}

    def metric(self, name: str) -> float:
        """Sum of all samples of one metric."""
        lines = self.admin.get("/metrics").text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name)

    def worker_metric(self, index: int, name: str) -> float:
        lines = httpx.get(f"{self.running.worker_urls[index]}/metrics").text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name)

    def wait_for(self, condition, limit_s: float = 20.0, what: str = "the condition"):
        end_s = time.monotonic() + limit_s
        while time.monotonic() < end_s:
            if value := condition():
                return value
            time.sleep(0.02)
        raise AssertionError(f"{what} did not come within {limit_s} s; workers: {self.workers()}")

    def wait_idle(self) -> None:
        """Until no request is booked anywhere and events have settled."""
        self.wait_for(lambda: not any(self.loads("running_requests")), what="idle")
        time.sleep(0.05)

    def loads(self, field: str) -> list[int]:
        """One figure of what is booked, per worker."""
        return [worker["candidates"][0]["load"][field] for worker in self.workers().values()]


@pytest.fixture
def start(monkeypatch):
    """A function that starts a fleet for the rest of the test."""
    for name, value in HEADERS_ON.items():
        monkeypatch.setenv(name, value)
    contexts = []

    def begin(workers=2, policy="marginal_cost", worker_flags=("--time-scale", "0.02"), serve_flags=()) -> System:
        context = fleet.running(workers, policy, worker_flags, serve_flags)
        running = context.__enter__()
        contexts.append(context)
        return System(running, wait_until_ready(running.admin_url, workers))

    yield begin
    for context in contexts:
        context.__exit__(None, None, None)
