"""A gateway over the real fleet and core, with scripted workers behind it."""

import asyncio
import random
from collections.abc import Callable
from typing import Any, Self, cast

import msgspec

from backends.worker import RankCache, ServedModel, WorkerFacts, parse_endpoint
from policies.registry import build_policy
from policies.spec import PolicySpec
from router.config.model import Config
from router.gateway.assembly import GatewayContext
from router.gateway.layers.trace.layer import TraceSink
from router.gateway.server import PublicServer
from router.metrics.registry import Registry
from router.placement import core
from router.placement.core import DecisionCore
from router.placement.fleet.endpoints import FleetEndpoint
from router.placement.fleet.fleet import Fleet
from router.placement.request import FailurePoint, Request, Usage
from router.requests.layers.relearn.layer import Relearn
from router.requests.metrics import GatewayMetrics
from router.residency.prompt import Prompt, PromptSource
from router.residency.residency_map import ResidencyMap
from router.tokenization.body.known_bodies import KnownBodies
from router.tokenization.prompt_identifier import PendingPrompt, PromptIdentifier
from tests.support.answers import Answer
from tests.support.metrics import check_labels, counted
from tests.support.raw_client import Client, Reply
from tests.support.scripted_worker import ScriptedWorker, SocketWorker

FACTS = WorkerFacts(version="0.33.0", models=(ServedModel("m"),), caches={0: RankCache(16, 1_000, True)})
"""What a worker of model ``m`` reports."""


COMPILED = not str(core.__file__).endswith(".py")
"""Whether mypyc compiled the gateway. Its classes take no subclasses and no stand-ins, so the rigs then use the real
identity, and record no lifecycle events."""


