"""Log changes of the desired state and reloads."""

from __future__ import annotations

import logging
from typing import Any, Literal

from router.control.change import Reloaded
from router.control.state.pending import pending_lines
from router.control.state.revisions import Revision

log = logging.getLogger("warmroute.control")

_LOGGED = 20
"""Differences of one change that are logged."""


def log_revision(revision: Revision, keeps: bool) -> None:
    """Log a change. `keeps`: changes outlive the process."""
    shown = [str(one) for one in revision.differences[:_LOGGED]]
    more = len(revision.differences) - len(shown)
    fields: dict[str, Any] = {
        "version": revision.number,
        "source": revision.source,
        "who": revision.who,
        "what": revision.what,
        "differences": "; ".join([*shown, *([f"and {more} more"] if more else [])]),
    }
    if not keeps and revision.source in ("api", "restore"):
        fields["kept"] = "until the process ends: state_dir is not set"
    log.info("desired state changed", extra=fields)


def log_reload(why: str, found: Reloaded, processes: int | Literal["auto"]) -> None:
    """Log a reload, and what does not take effect. `processes` is that of the running gateway."""
    for conflict in found.conflicts:
        log.warning("a change of the admin API was replaced", extra={"reason": str(conflict)})
    for line in pending_lines(found.pending, processes):
        log.warning("a changed setting does not take effect", extra={"reason": line})
    fields = {"why": why, "version": found.outcome.state.version, "changes": len(found.outcome.differences)}
    log.info("settings reloaded", extra=fields)
