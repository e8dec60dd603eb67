"""A gateway under attack, an idle one beside it, and a witness that requests /livez from both without a pause.

`bench` runs one row: it attacks, measures the process, and compares the measures with `Bars`. The idle gateway shows
the delays that this machine causes without an attack, at the same moments and beside the same busy cores.
"""

import json
import os
import threading
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace

import httpx
import pytest
import yaml

from backends.simulated.settings import SHIPPED_MODEL, shipped_model_dir
from loadtest.fleet.memory_group import MemoryGroup, NoMemoryGroup
from loadtest.fleet.ports import free_ports
from loadtest.fleet.process import Process, warmroute
from router.security.keys import KeyEntry, digest_of, new_key
from tests.support.witness import ProcessCost, Waits, Witness, core_wait_s

MB = 1_000_000
LOCAL, ASKED = "tokenized-here", "tokenized-by-worker"
SETTLE_S = float(os.environ.get("COST_SETTLE_S", "60"))
FIGURES = os.environ.get("COST_FIGURES")
"""A file that gets one JSON line per row."""
SLACK = float(os.environ.get("COST_SLACK", "2"))
"""Factor by which a wait may exceed its bar. Tests run on machines of any speed, and a stall is many times longer.
Figures for the docs are measured with 1.
"""
ATTEMPTS = 3


@dataclass(frozen=True)
class Bars:
    """Limits on the cost of a row. `peak_per_byte` is the memory above the base, for each byte of body in flight."""

    p99_s: float = 0.05
    """Bars on another client's wait for /livez, without the time in which other programs had the cores. The idle
    gateway's wait includes that time, because both gateways wait for cores at the same moments.
    """
    max_s: float = 0.25
    times_idle: float = 2.0
    peak_per_byte: float = 3.0
    spare_bytes: int = 8 * MB
    """Memory that any row may take in addition: threads, caches, fragments."""
    left_bytes: int = 100 * MB


@dataclass
class Row:
    name: str
    wall_s: float
    cpu_s: float
    core_wait_s: float
    base_bytes: int
    peak_bytes: int
    in_flight_bytes: int
    attacked: Waits
    idle: Waits
    sent: object = None
    settled_s: float = 0.0
    left_bytes: int = 0
    misses: list = field(default_factory=list)

    @property
    def per_byte(self):
        return (self.peak_bytes - self.base_bytes) / self.in_flight_bytes if self.in_flight_bytes else 0.0

    def __str__(self):
        sent = f"{dict(self.sent.statuses)} of {self.sent.bodies}" if hasattr(self.sent, "statuses") else self.sent
        return (
            f"{self.name}: CPU {self.cpu_s:.2f} s in {self.wall_s:.1f} s, RSS {self.base_bytes / MB:.0f} -> "
            f"{self.peak_bytes / MB:.0f} MB ({self.per_byte:.1f} x), {self.left_bytes / MB:+.0f} MB after "
            f"{self.settled_s:.1f} s; livez {_ms(self.attacked)}, idle gateway {_ms(self.idle)}, "
            f"waited {self.core_wait_s * 1e3:.0f} ms for a core; {sent}"
        )


def _ms(waits):
    own, raw = (waits.p99_s, waits.max_s), (waits.raw_p99_s, waits.raw_max_s)
    return " of ".join("/".join(f"{seconds * 1e3:.0f}" for seconds in pair) for pair in (own, raw)) + " ms"