class StubIdentity:
    """Identifies every prompt as `tokens` tokens, at once or after `later` is set."""

    def __init__(self) -> None:
        self.tokens = 40
        self.later: asyncio.Event | None = None
        self.observed: list[tuple[str | None, int]] = []
        self.bodies = KnownBodies(65_536)

    def prompt(self) -> Prompt:
        tokens = self.tokens
        hashes = lambda block: [hash((block, i)) & (2**64 - 1) for i in range(tokens // block)]  # noqa: E731
        return Prompt(tokens, PromptSource.IDS, hashes)

    def charge_to(self, memory: object) -> None:
        """Ignore the limit, because nothing is decoded here."""

    def identify_now(self, path: str, parsed: object, adapter: str | None) -> Prompt | PendingPrompt:
        return self.prompt() if self.later is None else self.identified_later

    async def identified_later(self) -> Prompt:
        assert self.later is not None
        await self.later.wait()
        return self.prompt()

    def observe_usage(self, model: str | None, prompt: Prompt, prompt_tokens: int) -> None:
        self.observed.append((model, prompt_tokens))


class Recorded:
    """The outcomes of placements and the lifecycle events of tickets, in order, while the real core works.

    `requests` are those that were dispatched, `usage` is that of the last complete answer, and `last_reason` that of
    the last retry.
    """

    def __init__(self, core: Any) -> None:
        self.events: list[str] = []
        self.requests: list[Request] = []
        self.usage: Usage | None = None
        self.last_reason: str | None = None
        if COMPILED:
            return
        dispatch, tickets = core.dispatcher.dispatch, core.tickets

        def dispatched(request: Request, now_s: float, **options: Any) -> object:
            outcome = dispatch(request, now_s, **options)
            self.events.append(type(outcome).__name__.lower())
            self.requests.append(request)
            return outcome

        core.dispatcher.dispatch = dispatched
        core.dispatcher.retry = self._noting(core.dispatcher.retry, self._retried)
        tickets.first_token = self._noting(tickets.first_token, lambda *_: "first_token")
        tickets.progress = self._noting(tickets.progress, lambda ticket, events, *_: f"progress {events}")
        tickets.finished = self._noting(tickets.finished, self._finished)
        tickets.failed = self._noting(tickets.failed, lambda ticket, point, *_: f"failed {point.value}")
        tickets.cancelled = self._noting(tickets.cancelled, lambda *_: "cancelled")

    def _noting(self, real: Callable[..., Any], event: Callable[..., str]) -> Callable[..., Any]:
        def noted(*args: Any, **options: Any) -> Any:
            self.events.append(event(*args, *options.values()))
            return real(*args, **options)

        return noted

    def _retried(self, ticket: object, point: FailurePoint, now_s: float, reason: str, *_: object) -> str:
        self.last_reason = reason
        return f"retry {point.value}"

    def _finished(self, ticket: object, usage: Usage, now_s: float, status: int = 200) -> str:
        self.usage = usage
        return f"finished {status}"


def build_identity(config: Config) -> StubIdentity:
    """Return the stand-in, or the real identity of a compiled gateway."""
    return cast("StubIdentity", PromptIdentifier(config)) if COMPILED else StubIdentity()


class Rig:
    """One gateway with its fleet, its scripted `workers`, its instruments, and the recorded lifecycle events."""

    def __init__(
        self,
        config: Config,
        loop: asyncio.AbstractEventLoop,
        relearn: Relearn | None = None,
        traces: TraceSink | None = None,
    ) -> None:
        self.config = config
        self.loop = loop
        self.registry = Registry()
        residency = ResidencyMap()
        self.fleet = Fleet(config.health, residency, connector=config.handover.connector)
        self.core = DecisionCore(
            self.fleet,
            residency,
            build_policy(PolicySpec("round_robin"), random.Random(0)),
            spec=PolicySpec("round_robin"),
            registry=self.registry,
            retries=config.retries,
            max_requests_per_worker=config.limits.max_requests_per_worker,
            handover=config.handover,
        )
        self.recorded = Recorded(self.core)
        self.identity = build_identity(config)
        identity = cast("PromptIdentifier", self.identity)
        metrics = GatewayMetrics(self.registry)
        context = GatewayContext(config, self.core, self.fleet, identity, metrics, relearn, traces=traces)
        self.gateway = PublicServer(context)
        self.workers: list[ScriptedWorker] = []
        self.address = ""
        self._writers: list[asyncio.StreamWriter] = []

    def counted(self, name: str) -> list[tuple[str, ...]]:
        """Return what a metric has counted, as `tests.support.metrics.counted` does."""
        return counted(self.registry, name)

    def join(self, worker: SocketWorker | str, facts: WorkerFacts | None = FACTS) -> FleetEndpoint:
        """Add a worker, or its URL, to the fleet. It is ready unless `facts` is None."""
        url = worker if isinstance(worker, str) else f"http://{worker.id}"
        joined = self.fleet.add(parse_endpoint(url), self.loop.time())
        if facts is not None:
            self.fleet.probe_succeeded(joined.id, facts, self.loop.time())
        return joined

    async def add(self, script: Answer, facts: WorkerFacts | None = FACTS) -> ScriptedWorker:
        """Start a worker and add it to the fleet. It stops with the gateway."""
        worker = await ScriptedWorker(script).start()
        self.workers.append(worker)
        self.join(worker, facts)
        return worker

    async def start(self) -> Self:
        self.address = (await self.gateway.start())[0]
        return self

    async def connect(self, **options: Any) -> Client:
        """Open a client's connection; `options` are those of `asyncio.open_connection`."""
        if self.config.uds:
            reader, writer = await asyncio.open_unix_connection(self.config.uds)
        else:
            host, _, port = self.address.rpartition(":")
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), **options)
        self._writers.append(writer)
        return Client(reader, writer)

    async def send(self, raw: bytes) -> Client:
        """Send one request on a connection of its own; return the connection."""
        client = await self.connect()
        client.writer.write(raw)
        return client

    async def ask(self, raw: bytes, on_head: Callable[[], object] | None = None) -> Reply:
        """Send one request on a connection of its own and read its response, as `Client.ask` does."""
        client = await self.connect()
        return await client.ask(raw, on_head=on_head)

    @property
    def idle(self) -> bool:
        """Whether the gateway has no request in progress and no worker has reserved load."""
        statistics = self.gateway.statistics()
        running = sum(load["running_requests"] for load in self.core.statistics()["workers"].values())
        return bool(statistics["streams"] == 0 and running == 0)

    async def aclose(self) -> None:
        """Abort the clients, then close the gateway and stop the workers."""
        for writer in self._writers:
            writer.transport.abort()
        await self.gateway.aclose(0)
        for worker in self.workers:
            await worker.stop()
        check_labels(self.registry)


class RigBuilder:
    """Builds gateways with workers, and closes all of them at the end of `async with`."""

    def __init__(self) -> None:
        self._built: list[Rig] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for rig in self._built:
            await rig.aclose()

    async def __call__(
        self,
        *scripts: Answer,
        facts: WorkerFacts | None = FACTS,
        relearn: Relearn | None = None,
        traces: TraceSink | None = None,
        **settings: Any,
    ) -> Rig:
        """Start one worker for each script, and a gateway with `settings`, on a free port unless they say otherwise."""
        defaults = {
            "host": "127.0.0.1",
            "port": 0,
            "timeouts": {"upstream_idle_s": 4.0},
            "observe_usage": 0.0,  # most tests compare the bytes that workers get
        }
        rig = Rig(msgspec.convert(defaults | settings, Config), asyncio.get_running_loop(), relearn, traces)
        self._built.append(rig)
        for script in scripts:
            await rig.add(script, facts)
        return await rig.start()
