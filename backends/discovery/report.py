"""What a source of workers says: its current answer, or the reason why it has none now."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from backends.discovery.registration import Registration

Workers = Mapping[str, Registration]
"""Workers by id (``host:port``)."""
MOST_WORKERS = 20_000
"""Workers of one source. A longer answer counts as a failure."""
_NAMED = 3


class Source(Protocol):
    """Where workers are named. Each module of this package has one kind."""

    @property
    def kind(self) -> str: ...

    async def run(self, report: SourceReport) -> None:
        """Follow the origin until cancelled. An exception is reported as a failure, and the source is run again."""


class SourceReport:
    """The last answer of one source and its state. `changed` is called after an answer that differs from the last one,
    and after the first one.

    `wall_s` returns the time in seconds since 1970.
    """

    def __init__(self, changed: Callable[[], None], wall_s: Callable[[], float]) -> None:
        self._changed = changed
        self._wall_s = wall_s
        self.workers: Workers = {}
        self.answered = False
        self.failing_since: float | None = None
        """Since when the source fails, in seconds since 1970; None while it answers."""
        self.error: str | None = None
        """The last failure, also after the source has recovered."""
        self.changed_at: float | None = None
        """When the answer changed last, in seconds since 1970."""
        self.failures = 0
        self.refused: tuple[str, ...] = ()
        """Entries of the last answer that are no workers, each with the reason."""

    def answer(self, workers: Workers, refused: Sequence[str] = (), *, complete: bool = True) -> None:
        """Take the whole current answer. `refused` are entries that cannot be used, with their reasons.

        Without `complete`, the source may not know all of its workers yet.
        """
        if len(workers) > MOST_WORKERS:
            self.failed(f"{len(workers)} workers; a source may name {MOST_WORKERS}")
            return
        first = complete and not self.answered
        self.answered = self.answered or complete
        self.failing_since = None
        self.refused = tuple(refused)
        if first or workers != self.workers:
            self.workers = dict(workers)
            self.changed_at = self._wall_s()
            self._changed()

    def failed(self, reason: str) -> None:
        self.failures += 1
        self.error = reason
        if self.failing_since is None:
            self.failing_since = self._wall_s()

    def statistics(self) -> dict[str, Any]:
        return {
            "workers": len(self.workers),
            "answered": self.answered,
            "failing_since": self.failing_since,
            "error": self.error,
            "changed_at": self.changed_at,
            "failures": self.failures,
            "refused": len(self.refused),
            "refused_first": list(self.refused[:_NAMED]),
        }
