"""The gateways of the fleet, as this one hears them."""

from __future__ import annotations

import asyncio
from typing import Any

from router.admin.documents import Shape
from router.admin.operations import Answer, Call, read
from router.replicas.replica import Replica


class ReplicaDocument(Shape):
    """One gateway of the fleet. `silent_s` is the time since its last message; null if it has a lease only. Fields that
    its lease tells are null until that is read.
    """

    id: str
    name: str | None
    version: str | None
    processes: int | None
    started_at: float | None
    itself: bool
    silent_s: float | None


class ReplicasDocument(Shape):
    """The gateways of the fleet. `fleet` is null without Redis.

    `alone`: this gateway's own messages do not come back, so that it goes on with what it has; `problem` says why.
    `lag_s` is the time that the last own message took.
    """

    fleet: str | None
    alone: bool
    problem: str | None
    lag_s: float | None
    replicas: list[ReplicaDocument]


@read("replicas", ReplicasDocument)
async def list_replicas(call: Call) -> Answer:
    """The gateways of the fleet, and whether this one is alone."""
    replica = call.system.replica
    if replica is None:
        return Answer(ReplicasDocument(fleet=None, alone=False, problem=None, lag_s=None, replicas=[]))
    document = ReplicasDocument(
        fleet=call.system.config.redis.fleet,
        alone=replica.line.alone,
        problem=replica.line.problem or None,
        lag_s=replica.channel.lag_s,
        replicas=_listed(replica, asyncio.get_running_loop().time()),
    )
    return Answer(document)


def is_alone(call: Call) -> bool:
    replica = call.system.replica
    return replica is not None and replica.line.alone


def _listed(replica: Replica, now_s: float) -> list[ReplicaDocument]:
    """Return the replicas that are heard, and those whose lease still lasts."""
    heard = replica.channel.senders.replicas
    registered: dict[str, Any] = {one.id: one for one in replica.registered} | {replica.id: replica.own}
    return [
        ReplicaDocument(
            id=one,
            **{name: getattr(registered.get(one), name, None) for name in _OF_LEASE},
            itself=one == replica.id,
            silent_s=0.0 if one == replica.id else now_s - heard[one].heard_s if one in heard else None,
        )
        for one in sorted(registered.keys() | heard.keys())
    ]


_OF_LEASE = ("name", "version", "processes", "started_at")
