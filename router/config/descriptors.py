"""Compare the open file descriptors that the limits need with the number that the system allows."""

from __future__ import annotations

import resource

import msgspec

from router.config.model import Config

ADMIN_CONNECTIONS = 256
"""Open connections of the admin port. A further one replaces the one that has been idle for longest."""
_OWN_DESCRIPTORS = 64
"""Listeners, logs, probes, the event loop and the like; a gateway without clients has about 20."""
_PER_WORKER = 4
"""KV events with their replays, and two probes."""


def descriptors_needed(config: Config, processes: int = 1) -> int:
    """Return the descriptors that one of `processes` needs.

    That is one per client connection, at most one per connection for its request at a worker, and the reserved ones
    (`_reserved`).
    """
    return 2 * -(-config.limits.max_connections // processes) + _reserved(config)


def _reserved(config: Config) -> int:
    """Return the descriptors kept free of client connections and of their requests at workers."""
    return ADMIN_CONNECTIONS + _PER_WORKER * len(config.workers) + _OWN_DESCRIPTORS


def reserve_descriptors(config: Config, processes: int = 1) -> tuple[Config, str | None]:
    """Raise the soft limit to the number that `config` needs.

    If the hard limit is lower, return `config` with fewer connections, and a warning that names both numbers.
    """
    needed = descriptors_needed(config, processes)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return config, None
    reachable = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
    except (OSError, ValueError):
        reachable = soft
    return fit_connections(config, processes, reachable)


def reachable_descriptors() -> int | None:
    """Return the highest limit that a start can set; None if there is no limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if hard == resource.RLIM_INFINITY else hard


def fit_connections(config: Config, processes: int, allowed: int | None) -> tuple[Config, str | None]:
    """Return `config` with at most the connections that `allowed` descriptors per process carry, and a warning if that
    is fewer.

    Connects to workers, the admin port and KV events keep their descriptors. At least half of all descriptors stay for
    clients.
    """
    needed = descriptors_needed(config, processes)
    if allowed is None or allowed >= needed:
        return config, None
    reserved = min(_reserved(config), allowed // 2)
    limits = config.limits
    fitted = msgspec.structs.replace(
        limits,
        max_connections=min(limits.max_connections, max(1, (allowed - reserved) // 2) * processes),
    )
    each = "" if processes == 1 else f" in each of {processes} processes"
    return msgspec.structs.replace(config, limits=fitted), (
        f"limits.max_connections is lowered from {limits.max_connections} to {fitted.max_connections}: it needs "
        f"{needed} open files{each}, but RLIMIT_NOFILE allows {allowed}; raise that (ulimit -Hn, LimitNOFILE=)"
    )
