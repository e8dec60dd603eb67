"""Scripted workers behind real sockets, a gateway over the real fleet and dispatcher, and a raw client."""

import asyncio
import json
import random
import sys
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec
import pytest
import uvloop

from backends.worker import RankCache, ServedModel, WorkerFacts, parse_endpoint
from policies.registry import build_policy
from router.config.model import Config
from router.gateway.server import Gateway
from router.placement.dispatcher import Dispatcher
from router.placement.fleet import Fleet
from router.residency.prompt import Prompt, PromptSource
from router.residency.residency_map import ResidencyMap

WAIT_S = 5.0


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(config, item):
    return {"uvloop": uvloop.new_event_loop}


# workers


@dataclass
class Seen:
    """One request as the worker got it."""

    head: bytes
    body: bytes
    connection: int
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def lines(self):
        return self.head[:-4].split(b"\r\n")

    def header(self, name):
        values = [line.partition(b":")[2].strip() for line in self.lines[1:] if line.lower().startswith(name + b":")]
        return values[0] if values else None


class Script:
    """What a worker does with one request; `await say(...)` writes, `gone` waits for the other side."""

    def __init__(self, reader, writer, seen):
        self.reader, self.writer, self.seen = reader, writer, seen

    async def say(self, *parts):
        for part in parts:
            self.writer.write(part)
        await self.writer.drain()

    async def die(self):
        self.writer.transport.abort()

    async def gone(self):
        with suppress(ConnectionError):
            while await self.reader.read(65536):
                pass
        self.seen.gone.set()


class FakeWorker:
    """Listens, records requests, and runs `script(Script)` for each; keep-alive as HTTP/1.1 says."""

    def __init__(self, script):
        self.script = script
        self.requests = []
        self.connections = 0
        self.arrived = asyncio.Event()

    async def start(self, port=0):
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.port = self.server.sockets[0].getsockname()[1]
        self.tasks = set()
        return self

    @property
    def id(self):
        return f"127.0.0.1:{self.port}"

    async def _serve(self, reader, writer):
        self.tasks.add(asyncio.current_task())
        self.connections += 1
        number = self.connections
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                seen = Seen(head, b"", number)
                length = seen.header(b"content-length")
                if length:
                    seen.body = await reader.readexactly(int(length))
                self.requests.append(seen)
                self.arrived.set()
                await self.script(Script(reader, writer, seen))
                if writer.is_closing():
                    break
        with suppress(Exception):
            writer.close()

    async def stop(self):
        self.server.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


END = b"0\r\n\r\n"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ndate: today\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"X-Odd-Case: Kept \r\ntransfer-encoding: chunked\r\n\r\n"
)
USAGE = {"prompt_tokens": 40, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 32}}


def event(text):
    return b"data: " + json.dumps({"choices": [{"delta": {"content": text}}], "usage": None}).encode() + b"\n\n"


def usage_event():
    return b"data: " + json.dumps({"choices": [], "usage": USAGE}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def json_head(length, status=b"200 OK"):
    return b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, length)


async def answer_json(script, status=b"200 OK", body=None):
    body = body if body is not None else json.dumps({"id": "x", "choices": [], "usage": USAGE}).encode()
    await script.say(json_head(len(body), status), body)


async def answer_stream(script):
    await script.say(STREAM_HEAD)
    for text in ("a", "b", "c"):
        await script.say(chunk(event(text)))
    await script.say(chunk(usage_event()), chunk(DONE), END)


# the gateway


class RecordingMetrics:
    """Keeps every call: (name, *arguments)."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        def record(*arguments):
            self.calls.append((name, *arguments))

        return record

    def named(self, name):
        return [call[1:] for call in self.calls if call[0] == name]


class StubIdentity:
    """A prompt of 40 tokens, at once or after `later` is set."""

    def __init__(self):
        self.later = None
        self.observed = []

    def prompt(self):
        return Prompt(40, PromptSource.IDS, lambda block: [hash((block, i)) & (2**64 - 1) for i in range(40 // block)])

    def charge_to(self, room):
        """Nothing is decoded here."""

    def identify_now(self, path, parsed, adapter):
        return None if self.later is not None else self.prompt()

    async def identify(self, path, parsed, adapter):
        await self.later.wait()
        return self.prompt()

    def observe_usage(self, model, prompt, prompt_tokens):
        self.observed.append((model, prompt_tokens))


class RecordingDispatcher(Dispatcher):
    """The real one, with every edge written down in `edges`."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.events = []
        self.requests = []

    def dispatch(self, request, now_s, *, may_hold=False, within=None):
        outcome = super().dispatch(request, now_s, may_hold=may_hold, within=within)
        self.events.append(type(outcome).__name__.lower())
        self.requests.append(request)
        return outcome

    def retry(self, ticket, phase, now_s, reason, retry_after_s=None, *, within=None):
        self.events.append(f"retry {phase.value}")
        self.last_reason = reason
        return super().retry(ticket, phase, now_s, reason, retry_after_s, within=within)

    def first_token(self, ticket, now_s):
        self.events.append("first_token")
        super().first_token(ticket, now_s)

    def progress(self, ticket, output_tokens, now_s):
        self.events.append(f"progress {output_tokens}")
        super().progress(ticket, output_tokens, now_s)

    def finished(self, ticket, usage, now_s, *, status=200):
        self.events.append(f"finished {status}")
        self.usage = usage
        super().finished(ticket, usage, now_s, status=status)

    def failed(self, ticket, phase, now_s, reason, retry_after_s=None):
        self.events.append(f"failed {phase.value}")
        super().failed(ticket, phase, now_s, reason, retry_after_s)

    def cancelled(self, ticket, now_s):
        self.events.append("cancelled")
        super().cancelled(ticket, now_s)


