"""A wanted change of the desired state, its outcome, and the errors that refuse it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from router.control.state.desired_state import DesiredState, LiveSettings
from router.control.state.differences import SettingDifference
from router.control.state.merge import Conflict
from router.control.state.revisions import Revision, Source

log = logging.getLogger("warmroute.control")

RELOADED = "reloaded the settings"
"""Summary of the change that a reload makes."""
_LOGGED = 20
"""Differences of one change that are logged."""


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

    def check_tag(self, state: DesiredState) -> None:
        """Raise `StaleTagError` if `if_match` names another state."""
        tags = [] if self.if_match is None else [tag.strip() for tag in self.if_match.split(",")]
        if self.if_match is not None and state.tag not in tags and "*" not in tags:
            raise StaleTagError(self.if_match, state.tag)


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


def log_revision(revision: Revision, *, kept: bool) -> None:
    shown = [str(one) for one in revision.differences[:_LOGGED]]
    more = len(revision.differences) - len(shown)
    fields = {
        "version": revision.number,
        "source": revision.source,
        "who": revision.who,
        "what": revision.what,
        "differences": "; ".join([*shown, *([f"and {more} more"] if more else [])]),
    }
    if not kept and revision.source in ("api", "restore"):
        fields["kept"] = "until the process ends: state_dir is not set"
    log.info("desired state changed", extra=fields)
