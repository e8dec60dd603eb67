import asyncio
import time
from contextlib import asynccontextmanager
from types import SimpleNamespace

import httpx
import msgspec
import pytest
import uvloop
import zmq

from backends.vllm.control import WorkerClient
from backends.worker import Endpoint, parse_endpoint
from policies.view import WorkerId
from router.metrics.registry import Registry
from router.placement.fleet.fleet import Fleet
from router.residency.chain import SEED, extend_chain, pack_tokens
from router.residency.prompt import Prompt, PromptSource
from router.residency.residency_map import ResidencyMap
from router.security.tls import WorkerTls
from router.tokenization.prompt_identifier import PromptIdentifier
from router.workers.event_pump import EventPump
from router.workers.watch_context import WatchContext, WatchMetrics
from router.workers.watcher import Watcher
from tests.support.metrics import counted

BLOCK = 4
END = b"\xff" * 8


def prompt_of(tokens):
    packed = pack_tokens(tokens)
    return Prompt(len(tokens), PromptSource.IDS, lambda block: extend_chain(SEED, packed, block))


def stored(tokens, first_hash, parent=None):
    blocks = len(tokens) // BLOCK
    return {
        "type": "BlockStored",
        "block_hashes": list(range(first_hash, first_hash + blocks)),
        "parent_block_hash": parent,
        "token_ids": tokens,
        "block_size": BLOCK,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
    }


class Publisher:
    """A vLLM rank's PUB and replay sockets, played by hand. `modern` chooses the replay shape of >= 0.26."""

    def __init__(self, context, port=0, replay_port=0, modern=True, buffer=True):
        self._loop = asyncio.get_running_loop()
        self.modern, self.buffer = modern, buffer
        self.mute = False
        self.asked = []
        self._pub, self.endpoint = self._bind(context, zmq.PUB, port)
        self._router, self.replay_endpoint = self._bind(context, zmq.ROUTER, replay_port)
        self._loop.add_reader(self._router.FD, self._serve)
        self._sent = []

    @staticmethod
    def _bind(context, kind, port):
        socket = context.socket(kind)
        socket.linger = 0
        socket.bind(f"tcp://127.0.0.1:{port or '*'}")
        return socket, socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def publish(self, *events, drop=False):
        seq = len(self._sent).to_bytes(8, "big")
        payload = msgspec.msgpack.encode([time.time(), list(events), 0])
        self._sent.append((seq, payload))
        if not drop:
            self._pub.send_multipart([b"kv", seq, payload])

    def send_raw(self, *frames):
        self._pub.send_multipart(frames)

    def _serve(self):
        while True:
            try:
                client, _empty, start = self._router.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            self.asked.append(int.from_bytes(start, "big"))
            if self.mute:
                continue
            head = [client, b""] if not self.modern else [client, b"", b"kv"]
            for seq, payload in self._sent if self.buffer else []:
                if seq >= start:
                    self._router.send_multipart([*head, seq, payload])
            self._router.send_multipart([client, b"", END, b""] if not self.modern else [client, b"", b"", END, b""])

    def close(self):
        if self._router.closed:
            return
        self._loop.remove_reader(self._router.FD)
        self._pub.close()
        self._router.close()


@asynccontextmanager
async def answering(worker):
    """A server on loopback whose answers `worker` makes of each `httpx.Request`; yields a client and its endpoint."""

    async def serve(reader, writer):
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                method, path, _ = head[0].split(" ")
                headers = dict(line.split(": ", 1) for line in head[1:] if line)
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                answer = worker(httpx.Request(method, f"http://worker{path}", headers=headers, content=body))
                content = await answer.aread()
                writer.write(
                    b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (answer.status_code, len(content)) + content
                )
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        async with WorkerClient() as client:
            yield client, Endpoint("http", "127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        server.close()


class CountedMetrics:
    def __init__(self):
        self.registry = Registry()
        self.event_replays = self.registry.counter("event_replays")

    @property
    def probes(self):
        return [(kind, outcome == "ok") for kind, outcome in counted(self.registry, "probes")]

    @property
    def late(self):
        return [verdict for (verdict,) in counted(self.registry, "late_probes")]

    @property
    def verdicts(self):
        return [verdict for (verdict,) in counted(self.registry, "self_tests")]

    @property
    def replays(self):
        return [outcome for _, outcome in counted(self.registry, "event_replays")]


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(config, item):
    """Use the product's loop: its descriptors behave differently from those of asyncio's own."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def wire():
    """The tools above, since a conftest cannot be imported."""
    return SimpleNamespace(prompt_of=prompt_of, stored=stored, Publisher=Publisher, answering=answering)


@pytest.fixture
async def watching(metrics):
    """Make a fleet, a residency map and a watcher over them; `follow(url)` adds a worker."""
    made = []

    def make(config, **options):
        residency, identity = ResidencyMap(), PromptIdentifier(config)
        fleet = Fleet(config.health, residency, kv_events=config.residency.kv_events)
        tls, counts = WorkerTls(config.worker_tls), WatchMetrics(metrics.registry)
        watcher = Watcher(WatchContext(fleet, residency, identity, config, counts, tls, **options))
        watcher.start()
        made.append((watcher, identity))

        def follow(url, worker=None):
            endpoint = fleet.add(parse_endpoint(url), 0.0)
            watcher.watch(endpoint.id, worker)
            return endpoint

        return SimpleNamespace(fleet=fleet, residency=residency, watcher=watcher, follow=follow, identity=identity)

    yield make
    for watcher, identity in made:
        await watcher.aclose()
        await identity.aclose()


@pytest.fixture
async def context():
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def metrics():
    return CountedMetrics()


@pytest.fixture
async def pump():
    return EventPump()


@pytest.fixture
def residency():
    residency = ResidencyMap()
    residency.add(0, WorkerId("w:1"), BLOCK, 1000, events=True)
    return residency
