"""The routers from PyPI, each in its own environment and with its own round robin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from loadtest.bench.frames import MODEL
from loadtest.bench.proxies import litellm
from loadtest.bench.proxies.entrant import Entrant, Missing, Place, Proxy
from loadtest.bench.proxies.environments import InstallError, Package, prepare
from loadtest.fleet.ports import free_ports
from loadtest.peers.contenders import Site, parse_contender
from loadtest.peers.launch import running_router
from loadtest.peers.workers import Worker

ROUTERS = (Package("sglang-router", "0.3.2"), Package("vllm-router", "0.1.17"), Package("smg", "1.13.0"))
NOT_PACKAGED = Missing(
    "production-stack",
    "not on PyPI: the name its router has in its own tree, vllm-router, is another project's there",
)


def from_pypi(parent: Path, say: Callable[[str], None]) -> list[Entrant | Missing]:
    """Return all peers; create the environments that are missing under `parent`."""
    found: list[Entrant | Missing] = []
    for package in (*ROUTERS, litellm.PACKAGE):
        try:
            environment = prepare(parent.absolute(), package, say)
        except InstallError as error:
            found.append(Missing(package.distribution, f"not installed: {error}"))
            continue
        started = litellm.entrant if package is litellm.PACKAGE else _router
        found.append(started(package, environment))
    return [*found, NOT_PACKAGED]


def _router(package: Package, environment: Path) -> Entrant:
    contender = parse_contender(f"{package.distribution}:round_robin")

    @contextmanager
    def start(place: Place) -> Iterator[Proxy]:
        port = free_ports(2)
        site = Site(port, port + 1, (Worker(place.worker_url, 0),), MODEL, environment)
        with running_router(contender, site, place.folder / f"{package.distribution}.log") as process:
            yield Proxy(package.distribution, site.url, process.pid)

    return Entrant(package.distribution, package.version, "round_robin", start)
