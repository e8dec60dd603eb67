"""Settings that a reload found changed, and that cannot change while the gateway runs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from router.config.model import Config
from router.control.state.desired_state import live_settings, with_live_settings
from router.control.state.differences import SettingDifference, differences

RESTART = "restart the gateway"
RESTART_OR_TAKE_OVER = "restart the gateway, or let a new process take over (--takeover, SIGUSR2)"
_ADDRESSES = frozenset({"host", "port", "uds", "admin_host", "admin_port", "processes", "takeover"})
"""Settings that a process which takes over cannot change."""


def pending(running: Config, read: Config) -> tuple[SettingDifference, ...]:
    """Return how the settings that were read differ from those that the gateway runs with, apart from live ones."""
    return differences(_rest(running), _rest(read))


def remedy(difference: SettingDifference, processes: int | str) -> str:
    """Return what to do so that a pending setting takes effect."""
    return RESTART if difference.path[0] in _ADDRESSES or processes != 1 else RESTART_OR_TAKE_OVER


def pending_lines(found: Sequence[SettingDifference], processes: int | str) -> list[str]:
    return [f"{one}; to apply it, {remedy(one, processes)}" for one in found]


def _rest(config: Config) -> dict[str, object]:
    tree: dict[str, object] = msgspec.to_builtins(with_live_settings(config, live_settings(Config())))
    return {key: _keyed(value) for key, value in tree.items()}


def _keyed(value: object) -> object:
    """Return tuples as lists, so that equal settings compare equal."""
    return list(value) if isinstance(value, tuple) else value
