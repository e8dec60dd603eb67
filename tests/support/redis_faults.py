"""Redis stops, comes back empty or fails over while clients send requests to two gateways.

The gateways find their workers in Redis alone, where each worker has a lease, so a fault that lost them would show.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import uvloop

from backends.discovery.registration import Registration, registration_key
from backends.simulated.settings import SHIPPED_MODEL
from loadtest.fleet.embedded import start_gateway, start_workers
from loadtest.fleet.process import StartError
from loadtest.load.seen import Seen
from loadtest.soak.traffic import Traffic
from router.config.model import RedisConfig
from router.replicas.connection import PREFIX, RedisClient, connect
from router.replicas.leases import ReplicaLeases
from router.sidecar.registration import Lease
from router.sidecar.registries import RedisRegistry
from tests.support.redis_server import RedisServer, Sentinels, redis_server

GATEWAYS = 2
WORKERS = 2
CLIENTS = 8
PAUSE_S = 3.0
"""How long Redis is stopped. A replica is alone after 1 s."""
AWAY_S = 1.5
"""How long Redis is dead before it comes back empty."""
BEFORE_S = 1.0
"""Load before each fault, and after the healing."""
_LIMIT_S = 60.0
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Gateway:
    """One gateway's addresses."""

    public_url: str
    admin_url: str

    def replicas(self) -> dict[str, Any]:
        """Return what it says about the replicas."""
        return dict(httpx.get(f"{self.admin_url}/admin/v1/replicas", timeout=5).json())

    def sharing(self, count: int) -> bool:
        """Whether Redis answers, and it hears all `count` gateways, itself included."""
        said = self.replicas()
        return not said["alone"] and sum(each["silent_s"] is not None for each in said["replicas"]) == count

    def ready(self, workers: int, residency: str) -> bool:
        """Whether all workers are ready, and their cache views of this kind."""
        listed = httpx.get(f"{self.admin_url}/admin/v1/workers", timeout=5).json()["workers"]
        views = [candidate["residency"] for worker in listed for candidate in worker["candidates"]]
        return (
            len(views) == workers
            and all(view == residency for view in views)
            and all(worker["state"] == "ready" for worker in listed)
        )


@contextmanager
def workers(count: int, flags: Sequence[str]) -> Iterator[list[str]]:
    """Run embedded workers, and yield their URLs."""
    with ExitStack() as stack:
        own = [["--port", "0", *flags, "--seed", str(number)] for number in range(count)]
        yield [url for url, _ in start_workers(stack, own)]


@contextmanager
def gateways(count: int, flags: Sequence[str]) -> Iterator[list[Gateway]]:
    """Run gateways with the same flags, and yield their addresses."""
    with ExitStack() as stack:
        yield [Gateway(*start_gateway(stack, flags)[1:]) for _ in range(count)]


@dataclass(frozen=True, slots=True)
class Healing:
    """One fault. Times count from the moment at which Redis could answer again; with Sentinel, from the master's death.

    `shared_s` passes until both gateways hear each other again, and `registered_s` until both gateways and all workers
    are registered. `alone` is the number of gateways that said that they were alone meanwhile.
    """

    fault: str
    requests: int
    failures: tuple[str, ...]
    alone: int
    shared_s: float
    registered_s: float


Fault = Callable[[], Awaitable[float]]
"""Breaks Redis, and returns the time on the loop's clock from which the healing counts."""


async def paused(server: RedisServer) -> float:
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(PAUSE_S)
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
    return asyncio.get_running_loop().time()


async def emptied(server: RedisServer) -> float:
    """Kill the server, and start it again without what it held."""
    await asyncio.to_thread(server.kill)
    await asyncio.sleep(AWAY_S)
    await asyncio.to_thread(server.restart)
    return asyncio.get_running_loop().time()


async def failed_over(found: Sentinels) -> float:
    """Kill the master. The sentinels need a second to notice, and then make the replica the master."""
    await asyncio.to_thread(found.master.kill)
    return asyncio.get_running_loop().time()


FAULTS = ("stopped for 3 s", "killed, back empty after 1.5 s", "failover by Sentinel")


def play(name: str) -> Healing:
    """Play one fault on a fresh fleet."""
    with _redis(name) as (url, fault), workers(WORKERS, ["--time-scale", "0.5"]) as urls:
        return uvloop.run(_play(name, url, urls, fault))


@contextmanager
def _redis(name: str) -> Iterator[tuple[str, Fault]]:
    with ExitStack() as stack:
        if name == FAULTS[2]:
            found = Sentinels(stack)
            yield found.url, lambda: failed_over(found)
            return
        server = stack.enter_context(redis_server())
        broken = paused if name == FAULTS[0] else emptied
        yield server.url, lambda: broken(server)