class Bench:
    """The attacked gateway. `address` is its public port, `key` an API key of it, `start` starts its process."""

    def __init__(self, start, ports, witness, idle_address, workers, key=None):
        self._start, self.key = start, key
        self.address, self.admin_url = ports
        self._witness, self._idle, self._workers = witness, idle_address, workers
        self.process = None
        self.restart()

    def restart(self):
        """Start a new process, so that the measures do not include effects of an earlier row."""
        if self.process is not None:
            self.process.kill()
        self.process = self._start()
        until_ready(self.admin_url, self._workers)
        self.cost = ProcessCost(self.process.pid)
        self.base_bytes = self.cost.rss_bytes
        self._witness.serves(self.address, self.process.pid)
        self._witness.settle(time.monotonic() + 0.2)

    def row(self, name, attack, in_flight_bytes, bars=None):
        """Attack once. If only another client's wait missed its bar, attack again, and print the reason."""
        bars = bars or Bars()
        if not self.process.alive:
            self.restart()
        row = self._measure(name, attack, in_flight_bytes, bars)
        for _ in range(1, ATTEMPTS):
            if not row.misses or not all(miss.startswith("livez") for miss in row.misses):
                break
            print(f"attacking again, since {'; '.join(row.misses)}\n  {row}")
            self._witness.settle(time.monotonic() + 0.5)
            row = self._measure(name, attack, in_flight_bytes, bars)
        print(row)
        if row.left_bytes > bars.left_bytes or not self.process.alive:
            self.restart()
        assert not row.misses, f"{'; '.join(row.misses)}\n{row}"
        return row

    def _measure(self, name, attack, in_flight_bytes, bars):
        cost = self.cost
        cost.reset_peak()
        base, cpu_s, scheduled, begin_s = cost.rss_bytes, cost.cpu_s, cost.scheduled(), time.monotonic()
        sent = attack()
        self._witness.settle(time.monotonic())
        end_s = time.monotonic()
        row = Row(
            name,
            end_s - begin_s,
            cost.cpu_s - cpu_s,
            core_wait_s(scheduled, cost.scheduled()),
            base,
            cost.peak_rss_bytes,
            in_flight_bytes,
            self._witness.seen(self.address, begin_s, end_s),
            self._witness.seen(self._idle, begin_s, end_s),
            sent,
        )
        self._settle(row, bars)
        self._judge(row, bars)
        _write(row)
        return row

    def _settle(self, row, bars):
        """Wait, for at most a minute, until the memory is close to its value at the gateway's start."""
        begin_s = time.monotonic()
        while self.cost.rss_bytes > self.base_bytes + bars.left_bytes and time.monotonic() < begin_s + SETTLE_S:
            time.sleep(0.2)
        row.settled_s = time.monotonic() - begin_s
        row.left_bytes = self.cost.rss_bytes - self.base_bytes

    def _judge(self, row, bars):
        p99_s = max(SLACK * bars.p99_s, bars.times_idle * row.idle.raw_p99_s)
        max_s = max(SLACK * bars.max_s, bars.times_idle * row.idle.raw_max_s)
        peak = bars.peak_per_byte * row.in_flight_bytes + bars.spare_bytes
        checks = (
            (row.attacked.p99_s <= p99_s, f"livez p99 is over {p99_s * 1e3:.0f} ms"),
            (row.attacked.max_s <= max_s, f"livez max is over {max_s * 1e3:.0f} ms"),
            (row.peak_bytes - row.base_bytes <= peak, f"peak RSS is over base + {peak / MB:.0f} MB"),
            (row.left_bytes <= bars.left_bytes, f"more than {bars.left_bytes / MB:.0f} MB stayed"),
        )
        row.misses = [words for held, words in checks if not held]


def _write(row):
    if FIGURES:
        figures = asdict(replace(row, sent=None)) | {"per_byte": row.per_byte, "sent": str(row.sent)}
        figures |= {"statuses": dict(getattr(row.sent, "statuses", {}))}
        with open(FIGURES, "a", encoding="utf-8") as file:
            file.write(json.dumps(figures) + "\n")


class Others:
    """A client beside the attack: short chats, one after the other, in a thread. `failed` lists the chats without a
    200.
    """

    def __init__(self, address, key=None):
        self._url = f"http://{address}/v1/chat/completions"
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._stop = threading.Event()
        self.took_s, self.failed = [], []

    def __enter__(self):
        self._thread = threading.Thread(target=self._play)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def _play(self):
        with httpx.Client(timeout=30, headers=self._headers) as client:
            while not self._stop.wait(0.1):
                self._ask(client, len(self.took_s))

    def _ask(self, client, number):
        chat = [{"role": "user", "content": f"Question {number}: how are you?"}]
        began_s = time.monotonic()
        try:
            answer = client.post(self._url, json={"model": SHIPPED_MODEL, "max_tokens": 4, "messages": chat})
            if answer.status_code != 200:
                self.failed.append(f"{answer.status_code} {answer.text[:200]}")
        except httpx.HTTPError as error:
            self.failed.append(repr(error))
        self.took_s.append(time.monotonic() - began_s)


