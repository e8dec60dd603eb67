"""Run the sources of workers, and bring the desired state to what they say."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, cast

from msgspec.structs import replace

from backends.discovery.file import FileSource
from backends.discovery.redis import RedisClient, RedisSource
from backends.discovery.registered import RegisteredSource
from backends.discovery.report import Source, SourceReport
from router.config.model import Config, DiscoverySourceConfig, KubernetesSourceConfig, WorkerConfig
from router.control.control import Control
from router.control.state.desired_state import FoundWorker
from router.discovery.networks import Networks, networks_of
from router.discovery.settings import REGISTERED, kinds_of
from router.discovery.workers import FoundSettings
from router.metrics.instruments import Reading
from router.replicas.connection import PREFIX, connect

BATCH_S = 0.1
"""Answers that come within this time are one change of the desired state."""
LOOK_S = 0.5
"""Interval of the checks whether a worker that leaves has requests."""
_AGAIN_S = 1.0
"""Pause after a source or a change has failed."""
_LONGEST_PAUSE_S = 30.0
_FIRST_ANSWER_S = 600.0
"""After a takeover, how long workers stay whose source has not answered the new process."""

_REGISTRATIONS = (RedisSource.kind, RegisteredSource.kind)
"""Kinds of sources in which workers register themselves."""

log = logging.getLogger("warmroute.discovery")

InFlight = Callable[[], Awaitable[Mapping[str, int] | None]]
"""Return the requests at each worker, in all processes; None if a process did not say."""


class _Running:
    """One source with its last answer."""

    def __init__(
        self, source: Source, config: DiscoverySourceConfig, changed: Callable[[], None], networks: Networks
    ) -> None:
        self.source = source
        self.report = SourceReport(changed, time.time)
        self.settings = FoundSettings(config, networks if source.kind in _REGISTRATIONS else ())
        self._named: set[str] = set()

    def workers(self) -> dict[str, WorkerConfig]:
        """Return the settings of the workers of the last answer."""
        workers = self.settings.of(self.report.workers)
        self._named = set() if self.report.answered else self._named | workers.keys()
        return workers

    def may_name(self, worker_id: str) -> bool:
        """Return whether the source may still name a worker that an earlier process had from it."""
        return not self.report.answered and worker_id not in self._named


class _Leaving:
    """Workers that no source names any more: each is drained, and leaves once it has no request, or after `drain_s`."""

    def __init__(self, drain_s: float) -> None:
        self._drain_s = drain_s
        self._since_s: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._since_s)

    def among(
        self,
        named: Mapping[str, FoundWorker],
        before: Mapping[str, FoundWorker],
        idle: Callable[[str], bool],
        now_s: float,
    ) -> dict[str, FoundWorker]:
        """Return the workers of `before` that sources do not name now and that are still leaving.

        `idle` says whether a worker has no request. It is asked about workers that get no new ones.
        """
        found: dict[str, FoundWorker] = {}
        for name, one in before.items():
            if name in named:
                continue
            since_s = self._since_s.get(name, now_s)
            if not (one.leaving and (idle(name) or now_s - since_s >= self._drain_s)):
                found[name] = replace(one, leaving=True)
                self._since_s[name] = since_s
        self._since_s = {name: since_s for name, since_s in self._since_s.items() if name in found}
        return found


class Discovery:
    """The sources of workers of one gateway, in the order of precedence.

    A source that fails keeps its last answer. The workers that an earlier process had from a source stay until it has
    answered here, at most for `_FIRST_ANSWER_S`.
    """

    def __init__(
        self, config: Config, control: Control, in_flight: InFlight, sources: Mapping[str, Source] | None = None
    ) -> None:
        self._config = config.discovery
        self._control = control
        self._in_flight = in_flight
        self._woken = asyncio.Event()
        self.registered = RegisteredSource(time.monotonic)
        """Workers that register themselves at the admin API. The sources of the settings come before it."""
        self.registration_networks = networks_of(self._config.registration_networks)
        sources = {**(_sources_of(config) if sources is None else sources), REGISTERED: self.registered}
        configured = self._config.sources
        self._running = {
            name: _Running(
                source, configured.get(name, DiscoverySourceConfig()), self._woken.set, self.registration_networks
            )
            for name, source in sources.items()
        }
        self._leaving = _Leaving(self._config.drain_s)
        self._tasks: list[asyncio.Task[None]] = []
        self._started_s = 0.0
        self._waiting = False
        """Whether workers stay that no source has named so far."""

    def start(self) -> None:
        """Run the sources on the running loop."""
        self._started_s = asyncio.get_running_loop().time()
        self._woken.set()
        self._tasks = [
            asyncio.create_task(self._follow(name, one), name=f"discovery {name}")
            for name, one in self._running.items()
        ]
        self._tasks.append(asyncio.create_task(self._feed(), name="discovery"))

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    def statistics(self) -> dict[str, dict[str, Any]]:
        return {name: _statistics(one) for name, one in self._running.items()}

    def readings(self) -> Iterator[Reading]:
        for name, state in self.statistics().items():
            yield "warmroute_discovery_up", (name,), float(state["failing_since"] is None)

    async def _follow(self, name: str, one: _Running) -> None:
        """Run one source again whenever it ends. Log each reason once in a row."""
        logged, pause_s = "", _AGAIN_S
        while True:
            try:
                await one.source.run(one.report)
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                one.report.failed(reason)
                if reason != logged:
                    log.exception("source of workers ended", extra={"source": name})
                logged = reason
            await asyncio.sleep(pause_s)
            pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)

    async def _feed(self) -> None:
        applied: object = None
        while True:
            if (
                not await self._woken_within_look()
                and not self._unsettled
                and applied is self._control.state.discovered
            ):
                continue
            self._woken.clear()
            try:
                await self._control.discover(await self._found())
                applied = self._control.state.discovered
            except Exception as error:  # a process did not take the workers, or none serves
                log.error("discovered workers not applied", extra={"reason": str(error) or type(error).__name__})
                self._woken.set()
                await asyncio.sleep(_AGAIN_S)

    async def _woken_within_look(self) -> bool:
        """Return soon after an answer, or after `LOOK_S`; return whether there was an answer."""
        try:
            async with asyncio.timeout(LOOK_S):
                await self._woken.wait()
        except TimeoutError:
            return False
        await asyncio.sleep(BATCH_S)
        return True

    @property
    def _unsettled(self) -> bool:
        return bool(self._leaving) or self._waiting

    async def _found(self) -> dict[str, FoundWorker]:
        named = _merged({name: one.workers() for name, one in self._running.items()})
        before = self._control.state.discovered
        kept = {name: one for name, one in before.items() if name not in named and self._awaited(name, one)}
        self._waiting = bool(kept)
        in_flight = await self._in_flight() if any(one.leaving for one in before.values()) else {}
        leaving = self._leaving.among(
            {**named, **kept},
            before,
            lambda name: in_flight is not None and not in_flight.get(name, 0),
            asyncio.get_running_loop().time(),
        )
        return {**named, **kept, **leaving}

    def _awaited(self, worker_id: str, one: FoundWorker) -> bool:
        """Whether a source that named a worker to an earlier process has not answered here so far."""
        since_s = asyncio.get_running_loop().time() - self._started_s
        if one.leaving or since_s >= _FIRST_ANSWER_S:
            return False
        sources = [self._running[name] for name in (one.source, *one.also) if name in self._running]
        return any(source.may_name(worker_id) for source in sources)


def _merged(answers: Mapping[str, Mapping[str, WorkerConfig]]) -> dict[str, FoundWorker]:
    """Return every worker with the settings of the first source that names it, and the names of the others.

    `answers` has the workers by id of each source, in the order of precedence.
    """
    sources: dict[str, list[str]] = {}
    for source, workers in answers.items():
        for name in workers:
            sources.setdefault(name, []).append(source)
    return {
        name: FoundWorker(worker=answers[first][name], source=first, also=tuple(others))
        for name, (first, *others) in sources.items()
    }


def _statistics(one: _Running) -> dict[str, Any]:
    refused = [*one.report.refused, *one.settings.refused]
    return {"kind": one.source.kind, **one.report.statistics(), "refused": len(refused), "refused_first": refused[:3]}


def _sources_of(config: Config) -> dict[str, Source]:
    """Return the sources by name, in the order of the settings."""
    return {name: _source(source, config) for name, source in config.discovery.sources.items()}


def _source(config: DiscoverySourceConfig, settings: Config) -> Source:
    if config.file is not None:
        return FileSource(config.file)
    if config.dns is not None:
        from backends.discovery.dns import DnsSource  # late: only this source needs the library

        return DnsSource(config.dns.name, config.dns.port, config.dns.scheme, config.dns.nameservers)
    if config.kubernetes is not None:
        return _kubernetes(config.kubernetes)
    if config.redis is not None:
        redis = settings.redis
        return RedisSource(lambda: cast("RedisClient", connect(redis)), PREFIX, redis.fleet)
    raise ValueError(f"a source without a kind: {kinds_of(config)}")


def _kubernetes(config: KubernetesSourceConfig) -> Source:
    from backends.discovery.kubernetes.api import access_to  # late: only this source needs httpx here
    from backends.discovery.kubernetes.source import KubernetesSource, Wanted

    port = None if config.port is None else str(config.port)
    wanted = Wanted(config.service, config.pods, config.pool, config.namespace, port)
    return KubernetesSource(wanted, access_to(config.api_url))
