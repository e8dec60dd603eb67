"""A real fleet: embedded workers and the gateway as processes, for whole-product tests."""

import time
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from loadtest.fleet import embedded
from loadtest.fleet.ports import free_ports
from loadtest.fleet.process import Process, warmroute

URL = r"(http://[^\s\"',]+)"

HEADERS_ON = {
    "WARMROUTE_HEADERS__WORKER": "true",
    "WARMROUTE_HEADERS__PREDICTED_CACHED_TOKENS": "true",
}


class System:
    def __init__(self, running: embedded.Running, model: str) -> None:
        self.running = running
        self.model = model
        self.url = running.public_url
        self.admin = httpx.Client(base_url=running.admin_url, timeout=10)

    def workers(self) -> dict[str, dict]:
        listed = self.admin.get("/admin/v1/workers").json()["workers"]
        return {worker["id"]: worker for worker in listed}

    def metric(self, name: str) -> float:
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
        """Wait until no request is reserved anywhere and all events have arrived."""
        self.wait_for(lambda: not any(self.loads("running_requests")), what="idle")
        time.sleep(0.05)

    def loads(self, field: str) -> list[int]:
        return [worker["candidates"][0]["load"][field] for worker in self.workers().values()]


@contextmanager
def starting():
    """Give a function that starts a fleet, which runs until the end of the ``with`` block."""
    with pytest.MonkeyPatch.context() as environment, ExitStack() as fleets:
        for name, value in HEADERS_ON.items():
            environment.setenv(name, value)

        def begin(workers=2, policy="marginal_cost", worker_flags=("--time-scale", "0.02"), serve_flags=()) -> System:
            running = fleets.enter_context(embedded.running(workers, policy, worker_flags, serve_flags))
            return System(running, running.wait_until_ready())

        yield begin


@pytest.fixture
def start():
    with starting() as begin:
        yield begin


@pytest.fixture(scope="module")
def start_shared():
    """Return a function that starts a fleet for the rest of the module's tests."""
    with starting() as begin:
        yield begin


TOKENS_PER_S = 150
"""What an embedded worker writes, by its default profile, to a client that is alone."""


class Site:
    """A worker, and gateways that share a takeover path. `start_s` is how long the first one took to start."""

    def __init__(self, folder):
        self.path = str(folder / "takeover.sock")
        self.started = []
        port = free_ports(1)
        worker = self.process("worker", "--port", str(port), "--no-kv-events", "--default-max-tokens", "8")
        worker.wait_for("worker http")
        self.worker = f"127.0.0.1:{port}"

    def process(self, *arguments):
        self.started.append(Process(warmroute(*arguments), arguments[0]))
        return self.started[-1]

    def gateway(self, *flags, worker=None):
        places = ["--host", "127.0.0.1", "--port", "0", "--admin-port", "0", "--takeover", self.path]
        return self.process("serve", *places, "--worker", f"http://{worker or self.worker}", *flags)

    def first(self, *flags):
        began_s = time.monotonic()
        gateway = self.gateway(*flags)
        self.public = gateway.wait_for(rf"public port.*{URL}")[1]
        self.admin = gateway.wait_for(rf"admin port.*{URL}")[1]
        self.until_ready()
        self.start_s = time.monotonic() - began_s
        return gateway

    def lasting_tokens(self, starts=1):
        """Return the length of an answer that outlasts so many further starts, on a machine of any speed."""
        return 300 + int(2 * starts * self.start_s * TOKENS_PER_S)

    def until_ready(self):
        end_s = time.monotonic() + 20
        while httpx.get(f"{self.public}/readyz").status_code != 200:
            assert time.monotonic() < end_s
            time.sleep(0.02)

    def complete(self, client, tokens=4):
        body = {"model": "warmroute-simulated", "prompt": "a b c", "max_tokens": tokens, "ignore_eos": True}
        return client.post(f"{self.public}/v1/completions", json=body)


@pytest.fixture
def site(tmp_path):
    site = Site(tmp_path)
    yield site
    for process in site.started:
        process.stop()
