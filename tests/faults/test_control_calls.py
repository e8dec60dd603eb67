"""Workers whose answers to control calls never end. Each call is bounded in memory, CPU time and time.

The worker runs in threads of the test's process and keeps at most one piece of the data that it sends.
"""

import asyncio
import json
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import psutil
import pytest

from backends.simulated.settings import shipped_model_dir
from backends.vllm.control import MAX_CALLS, ProbeError, WorkerClient
from backends.vllm.probe import probe, quick_probe, read_metrics
from backends.worker import Endpoint
from router.cli.checks import examine
from router.config.model import Config, ModelConfig
from router.residency.residency_map import ResidencyMap
from router.tokenization import remote_tokenizer
from router.tokenization.prompt_identifier import PromptIdentifier
from router.tokenization.remote_tokenizer import WorkerTokenizer
from router.workers import selftest, selftest_rendering
from router.workers.selftest import SelfTest, SelfTestTarget
from router.workers.selftest_rendering import compare_rendering
from tests.support.memory import peak_bytes, start_peak

pytestmark = [pytest.mark.slow, pytest.mark.measures]

LIMIT_S = 0.5
"""Time limit of each call."""
MOST_S = 2.5
MOST_CPU_S = 1.5
MOST_GROWTH_BYTES = 64 << 20
PIECE = 65_536


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"


@dataclass(frozen=True)
class Attack:
    """An answer that begins with `begin` and goes on with `piece` for ever."""

    begin: bytes
    piece: bytes = b""
    pause_s: float = 0.0

    def __call__(self, send: Callable[[bytes], None]) -> None:
        send(self.begin)
        while self.piece:
            send(self.piece)
            time.sleep(self.pause_s)


def gzip_bomb(send: Callable[[bytes], None]) -> None:
    packer = zlib.compressobj(9, wbits=31)
    body = b"".join([packer.compress(bytes(1 << 20)) for _ in range(256)]) + packer.flush()
    send(OK + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(body) + body)


