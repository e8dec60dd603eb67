"""The programs of a run: this tree's gateway, and what ``--against`` names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from loadtest.bench.frames import MODEL
from loadtest.bench.proxies import warmroute
from loadtest.bench.proxies.entrant import Entrant, NotInstalled, Place, Proxy
from loadtest.bench.proxies.installed import PROGRAMS, installed
from loadtest.bench.results import Row
from loadtest.compare.contenders import PEERS, Site, Worker, parse_contender, running_router
from loadtest.fleet.ports import free_ports

ROUTERS = tuple(PEERS)

HELP = (
    f"{', '.join(ROUTERS)} (with cache_aware, or with the policy in NAME:POLICY), {', '.join(PROGRAMS)}, direct"
    " (no proxy), defaults (this gateway without --everything-on), or LABEL=DIR, an environment with another Warmroute,"
    " as in compiled=.venv-compiled"
)


class UnknownName(ValueError):
    """``--against`` has a name that is none of `HELP`."""


def entrants(names: Sequence[str], everything_on: bool, peers_env: Path) -> tuple[list[Entrant], list[Row]]:
    """Return this tree's gateway and the named programs, and a row for each of them, also if it is not installed.

    Raises:
        UnknownName: there is no such program.
    """
    found, rows = [], []
    makers: list[tuple[str, Callable[[], Entrant]]] = [(warmroute.SOURCE, partial(warmroute.ours, everything_on))]
    makers += [_named(name, everything_on, peers_env) for name in names]
    for name, make in makers:
        try:
            one = make()
        except NotInstalled as error:
            rows.append(Row(name, missing=str(error)))
            continue
        found.append(one)
        rows.append(Row(one.name, one.version, one.setup))
    return found, rows


def without_path(name: str) -> str:
    """Return the name with DIR in place of an environment's path."""
    label, given, _ = name.partition("=")
    return f"{label}=DIR" if given else name


def _named(name: str, everything_on: bool, peers_env: Path) -> tuple[str, Callable[[], Entrant]]:
    """Return the name of the program's row, and what finds the program."""
    label, given, folder = name.partition("=")
    router, _, policy = name.partition(":")
    if given:
        return f"warmroute {label}", partial(warmroute.other, f"warmroute {label}", Path(folder), everything_on)
    if router in ROUTERS:
        return router, partial(_router, router, policy or "cache_aware", peers_env)
    if name in PROGRAMS:
        return name, partial(installed, name, peers_env)
    if name == "direct":
        return name, _direct
    if name == "defaults":
        return name, partial(warmroute.ours, False, "warmroute defaults")
    raise UnknownName(f"{name!r} is not {HELP}")


def _direct() -> Entrant:
    @contextmanager
    def start(place: Place) -> Iterator[Proxy]:
        yield Proxy("direct", place.worker_urls[0], os.getpid(), place.worker_urls[0])

    return Entrant("direct", "", "no proxy: the clients talk to the stand-in", start)


def _router(name: str, policy: str, environment: Path) -> Entrant:
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
