"""A wanted change of the desired state, its outcome, and the errors that refuse it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from router.control.state.desired_state import DesiredState, LiveSettings
from router.control.state.differences import SettingDifference
from router.control.state.merge import Conflict
from router.control.state.revisions import Source

RELOADED = "reloaded the settings"
"""Summary of the change that a reload makes."""


class StaleTagError(Exception):
    """The state is no longer the one that the caller named."""

    def __init__(self, given: str, now: str) -> None:
        super().__init__(f"the desired state is {now}, and If-Match names {given[:80]}")


class NotAppliedError(Exception):
    """The process cannot be brought to the state and stays as it was. The message says why."""


class HandedOverError(Exception):
    """Another process serves, and decides the state."""


@dataclass(frozen=True, slots=True)
class Change:
    """One wanted change. `edit` returns the settings as they should become; it may raise, and then nothing changes.

    `what` is its summary in words. `if_match` is the entity tag of the state that the caller knows, or ``*``.
    """

    edit: Callable[[LiveSettings], LiveSettings]
    what: str
    source: Source = "api"
    who: str | None = None
    if_match: str | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Reloaded:
    """A reload: its change, the API's changes that it replaced, and settings that cannot change now."""

    outcome: ChangeOutcome
    conflicts: tuple[Conflict, ...]
    pending: tuple[SettingDifference, ...]


@dataclass(frozen=True, slots=True)
class ChangeOutcome:
    """The state after a change, and how it differs from the one before. After a dry run the state is unchanged.

    `effective` are the differences with the values that apply, defaults included, for people. `kept`: the change
    outlives the process. `shared`: the other gateways of the fleet have it; None without a fleet.
    """

    state: DesiredState
    differences: tuple[SettingDifference, ...]
    kept: bool
    shared: bool | None = None
    effective: tuple[SettingDifference, ...] = ()
