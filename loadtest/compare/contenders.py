"""The contenders, the command line of each, and one of them as a process.

A contender is written ``ROUTER:POLICY``, followed by further flags of that router: ``sglang-router:cache_aware
--balance-abs-threshold 4``. Each router runs with its own defaults. The only exception is a setting without which a
policy cannot work at all: the KV event sources of vllm-router's ``kv_aware``.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec

from loadtest.fleet.process import Process, started, until, warmroute
from loadtest.lab.policies import parse_policy

READY_LIMIT_S = 60.0
SETTLE_S = 1.0
"""Pause after the last worker is registered: the peers do not report when their event subscriptions are ready."""
OWN = "warmroute"
PEERS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "sglang-router": (("sglang-router", "launch"), "warn"),
    "vllm-router": (("vllm-router",), "warning"),
    "smg": (("smg", "launch"), "warn"),
}
"""Each peer's program with its subcommand, and its log level for warnings. Its distribution on PyPI has its name."""


class UnknownContender(ValueError):
    """No router has this name; the message lists the known ones."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A running worker: its base URL, process id, and KV event addresses if it publishes events."""

    url: str
    pid: int
    events_endpoint: str | None = None
    replay_endpoint: str | None = None


@dataclass(frozen=True, slots=True)
class Site:
    """The environment of one router: its two ports, its workers, the model that they serve, and the peers' environment.

    The side port serves metrics, and Warmroute's admin API.
    """

    port: int
    side_port: int
    workers: tuple[Worker, ...]
    model: str
    environment: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def worker_urls(self) -> list[str]:
        return [worker.url for worker in self.workers]


@dataclass(frozen=True, slots=True)
class Contender:
    """A router with a policy and further flags; `name` is what the user wrote."""

    name: str
    router: str
    policy: str
    flags: tuple[str, ...] = ()

    def command(self, site: Site) -> list[str]:
        made = _own_command(self.policy, site) if self.router == OWN else _peer_command(self, site)
        return [*made, *self.flags]

    def registered(self, site: Site) -> int:
        """Return the number of workers that the router reports as usable; 0 while it does not answer yet."""
        try:
            return _ready_in_warmroute(site) if self.router == OWN else _healthy_in_list(site)
        except httpx.HTTPError:
            return 0

    def version(self, environment: Path) -> str | None:
        """Return the installed version, or None if it is not installed in `environment`."""
        python = Path(sys.executable) if self.router == OWN else environment / "bin" / "python"
        program = [str(python), "-c", _VERSION, self.router]
        try:
            return subprocess.run(program, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            return None


_VERSION = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"


def parse_contender(text: str) -> Contender:
    """Parse ``ROUTER:POLICY [FLAGS]``.

    Raises:
        UnknownContender: no router has this name.
    """
    first, *flags = shlex.split(text) or [""]
    router, _, policy = first.partition(":")
    if router not in (OWN, *PEERS) or not policy:
        raise UnknownContender(f"{text!r} is not ROUTER:POLICY with ROUTER one of {', '.join((OWN, *PEERS))}")
    return Contender(" ".join([first, *flags]), router, policy, tuple(flags))


def gateway_of(policy: str) -> Contender:
    """Return Warmroute with a policy, given by the lab's name for it."""
    spec = parse_policy(policy)
    flags = [word for key, value in spec.params.items() for word in ("--policy-param", f"{key}={_text(value)}")]
    for name, given in (("hold", spec.hold), ("lanes", spec.lanes)):
        if given is not None:
            flags += ["--set", f"policy.{name}={_text(given)}"]
    return Contender(policy, OWN, spec.rule, tuple(flags))


def _text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


@contextmanager
def running_router(contender: Contender, site: Site, log: Path) -> Iterator[Process]:
    """Run the router as a process, and yield it once every worker is registered.

    Raises:
        StartError: the router ended, or did not register every worker in time.
    """
    with ExitStack() as stack:
        process = started(stack, contender.command(site), contender.name, log=log)
        until(
            lambda: _knows_all(process, contender, site),
            lambda: f"{contender.name} did not know all workers:\n{process.tail()}",
            READY_LIMIT_S,
            0.2,
        )
        time.sleep(SETTLE_S)
        yield process


def _knows_all(process: Process, contender: Contender, site: Site) -> bool:
    if not process.alive:
        raise process.ended()
    return contender.registered(site) >= len(site.workers)


def _own_command(policy: str, site: Site) -> list[str]:
    ports = ["--host", "127.0.0.1", "--port", str(site.port), "--admin-port", str(site.side_port)]
    workers = [flag for url in site.worker_urls for flag in ("--worker", url)]
    return warmroute("serve", *ports, *workers, "--policy", policy, "--log-level", "warning")


def _peer_command(contender: Contender, site: Site) -> list[str]:
    (program, *subcommand), level = PEERS[contender.router]
    command = [str(site.environment / "bin" / program), *subcommand, "--worker-urls", *site.worker_urls]
    command += ["--policy", contender.policy, "--host", "127.0.0.1", "--port", str(site.port)]
    command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(site.side_port), "--log-level", level]
    if (contender.router, contender.policy) != ("vllm-router", "kv_aware"):
        return command
    for worker in site.workers:
        if worker.events_endpoint is not None:
            command += ["--kv-event-source", f"{worker.url}={worker.events_endpoint}"]
        if worker.replay_endpoint is not None:
            command += ["--kv-event-replay-source", f"{worker.url}={worker.replay_endpoint}"]
    return [*command, "--kv-event-block-size", "16", "--kv-event-model", site.model]


def _ready_in_warmroute(site: Site) -> int:
    listed = _get(f"http://127.0.0.1:{site.side_port}/admin/v1/workers")["workers"]
    return sum(worker["state"] == "ready" and _settled(worker["candidates"]) for worker in listed)


def _settled(candidates: list[dict[str, Any]]) -> bool:
    return all(candidate["residency"] in ("exact", "approximate") for candidate in candidates)


def _healthy_in_list(site: Site) -> int:
    return sum(worker["is_healthy"] for worker in _get(f"{site.url}/workers")["workers"])


def _get(url: str) -> dict[str, Any]:
    document: dict[str, Any] = httpx.get(url, timeout=2).raise_for_status().json()
    return document
