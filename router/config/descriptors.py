"""Open file descriptors: what the limits need against what the system allows."""

from __future__ import annotations

import resource

from router.config.model import Config

_OWN_DESCRIPTORS = 256
"""Listeners, logs, event subscriptions, probes and the admin port's clients."""


def descriptors_needed(config: Config) -> int:
    """One per client connection and one per request in flight at a worker, which is at most one per connection."""
    return 2 * config.limits.max_connections + 4 * len(config.workers) + _OWN_DESCRIPTORS


def reserve_descriptors(config: Config) -> str | None:
    """Raise the soft limit to what `config` needs; a warning where the hard limit does not allow it."""
    needed = descriptors_needed(config)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return None
    reachable = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
    except (OSError, ValueError):
        reachable = soft
    if reachable >= needed:
        return None
    connections = (reachable - _OWN_DESCRIPTORS - 4 * len(config.workers)) // 2
    instead = f" or write limits.max_connections: {connections}" if connections > 0 else ""
    return (
        f"limits.max_connections {config.limits.max_connections} needs {needed} open files, "
        f"but RLIMIT_NOFILE allows {reachable}; raise it (ulimit -Hn, LimitNOFILE=){instead}"
    )
