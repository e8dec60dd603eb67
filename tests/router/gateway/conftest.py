"""A gateway over the real fleet and dispatcher, with scripted workers behind it."""

import asyncio
import random
import sys

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
from tests.support.answers import (
    DONE,
    END,
    STREAM_HEAD,
    USAGE,
    answer_json,
    answer_stream,
    chunk,
    event,
    json_head,
    usage_event,
)
from tests.support.raw_client import Client, get, post
from tests.support.scripted_worker import ScriptedWorker
from tests.support.waiting import eventually

__all__ = [
    "DONE",
    "END",
    "STREAM_HEAD",
    "USAGE",
    "answer_json",
    "answer_stream",
    "chunk",
    "event",
    "eventually",
    "get",
    "json_head",
    "post",
    "usage_event",
]


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(config, item):
    return {"uvloop": uvloop.new_event_loop}


# the gateway


class RecordingMetrics:
    """Records every call as (name, *arguments)."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        def record(*arguments):
            self.calls.append((name, *arguments))

        return record

    def named(self, name):
        return [call[1:] for call in self.calls if call[0] == name]


class StubIdentity:
    """Identifies every prompt as 40 tokens, at once or after `later` is set."""

    def __init__(self):
        self.later = None
        self.observed = []

    def prompt(self):
        return Prompt(40, PromptSource.IDS, lambda block: [hash((block, i)) & (2**64 - 1) for i in range(40 // block)])

    def charge_to(self, room):
        """Ignore the limit, because nothing is decoded here."""

    def identify_now(self, path, parsed, adapter):
        return None if self.later is not None else self.prompt()

    async def identify(self, path, parsed, adapter):
        await self.later.wait()
        return self.prompt()

    def observe_usage(self, model, prompt, prompt_tokens):
        self.observed.append((model, prompt_tokens))


class RecordingDispatcher(Dispatcher):
    """The real dispatcher. It records every lifecycle event in `events`."""

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

    def progress(self, ticket, output_tokens):
        self.events.append(f"progress {output_tokens}")
        super().progress(ticket, output_tokens)

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
    """One gateway, its fleet, and the recorded metrics and events."""

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


PLAIN = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'


@pytest.fixture
async def rig():
    """`await rig(script, script, ..., limits={...}, timeouts={...}, port=0, ...)` starts workers and a gateway."""
    rigs, workers = [], []

    async def build(*scripts, host="127.0.0.1", facts=FACTS, relearn=None, **settings):
        settings = {"host": host, "port": 0, "timeouts": {"upstream_idle_s": 4.0}, **settings}
        config = msgspec.convert(settings, Config)
        built = Rig(config, asyncio.get_running_loop(), relearn)
        built.workers = []
        for script in scripts:
            worker = await ScriptedWorker(script).start()
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
