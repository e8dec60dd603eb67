"""The routers from PyPI, in the environment that `make peers-env` makes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loadtest.bench.frames import MODEL
from loadtest.bench.proxies.entrant import Entrant, NotInstalled, Place, Proxy
from loadtest.compare.contenders import PEERS, Site, Worker, parse_contender, running_router
from loadtest.fleet.ports import free_ports

ROUTERS = tuple(PEERS)


def router(name: str, policy: str, environment: Path) -> Entrant:
    """Return a router with one of its policies.

    Raises:
        NotInstalled: it is not in the environment.
    """
    contender = parse_contender(f"{name}:{policy}")
    version = contender.version(environment.absolute())
    if version is None:
        raise NotInstalled("not installed (make peers-env)")

    @contextmanager
    def start(place: Place) -> Iterator[Proxy]:
        port = free_ports(2)
        workers = tuple(Worker(url, 0) for url in place.worker_urls)
        site = Site(port, port + 1, workers, MODEL, environment.absolute())
        with running_router(contender, site, place.folder / f"{name}.log") as process:
            yield Proxy(name, site.url, process.pid, place.worker_urls[0])

    return Entrant(name, version, policy, start)
