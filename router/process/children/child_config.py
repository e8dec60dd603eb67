"""What a supervisor tells a process that it starts, and the line to it that stays open for life."""

from __future__ import annotations

import asyncio
import math
import os
import socket
from collections.abc import Mapping

import msgspec

from router.config.budgets import BODIES, RESPONSES
from router.config.model import Config, LimitsConfig, TenantConfig

READY = b"\n"
"""What a process sends back once it serves."""
_SIZE_BYTES = 4


class ChildConfig(msgspec.Struct, frozen=True):
    """Everything a process needs. `public`, `admin` and `table` are file descriptors that it inherits."""

    process: int
    processes: int
    config: Config
    drained: frozenset[str]
    public: tuple[int, ...]
    admin: int
    table: int


async def send_config(line: socket.socket, start: ChildConfig) -> None:
    """Tell it. On a socket and not on the command line, which anyone on the host can read: there are keys in it."""
    body = msgspec.msgpack.encode(start)
    await asyncio.get_running_loop().sock_sendall(line, len(body).to_bytes(_SIZE_BYTES) + body)


def receive_config(line: socket.socket) -> ChildConfig:
    """Wait to be told.

    Raises:
        EOFError: the supervisor has gone.
    """
    size = int.from_bytes(_exactly(line, _SIZE_BYTES))
    return msgspec.msgpack.decode(_exactly(line, size), type=ChildConfig)


def _exactly(line: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        part = line.recv(size - len(received))
        if not part:
            raise EOFError
        received += part
    return bytes(received)


def count_of(config: Config) -> int:
    """How many processes `config` asks for."""
    return config.processes if isinstance(config.processes, int) else cores()


def cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def share_of(limits: LimitsConfig, process: int, processes: int) -> LimitsConfig:
    """What `process` of `processes` may take where all together may take `limits`; always enough for one whole body.

    `max_requests_per_worker` is not shared out: the ledger tells each process what the others have booked.
    """

    def part(limit: int) -> int:
        return _part(limit, processes)

    requests, more = divmod(limits.max_concurrent_requests, processes)
    return msgspec.structs.replace(
        limits,
        max_connections=part(limits.max_connections),
        max_queued_requests=part(limits.max_queued_requests),
        max_held_requests=part(limits.max_held_requests),
        max_concurrent_requests=requests + (process < more),
        max_buffered_body_bytes=max(part(BODIES.of(limits)), limits.max_body_bytes),
        max_buffered_response_bytes=part(RESPONSES.of(limits)),
    )


def quotas_of(tenants: Mapping[str, TenantConfig], processes: int, max_body_bytes: int) -> dict[str, TenantConfig]:
    """What each of `processes` lets tenants have; always enough for one whole body, if the tenant may have that."""
    return {name: _quota(tenant, processes, max_body_bytes) for name, tenant in tenants.items()}


def _quota(tenant: TenantConfig, processes: int, max_body_bytes: int) -> TenantConfig:
    queued, body_bytes = tenant.max_queued_requests, tenant.max_buffered_body_bytes
    return msgspec.structs.replace(
        tenant,
        max_queued_requests=None if queued is None else _part(queued, processes),
        max_buffered_body_bytes=(
            None if body_bytes is None else max(_part(body_bytes, processes), min(body_bytes, max_body_bytes))
        ),
    )


def _part(limit: int, processes: int) -> int:
    return math.ceil(limit / processes)
