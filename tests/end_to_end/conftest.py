"""Real processes for whole-product tests: a fleet of embedded workers, gateways, and clients that never pause."""

import threading
import time
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from loadtest.fleet import embedded
from loadtest.fleet.embedded import URL
from loadtest.fleet.ports import free_ports
from loadtest.fleet.process import started, warmroute
from tests.support.waiting import block_until

HEADERS_ON = {
    "WARMROUTE_HEADERS__WORKER": "true",
    "WARMROUTE_HEADERS__PREDICTED_CACHED_TOKENS": "true",
}
ANY_PORT = ("--host", "127.0.0.1", "--port", "0", "--admin-port", "0")


def samples(url, name):
    """Return the sum of a metric's samples."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name)


@pytest.fixture
def processes():
    """Return a function that starts `warmroute` with these arguments and this environment, until the test's end."""
    with ExitStack() as stack:
        yield lambda *arguments, **environment: started(stack, warmroute(*arguments), arguments[0], environment)


class Gateway:
    """A gateway's process, and its two addresses once it listens."""

    def __init__(self, process):
        self.process = process
        self.url = process.wait_for(rf"public port.*{URL}")[1]
        self.admin = process.wait_for(rf"admin port.*{URL}")[1]

    def read(self, path, **options):
        return httpx.get(f"{self.admin}/admin/v1/{path}", **options).json()


class Clients:
    """Ask without a pause, each time on a new connection."""

    def __init__(self, site, count=4):
        self.site = site
        self.failures = []
        self.done = 0
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(count)]

    def _ask(self):
        while not self._over.is_set():
            try:
                answer = self.site.complete(httpx)
                assert answer.status_code == 200, answer.text
                self.done += 1
            except Exception as error:  # any error is a failed request
                self.failures.append(error)

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error):
        self._over.set()
        for thread in self._threads:
            thread.join()

    def until_more(self, count=20):
        wanted = self.done + count
        block_until(lambda: self.done >= wanted, 20)


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
        return samples(self.running.admin_url, name)

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

    def __init__(self, folder, processes):
        self.path = str(folder / "takeover.sock")
        self.uds = str(folder / "public.sock")
        self._start = processes
        port = free_ports(1)
        processes("worker", "--port", str(port), "--no-kv-events", "--default-max-tokens", "8").wait_for("worker http")
        self.worker = f"127.0.0.1:{port}"

    def gateway(self, *flags, worker=None):
        own = ("--takeover", self.path, "--worker", f"http://{worker or self.worker}")
        return self._start("serve", *ANY_PORT, *own, *flags)

    def serving(self, *flags):
        """Start a gateway and wait until it has taken over."""
        process = self.gateway(*flags)
        process.wait_for("admin port")
        return process

    def first(self, *flags):
        began_s = time.monotonic()
        gateway = Gateway(self.gateway(*flags))
        self.public, self.admin = gateway.url, gateway.admin
        block_until(lambda: httpx.get(f"{self.public}/readyz").status_code == 200, 20)
        self.start_s = time.monotonic() - began_s
        return gateway.process

    def lasting_tokens(self, starts=1):
        """Return the length of an answer that outlasts so many further starts, on a machine of any speed."""
        return 300 + int(2 * starts * self.start_s * TOKENS_PER_S)

    def complete(self, client, tokens=4):
        body = {"model": "warmroute-simulated", "prompt": "a b c", "max_tokens": tokens, "ignore_eos": True}
        return client.post(f"{self.public}/v1/completions", json=body)

    @contextmanager
    def stream(self, starts=1):
        """Yield the lines of a stream after its start. It outlasts so many starts of a gateway."""
        body = {"model": "warmroute-simulated", "prompt": "a b", "ignore_eos": True, "stream": True}
        body["max_tokens"] = self.lasting_tokens(starts)
        with httpx.stream("POST", f"{self.public}/v1/completions", json=body, timeout=30) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            yield lines

    def by_uds(self):
        return httpx.Client(transport=httpx.HTTPTransport(uds=self.uds), base_url="http://unix")


@pytest.fixture
def site(tmp_path, processes):
    return Site(tmp_path, processes)
