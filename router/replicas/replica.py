"""This gateway as a replica of its fleet: its line, its channel and its lease."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import suppress

from router.config.model import Config, RedisConfig
from router.config.version import version
from router.control.control import Control
from router.limits.host_use import HostUse
from router.metrics.instruments import Reading
from router.replicas.connection import connect, key
from router.replicas.fleet_channel import FleetChannel
from router.replicas.fleet_placements import FleetPlacements
from router.replicas.fleet_rows import HostRows
from router.replicas.fleet_use import FleetUse
from router.replicas.leases import RENEW_S, Registered, ReplicaLeases
from router.replicas.line import PAUSE_S, Line, ended
from router.replicas.messages import StateVersion
from router.replicas.state_sharing import StateSharing

_JOIN_S = 0.5
"""Time between two looks whether this process has placements to share."""
_LEAVE_S = 1.0
"""Longest wait for Redis at the end."""

log = logging.getLogger("warmroute.replicas")


def new_id() -> str:
    """Return a random id. A gateway has another one after each start."""
    return secrets.token_hex(8)


def name_of(config: Config) -> str:
    """Return the name that people see: host and public port, or the Unix socket."""
    return f"{socket.gethostname()}:{config.uds or config.port}"


def channel_of(config: RedisConfig) -> str:
    return key(config, "channel")


class Replica:
    """One process of a gateway in its fleet. Process 0 has `rows` and `use`, and holds the lease.

    The others join once they have placements to share.
    """

    def __init__(
        self,
        config: Config,
        *,
        replica: str | None = None,
        process: int = 0,
        processes: int = 1,
        rows: HostRows | None = None,
        use: HostUse | None = None,
        control: Control | None = None,
        placements: FleetPlacements | None = None,
    ) -> None:
        now = time.time()
        self.id = replica or new_id()
        self.own = Registered(self.id, name_of(config), version(""), processes, now)
        shared = FleetUse(use, divided=config.limits.alone == "share") if use is not None else None
        self.channel = FleetChannel(self.id, process, now, rows, self._state, shared, placements)
        self._client = connect(config.redis)
        self.sharing: StateSharing | None = None
        if control is not None:
            self.sharing = StateSharing(self._client, config.redis, control, self.own.name, self._heard)
        self._leases = ReplicaLeases(self._client, config.redis) if rows is not None else None
        self.registered: list[Registered] = []
        """The replicas with a lease, as of the last renewal."""
        self.line = Line(
            self._client,
            channel_of(config.redis),
            self.channel.take,
            self.channel.receive,
            self.channel.lost,
            self.channel.interval_s,
        )
        self._placements = placements
        self._renewing: asyncio.Task[None] | None = None
        self._joining: asyncio.Task[None] | None = None

    def _state(self) -> StateVersion:
        return StateVersion() if self.sharing is None else self.sharing.version

    def _heard(self) -> list[StateVersion]:
        return [sender.state for sender in self.channel.senders.replicas.values()]

    def start(self) -> None:
        """Join the fleet. Nothing waits for Redis."""
        if self._leases is None and self._placements is not None:
            self._joining = asyncio.create_task(self._join(self._placements), name="replicas: join")
        else:
            self.line.start()
        if self.sharing is not None:
            self.sharing.start()
        if self._leases is not None:
            self._renewing = asyncio.create_task(self._renew(self._leases), name="replicas: lease")

    async def _join(self, placements: FleetPlacements) -> None:
        while True:
            if placements.needed:
                return self.line.start()
            await asyncio.sleep(_JOIN_S)

    async def aclose(self) -> None:
        await ended(task for task in (self._renewing, self._joining) if task is not None)
        await self.line.aclose()
        if self.sharing is not None:
            await self.sharing.aclose()
        with suppress(Exception):  # the lease ends by itself
            async with asyncio.timeout(_LEAVE_S):
                if self._leases is not None:
                    await self._leases.leave(self.own)
        with suppress(Exception):
            async with asyncio.timeout(_LEAVE_S):
                await self._client.aclose()

    async def _renew(self, leases: ReplicaLeases) -> None:
        while True:
            try:
                await leases.renew(self.own)
                self.registered = await leases.all()
                pause_s = RENEW_S
            except Exception as error:  # of the library, of TLS or of the system
                log.debug("lease not renewed", extra={"reason": str(error)})
                pause_s = PAUSE_S
            await asyncio.sleep(pause_s)

    def apart(self) -> list[str]:
        """Return the gateways that have another version of the shared changes, or a lease and are not heard."""
        if self.line.alone or self.sharing is None:
            return []
        heard, own = self.channel.senders.replicas, self.sharing.version
        silent = [one for one in self.registered if one.id != self.id and one.id not in heard]
        names = {one.id: one.name for one in self.registered}
        others = [names.get(replica, replica) for replica, sender in heard.items() if sender.state != own]
        return [f"{name} has other changes" for name in others] + [f"{one.name} is not heard" for one in silent]

    def readings(self) -> Iterator[Reading]:
        """Yield the state of the fleet's channel, and of the placements of other processes."""
        if self._leases is not None:
            yield "warmroute_replica_alone", (), float(self.line.alone)
            yield "warmroute_replicas_apart", (), len(self.apart())
            yield "warmroute_replica_faults", ("errors",), self.line.errors
        yield from self.channel.readings()