FACTS = WorkerFacts(version="0.33.0", models=(ServedModel("m"),), caches={0: RankCache(16, 1_000, True)})


class Rig:
    """One gateway, its fleet and what they recorded."""

    def __init__(self, config, loop, relearn=None):
        self.config = config
        self.loop = loop
        residency = ResidencyMap()
        self.fleet = Fleet(config.health, residency)
        self.dispatcher = RecordingDispatcher(
            self.fleet,
            residency,
            build_policy("round_robin", {}, random.Random(0)),
            policy_name="round_robin",
            retries=config.retries,
            max_requests_per_worker=config.limits.max_requests_per_worker,
        )
        self.identity = StubIdentity()
        self.metrics = RecordingMetrics()
        self.gateway = Gateway(config, self.dispatcher, self.fleet, self.identity, self.metrics, relearn)
        self.writers = []

    def join(self, worker, facts=FACTS):
        endpoint = worker if isinstance(worker, str) else f"http://{worker.id}"
        joined = self.fleet.add(parse_endpoint(endpoint), self.loop.time())
        if facts is not None:
            self.fleet.probe_succeeded(joined.id, facts, self.loop.time())
        return joined

    async def start(self):
        self.address = (await self.gateway.start())[0]
        return self

    async def connect(self, **options):
        if self.config.uds:
            reader, writer = await asyncio.open_unix_connection(self.config.uds)
        else:
            host, _, port = self.address.rpartition(":")
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), **options)
        self.writers.append(writer)
        return Client(reader, writer)

    async def ask(self, raw):
        client = await self.connect()
        return await client.ask(raw)

    @property
    def idle(self):
        statistics = self.gateway.statistics()
        running = sum(lane["running_requests"] for lane in self.dispatcher.statistics()["workers"].values())
        return statistics["streams"] == 0 and running == 0


@dataclass
class Reply:
    status: int
    head: bytes
    body: bytes
    raw: bytes
    interim: list

    def header(self, name):
        for line in self.head[:-4].split(b"\r\n")[1:]:
            key, _, value = line.partition(b":")
            if key.lower() == name:
                return value.strip()
        return None

    @property
    def code(self):
        return msgspec.json.decode(self.body)["error"]["code"]


class Client:
    """Writes bytes, reads responses by their framing. `read` raises IncompleteReadError on truncation."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    async def ask(self, raw, **options):
        self.writer.write(raw)
        return await self.read(**options)

    async def read(self, bodiless=False):
        return await asyncio.wait_for(self._read(bodiless), WAIT_S)

    async def _read(self, bodiless):
        interim = []
        while True:
            head = await self.reader.readuntil(b"\r\n\r\n")
            status = int(head.split(b" ")[1])
            if status != 100:
                break
            interim.append(head)
        reply = Reply(status, head, b"", head, interim)
        coding, length = reply.header(b"transfer-encoding"), reply.header(b"content-length")
        if bodiless or status in (101, 204, 304):
            return reply
        if coding:
            await self._chunks(reply)
        elif length is not None:
            reply.body = await self.reader.readexactly(int(length))
            reply.raw += reply.body
        else:
            reply.body = await self.reader.read(-1)
            reply.raw += reply.body
        return reply

    async def _chunks(self, reply):
        while True:
            line = await self.reader.readuntil(b"\r\n")
            size = int(line.split(b";")[0], 16)
            if not size:
                while line != b"\r\n":
                    reply.raw += line
                    line = await self.reader.readuntil(b"\r\n")
                reply.raw += line
                return
            piece = await self.reader.readexactly(size + 2)
            assert piece.endswith(b"\r\n")
            reply.raw += line + piece
            reply.body += piece[:-2]

    async def closed(self):
        """Everything until the other side closes."""
        with suppress(ConnectionError):
            return await asyncio.wait_for(self.reader.read(-1), WAIT_S)
        return b""

    def leave(self):
        self.writer.transport.abort()


def post(path=b"/v1/chat/completions", body=b'{"model":"m","messages":[],"stream":true}', extra=b"", version=b"1.1"):
    return b"POST %s HTTP/%s\r\nHost: gw\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n%s" % (
        path,
        version,
        extra,
        len(body),
        body,
    )


def get(path=b"/health", extra=b"", method=b"GET"):
    return b"%s %s HTTP/1.1\r\nHost: gw\r\n%s\r\n" % (method, path, extra)


PLAIN = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'


async def eventually(condition, within_s=WAIT_S):
    """Wait until `condition()` holds; the gateway tells nobody when a socket has closed."""
    end_s = asyncio.get_running_loop().time() + within_s
    while not condition():
        assert asyncio.get_running_loop().time() < end_s, "did not happen in time"
        await asyncio.sleep(0.002)


@pytest.fixture
async def rig():
    """`await rig(script, script, ..., limits={...}, timeouts={...}, port=0, ...)`: workers joined, gateway up."""
    rigs, workers = [], []

    async def build(*scripts, host="127.0.0.1", facts=FACTS, relearn=None, **settings):
        settings = {"host": host, "port": 0, "timeouts": {"upstream_idle_s": 4.0}, **settings}
        config = msgspec.convert(settings, Config)
        built = Rig(config, asyncio.get_running_loop(), relearn)
        built.workers = []
        for script in scripts:
            worker = await FakeWorker(script).start()
            workers.append(worker)
            built.workers.append(worker)
            built.join(worker, facts)
        rigs.append(built)
        return await built.start()

    yield build
    for built in rigs:
        for writer in built.writers:
            writer.transport.abort()
        await built.gateway.aclose(0)
    for worker in workers:
        await worker.stop()


@pytest.fixture
def kit():
    """This module: builders of requests, responses and events for the tests."""
    return sys.modules[__name__]