class Ground:
    """Start the processes that a bench needs, and stop all of them at the end."""

    model_dir = shipped_model_dir()

    def __init__(self, folder):
        self._folder = folder
        self.stack = ExitStack()
        self._number = 0

    def process(self, command, name):
        process = Process(command, name)
        self.stack.callback(process.stop)
        return process

    def sink(self, model, root=None, *flags):
        """Start a worker that answers at once; return its URL. With `root`, the gateway reads the tokenizer in that
        folder.
        """
        command = [*warmroute()[:2], "-m", "loadtest.soak.attack.sink", "--model", model, *flags]
        sink = self.process([*command, *(["--root", str(root)] if root else [])], model)
        return "http://" + sink.wait_for(r"sink (\S+)")[1]

    def worker(self):
        port = free_ports(1)
        command = warmroute("worker", "--port", str(port), "--time-scale", "0.2", "--no-kv-events")
        self.process(command, "worker").wait_for("worker http")
        return f"http://127.0.0.1:{port}"

    def gateway(self, workers, config=(), group=None):
        """Return a function that starts a gateway, its public address, and its admin URL. Settings not in `config` have
        their defaults.
        """
        port, self._number = free_ports(2), self._number + 1
        path = self._folder / f"gateway-{self._number}.yaml"
        ports = {"host": "127.0.0.1", "port": port, "admin_port": port + 1}
        path.write_text(yaml.safe_dump({**ports, "workers": [{"url": url} for url in workers], **dict(config)}))
        command = warmroute("serve", "--config", str(path))

        def start():
            process = self.process(group.command(command) if group else command, "gateway")
            process.wait_for("admin port listening")
            return process

        return start, (f"127.0.0.1:{port}", f"http://127.0.0.1:{port + 1}")

    def bench(self, workers, config=(), key=None, group=None):
        """Start an attacked gateway, an idle one, and their witness."""
        start_idle, (idle_address, idle_url) = self.gateway(workers)
        idle = start_idle()
        until_ready(idle_url, len(workers))
        start, ports = self.gateway(workers, config, group)
        witness = self.stack.enter_context(Witness(ports[0], idle_address))
        witness.serves(idle_address, idle.pid)
        return Bench(start, ports, witness, idle_address, len(workers), key)


def until_ready(admin_url, count):
    end_s = time.monotonic() + 60
    while time.monotonic() < end_s:
        workers = httpx.get(admin_url + "/admin/v1/workers", timeout=20).json()["workers"]
        if sum(worker["state"] == "ready" for worker in workers) == count:
            return
        time.sleep(0.1)
    raise AssertionError(f"the workers were not ready within 60 s: {workers}")


@pytest.fixture(scope="package")
def ground(tmp_path_factory):
    made = Ground(tmp_path_factory.mktemp("cost"))
    with made.stack:
        yield made


@pytest.fixture(scope="package")
def bench(ground):
    """A bench with API keys and three models: one with a local tokenizer, one whose worker tokenises, and one of an
    embedded worker.
    """
    key = new_key()
    config = {
        "auth": {"api_keys": [KeyEntry("attacker", digest_of(key.encode())).line]},
        "extra_paths": {"/v1/extra": ["POST"]},
        "cors_origins": ["*"],
    }
    workers = [ground.sink(LOCAL, shipped_model_dir()), ground.sink(ASKED), ground.worker()]
    return ground.bench(workers, config, key)


@pytest.fixture
def own_ground(tmp_path):
    made = Ground(tmp_path)
    with made.stack:
        yield made


@pytest.fixture
def memory_group():
    """Return a function that makes a memory cgroup of the given number of bytes. The test is skipped if that is
    impossible.
    """
    with ExitStack() as stack:

        def make(limit_bytes):
            try:
                return stack.enter_context(MemoryGroup(limit_bytes))
            except NoMemoryGroup as reason:
                pytest.skip(str(reason))

        yield make


@pytest.fixture
def others():
    """Return `Others`, a client that runs beside an attack."""
    return Others


@pytest.fixture
def bars():
    return Bars


@pytest.fixture
def models():
    """Return the model names: tokenised by the gateway, tokenised by its worker, and the embedded worker's."""
    return {"local": LOCAL, "asked": ASKED, "embedded": SHIPPED_MODEL}
