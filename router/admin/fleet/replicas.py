"""The gateways of the fleet, as this one hears them."""

from __future__ import annotations

import asyncio
from typing import Any

from router.admin.documents import ReplicaDocument, ReplicasDocument
from router.admin.operations import Answer, Call
from router.replicas.replica import Replica


async def list_all(call: Call) -> Answer:
    """Answer with the replicas that are heard, and those whose lease still lasts."""
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
    """Return whether Redis is configured and does not answer."""
    replica = call.system.replica
    return replica is not None and replica.line.alone


def _listed(replica: Replica, now_s: float) -> list[ReplicaDocument]:
    heard = replica.channel.senders.replicas
    registered = {one.id: one for one in replica.registered} | {replica.id: replica.own}
    return [
        _document(
            one,
            registered.get(one),
            itself=one == replica.id,
            silent_s=0.0 if one == replica.id else now_s - heard[one].heard_s if one in heard else None,
        )
        for one in sorted(registered.keys() | heard.keys())
    ]


def _document(one: str, known: Any, *, itself: bool, silent_s: float | None) -> ReplicaDocument:
    return ReplicaDocument(
        id=one,
        name=known.name if known is not None else None,
        version=known.version if known is not None else None,
        processes=known.processes if known is not None else None,
        started_at=known.started_at if known is not None else None,
        itself=itself,
        silent_s=silent_s,
    )
