"""The programs of a run: this tree's gateway, and what ``--against`` names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from loadtest.bench.proxies import peers, warmroute
from loadtest.bench.proxies.entrant import Entrant, NotInstalled, Place, Proxy
from loadtest.bench.proxies.installed import installed
from loadtest.bench.results import Row

HELP = (
    f"{', '.join(package.distribution for package in peers.ROUTERS)} (with cache_aware, or with the policy in"
    " NAME:POLICY), litellm, nginx, haproxy, envoy, direct (no proxy), defaults (this gateway without --everything-on),"
    " or LABEL=DIR, an environment with another Warmroute, as in compiled=.venv-compiled"
)


class UnknownName(ValueError):
    """``--against`` has a name that is none of `HELP`."""


def entrants(
    names: Sequence[str], everything_on: bool, peers_env: Path, say: Callable[[str], None]
) -> tuple[list[Entrant], list[Row]]:
    """Return this tree's gateway and the named programs, and a row for each of them, also if it is not installed.

    Raises:
        UnknownName: there is no such program.
    """
    found, rows = [], []
    makers: list[tuple[str, Callable[[], Entrant]]] = [(warmroute.SOURCE, partial(warmroute.ours, everything_on))]
    makers += [_named(name, everything_on, peers_env, say) for name in names]
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


def _named(
    name: str, everything_on: bool, peers_env: Path, say: Callable[[str], None]
) -> tuple[str, Callable[[], Entrant]]:
    """Return the name of the program's row, and what finds the program."""
    label, given, folder = name.partition("=")
    if given:
        return f"warmroute {label}", partial(warmroute.other, f"warmroute {label}", Path(folder), everything_on)
    router, _, policy = name.partition(":")
    for package in peers.ROUTERS:
        if package.distribution == router:
            return router, partial(peers.router, package, policy or "cache_aware", peers_env, say)
    known: Mapping[str, Callable[[], Entrant]] = {
        "nginx": partial(installed, "nginx"),
        "haproxy": partial(installed, "haproxy"),
        "envoy": partial(peers.envoy, peers_env, say),
        "litellm": partial(peers.litellm, peers_env, say),
        "direct": _direct,
        "defaults": partial(warmroute.ours, False, "warmroute defaults"),
    }
    if name not in known:
        raise UnknownName(f"{name!r} is not {HELP}")
    return name, known[name]


def _direct() -> Entrant:
    @contextmanager
    def start(place: Place) -> Iterator[Proxy]:
        yield Proxy("direct", place.worker_urls[0], os.getpid(), place.worker_urls[0])

    return Entrant("direct", "", "no proxy: the clients talk to the stand-in", start)