async def _play(name: str, url: str, urls: Sequence[str], fault: Fault) -> Healing:
    config = RedisConfig(url=url)
    flags = ["--set", f"redis.url={url}", "--set", 'discovery.sources={"leases": {"redis": {}}}']
    async with AsyncExitStack() as leases:
        for worker in urls:
            await leases.enter_async_context(_registered(config, worker))
        registry = await leases.enter_async_context(_registry(config, urls))
        processes = ExitStack()
        try:
            running = await asyncio.to_thread(processes.enter_context, gateways(GATEWAYS, flags))
            return await _under_load(name, running, registry, fault)
        finally:
            await asyncio.to_thread(processes.close)


@asynccontextmanager
async def _registered(config: RedisConfig, url: str) -> AsyncIterator[None]:
    """Keep a worker registered, as its sidecar would."""
    lease = Lease(RedisRegistry(config), lambda here: Registration(url=url))
    lease.start()
    try:
        yield
    finally:
        await lease.aclose()


class Registry:
    """The registrations in Redis that there should be."""

    def __init__(self, config: RedisConfig, client: RedisClient, urls: Sequence[str]) -> None:
        self._leases = ReplicaLeases(client, config)
        self._client = client
        ids = [Registration(url=url).worker_id for url in urls]
        self._workers = [registration_key(PREFIX, config.fleet, worker_id) for worker_id in ids]

    async def complete(self) -> bool:
        try:
            found = [bool(await self._client.exists(key)) for key in self._workers]
            return all(found) and len(await self._leases.all()) >= GATEWAYS
        except Exception:  # of the library or of the system: Redis does not answer
            return False


@asynccontextmanager
async def _registry(config: RedisConfig, urls: Sequence[str]) -> AsyncIterator[Registry]:
    client = connect(config)
    try:
        yield Registry(config, client, urls)
    finally:
        await client.aclose()


async def _under_load(name: str, running: Sequence[Gateway], registry: Registry, fault: Fault) -> Healing:
    watch = Watch(running)
    await watch.until(watch.serve, "both gateways have all workers, and hear each other")
    seen: list[Seen] = []
    load = [
        Traffic(gateway.public_url, SHIPPED_MODEL, seed, lambda one, manner: seen.append(one))
        for seed, gateway in enumerate(running)
    ]
    async with asyncio.TaskGroup() as tasks:
        for each in load:
            tasks.create_task(each.keep_busy(CLIENTS // GATEWAYS))
        await asyncio.sleep(BEFORE_S)
        healing = await _healed(watch, registry, fault)
        await asyncio.sleep(BEFORE_S)
        for each in load:
            assert await each.stop(_LIMIT_S) == 0
    await watch.until(watch.serve, "both gateways still have all workers")
    return Healing(name, len(seen), tuple(one.error for one in seen if one.error is not None), *healing)


async def _healed(watch: Watch, registry: Registry, fault: Fault) -> tuple[int, float, float]:
    """Break Redis; return how many gateways noticed, and the times to the healing of load and of registrations."""
    loop = asyncio.get_running_loop()
    noticing = asyncio.create_task(watch.until(watch.noticed, "each gateway says that it is alone"))
    began_s = await fault()
    await noticing

    async def took_s(condition: Callable[[], Awaitable[bool]], what: str) -> float:
        await watch.until(condition, what)
        return loop.time() - began_s

    shared_s, registered_s = await asyncio.gather(
        took_s(watch.sharing, "both gateways hear each other again"),
        took_s(registry.complete, "all gateways and workers are registered again"),
    )
    return len(watch.alone), shared_s, registered_s


class Watch:
    """The state of the gateways, by their admin ports. `alone` has those that said that they were alone."""

    def __init__(self, running: Sequence[Gateway]) -> None:
        self._running = running
        self.alone: set[str] = set()

    async def until(self, condition: Callable[[], Awaitable[bool]], what: str) -> None:
        """Wait for a condition.

        Raises:
            StartError: it did not hold within a minute.
        """
        loop = asyncio.get_running_loop()
        end_s = loop.time() + _LIMIT_S
        while not await condition():
            if loop.time() > end_s:
                raise StartError(f"not within {_LIMIT_S:g} s: {what}")
            await asyncio.sleep(_LOOK_S)

    async def sharing(self) -> bool:
        return all([await asyncio.to_thread(gateway.sharing, GATEWAYS) for gateway in self._running])

    async def serve(self) -> bool:
        """Whether all gateways hear all, and have all workers."""
        ready = [await asyncio.to_thread(gateway.ready, WORKERS, "exact") for gateway in self._running]
        return all(ready) and await self.sharing()

    async def noticed(self) -> bool:
        """Whether every gateway has said that it is alone."""
        for gateway in self._running:
            if (await asyncio.to_thread(gateway.replicas))["alone"]:
                self.alone.add(gateway.admin_url)
        return len(self.alone) == len(self._running)