JSON = b"7," * (PIECE // 2)
FIELDS = b"x-more: and more\r\n" * (PIECE // 18)
INTERIM = b"HTTP/1.1 102 Processing\r\n\r\n"
SLOW_S = LIMIT_S / 4
ATTACKS: dict[str, Callable[[Callable[[bytes], None]], None]] = {
    "endless_body": Attack(OK + b"\r\n", JSON),
    "endless_chunks": Attack(CHUNKED, b"10000\r\n" + JSON + b"\r\n"),
    "endless_tiny_chunks": Attack(CHUNKED, b"1\r\n7\r\n" * (PIECE // 6)),
    "huge_length": Attack(OK + b"content-length: 1000000000000\r\n\r\n", JSON),
    "slow_body": Attack(OK + b"content-length: 60000\r\n\r\n", b" ", SLOW_S),
    "endless_head": Attack(OK, FIELDS),
    "endless_header": Attack(OK + b"x-more: ", b"m" * PIECE),
    "slow_head": Attack(OK, b"x: y\r\n", SLOW_S),
    "endless_interim_answers": Attack(INTERIM, INTERIM * (PIECE // 27)),
    "slow_interim_answers": Attack(INTERIM, INTERIM, SLOW_S),
    "endless_trailers": Attack(CHUNKED + b"0\r\n", FIELDS),
    "gzip_bomb": gzip_bomb,
    "redirect_loop": Attack(b"HTTP/1.1 307 Temporary Redirect\r\nlocation: /tokenize\r\ncontent-length: 0\r\n\r\n"),
    "endless_error": Attack(b"HTTP/1.1 404 Not Found\r\n\r\n", JSON),
    "silence": lambda send: time.sleep(4 * LIMIT_S),
}

PAGES: dict[str, bytes] = {
    "/health": b"",
    "/version": b'{"version": "0.33.0"}',
    "/v1/models": b'{"data": [{"id": "m"}]}',
    "/metrics": b"vllm:num_requests_running 0\n",
    "/kv_event_sources": b"{}",
}


class Worker:
    """Answer `PAGES` as a worker should, but attack each request for `path`. `calls` counts these requests."""

    def __init__(self, path: str, attack: Callable) -> None:
        self.path, self.attack = path, attack
        self.calls = self.at_once = self.most_at_once = 0
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = Endpoint("http", "127.0.0.1", self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(10)
        with suppress(OSError, ValueError), connection, connection.makefile("rb") as reader:
            while line := reader.readline():
                length = 0
                while (field := reader.readline()) not in (b"\r\n", b""):
                    if field.lower().startswith(b"content-length:"):
                        length = int(field.split(b":")[1])
                reader.read(length)
                path = line.split()[1].decode()
                if path == self.path:
                    self._attack(connection)
                else:
                    page = PAGES[path]
                    connection.sendall(OK + b"content-length: %d\r\n\r\n" % len(page) + page)

    def _attack(self, connection: socket.socket) -> None:
        with self._lock:
            self.calls += 1
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            self.attack(connection.sendall)
        finally:
            with self._lock:
                self.at_once -= 1

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def worker_of() -> Iterator[Callable[..., Worker]]:
    made: list[Worker] = []

    def make(path: str, attack: Callable) -> Worker:
        made.append(Worker(path, attack))
        return made[-1]

    yield make
    for worker in made:
        worker.close()


async def health(client: WorkerClient, endpoint: Endpoint) -> None:
    await quick_probe(client, endpoint, timeout_s=LIMIT_S)


async def metrics(client: WorkerClient, endpoint: Endpoint) -> None:
    await read_metrics(client, endpoint, timeout_s=LIMIT_S)


async def everything(client: WorkerClient, endpoint: Endpoint) -> None:
    await probe(client, endpoint, timeout_s=LIMIT_S)


async def ids(client: WorkerClient, endpoint: Endpoint) -> None:
    tokenizer = WorkerTokenizer(1 << 20, time.monotonic)
    question = json.dumps({"model": "m", "prompt": "some words " * 1_000}).encode()
    assert await tokenizer.ask(1, [f"{endpoint.url}/tokenize"], question) is None
    await tokenizer.aclose()


async def rendering(client: WorkerClient, endpoint: Endpoint) -> None:
    identity = PromptIdentifier(Config(models={"m": ModelConfig(dir=str(shipped_model_dir()))}), environ={})
    found = await compare_rendering(client, identity, endpoint, "m", 16)
    assert found.why_not is not None
    await identity.aclose()


async def self_test(client: WorkerClient, endpoint: Endpoint) -> None:
    identity = PromptIdentifier(Config(), environ={})
    subject = SelfTestTarget(endpoint, 0, None, "m", 16, True, 4096, "no events")
    verdict = await SelfTest(client, ResidencyMap(), identity, subject).run()
    assert "no answer" in verdict.reason
    await identity.aclose()


async def check(client: WorkerClient, endpoint: Endpoint) -> None:
    facts = await probe(client, endpoint, timeout_s=LIMIT_S)
    assert await examine._found(client, endpoint, facts, 16) is None


CALLS = [
    ("/health", health), ("/metrics", metrics), ("/version", everything), ("/v1/models", everything),
    ("/kv_event_sources", everything), ("/tokenize", ids), ("/tokenize", rendering), ("/v1/completions", self_test),
    ("/v1/completions", check),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_tokenizer, "TIMEOUT_S", LIMIT_S)
    monkeypatch.setattr(selftest, "ANSWER_S", LIMIT_S)
    monkeypatch.setattr(selftest_rendering, "ANSWER_S", LIMIT_S)
    monkeypatch.setattr(examine, "_REQUEST_TIMEOUT_S", LIMIT_S)


def pairs():
    """Each attack on two calls and each call under three attacks in a run; at night all pairs."""
    for number, (name, attack) in enumerate(ATTACKS.items()):
        for other, (path, call) in enumerate(CALLS):
            marks = () if (number - other) % len(CALLS) in (0, 4) else pytest.mark.nightly
            yield pytest.param(path, call, attack, marks=marks, id=f"{path[1:]}-{call.__name__}-{name}")


@pytest.mark.parametrize(("path", "call", "attack"), list(pairs()))
async def test_no_answer_of_a_worker_costs_more_than_the_call_may(worker_of, path, call, attack):
    worker = worker_of(path, attack)
    async with WorkerClient() as client:
        before, cpu_s, started_s = start_peak(), time.thread_time(), time.monotonic()
        with suppress(ProbeError):
            await asyncio.wait_for(call(client, worker.endpoint), MOST_S)
        cpu_s, wall_s = time.thread_time() - cpu_s, time.monotonic() - started_s
        grown = peak_bytes() - before
    assert 1 <= worker.calls <= 4
    assert wall_s < MOST_S and cpu_s < MOST_CPU_S and grown < MOST_GROWTH_BYTES


async def test_calls_to_one_worker_at_a_time_are_limited_in_number(worker_of):
    def answers_late(send):
        time.sleep(0.02)
        send(OK + b"content-length: 0\r\n\r\n")

    worker = worker_of("/health", answers_late)
    async with WorkerClient() as client:
        await asyncio.gather(*(quick_probe(client, worker.endpoint, timeout_s=10) for _ in range(5 * MAX_CALLS)))
    assert worker.calls == 5 * MAX_CALLS and 1 < worker.most_at_once <= MAX_CALLS


ANSWER = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi."}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10},
    }
).encode()


@pytest.mark.parametrize(
    ("begin", "piece", "pause_s"),
    [
        (OK + b"\r\n", JSON, 0.0),
        (CHUNKED, b"10000\r\n" + JSON + b"\r\n", 0.0),
        (OK + b"content-length: 60000\r\n\r\n", b" ", 0.5),
        (b"", INTERIM * (PIECE // 27), 0.0),
    ],
    ids=["body", "chunks", "one byte a time", "interim answers"],
)
async def test_a_gateway_whose_worker_never_ends_tokenizing_serves_on(lab, scripted, joins, begin, piece, pause_s):
    async def answer(script):
        if script.seen.path == b"/tokenize":
            await script.say(begin)
            while True:
                await script.say(piece)
                await asyncio.sleep(pause_s)
        await script.say(OK + b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(ANSWER) + ANSWER)

    worker = await scripted(answer, model="hostile")
    process = psutil.Process(lab.fleet.gateway.pid)
    async with joins(lab, worker):
        before = process.memory_info().rss
        asks = [lab.ask(model="hostile", stream=False, text=f"{n} some words", tokens=1) for n in range(20)]
        started_s = time.monotonic()
        for ask in asyncio.as_completed(asks):
            seen = await ask
            assert seen.status == 200, seen
            assert process.memory_info().rss - before < MOST_GROWTH_BYTES
        assert time.monotonic() - started_s < 8.0
        assert worker.requests_to(b"/tokenize")
    await lab.at_rest()
