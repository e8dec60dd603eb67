"""The configuration that a supervisor sends to a child process, over a socket that stays open for the child's life."""

from __future__ import annotations

import asyncio
import math
import os
import socket
from pathlib import Path

import msgspec

from router.config.budgets import BODIES, RESPONSES
from router.config.model import Config, DecisionLogConfig, LimitsConfig
from router.control.state.desired_state import DesiredState, with_live_settings

READY = b"\n"
"""Sent by the child once it serves."""
_SIZE_BYTES = 4


class ChildConfig(msgspec.Struct, frozen=True):
    """Everything a child needs. `public`, `admin` and `table` are inherited file descriptors. `replica` is
    the gateway's id in its fleet, if it has one, and `instance` its name in Via.
    """

    process: int
    processes: int
    config: Config
    state: DesiredState
    public: tuple[int, ...]
    admin: int
    table: int
    replica: str = ""
    instance: str = ""


async def send_config(line: socket.socket, start: ChildConfig) -> None:
    """Send the configuration. It contains keys, so it is not on the command line, which any user of the host can
    read.
    """
    body = msgspec.msgpack.encode(start)
    await asyncio.get_running_loop().sock_sendall(line, len(body).to_bytes(_SIZE_BYTES) + body)


def receive_config(line: socket.socket) -> ChildConfig:
    """Wait for the configuration.

    Raises:
        EOFError: the supervisor has ended.
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
    """Return the number of processes that `config` asks for."""
    return config.processes if isinstance(config.processes, int) else cores()


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def config_of(config: Config, state: DesiredState, process: int, processes: int) -> Config:
    """Return the settings that a process starts with: its share of limits, and the desired state.

    Each process has its own seeds. With one seed, all processes would draw the same workers at the same time.
    """
    live = with_live_settings(config, state.effective)
    return msgspec.structs.replace(
        live,
        limits=share_of(live.limits, process, processes),
        decision_log=decision_log_of(config.decision_log, process),
    )


def share_of(limits: LimitsConfig, process: int, processes: int) -> LimitsConfig:
    """Return the share of `limits` for one of `processes`. It always admits one whole body.

    `max_requests_per_worker` is not divided: the shared ledger shows each process the load of the others.
    """

    def part(limit: int) -> int:
        return _part(limit, processes)

    requests, more = divmod(limits.max_concurrent_requests, processes)
    return msgspec.structs.replace(
        limits,
        max_connections=part(limits.max_connections),
        max_queued_requests=part(limits.max_queued_requests),
        max_concurrent_requests=requests + (process < more),
        max_buffered_body_bytes=max(part(BODIES.of(limits)), limits.max_body_bytes),
        max_buffered_response_bytes=part(RESPONSES.of(limits)),
    )


def decision_log_of(log: DecisionLogConfig, process: int) -> DecisionLogConfig:
    """Return the decision log of one process: ``decisions.jsonl`` becomes ``decisions-0.jsonl``."""
    if log.path is None:
        return log
    path = Path(log.path)
    stem, dot, endings = path.name.partition(".")
    return msgspec.structs.replace(log, path=str(path.with_name(f"{stem}-{process}{dot}{endings}")))


def _part(limit: int, processes: int) -> int:
    return math.ceil(limit / processes)
