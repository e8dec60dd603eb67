"""The history of the desired state: one revision for each change, of which the latest are kept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from router.control.state.desired_state import DesiredState, LiveSettings, from_tree, tree_of
from router.control.state.differences import SettingDifference, undone

Source = Literal["start", "api", "reload", "restore", "fleet"]
"""start: the gateway started, or took over from another. reload: the settings were read again. fleet: another gateway
made the change."""
MOST_BYTES = 8 << 20
"""Limit on the encoded size of all revisions that are kept."""


class Revision(msgspec.Struct, frozen=True, kw_only=True):
    """One change: `number` is the version that it made, `at` the time in UTC, `who` the caller where known, and
    `what` its summary in words.
    """

    number: int
    at: str
    source: Source
    who: str | None
    what: str
    differences: tuple[SettingDifference, ...]


class RevisionUnknownError(Exception):
    """The history does not reach back to that revision, or forward."""

    def __init__(self, number: int, first: int, last: int) -> None:
        super().__init__(f"revision {number} is not kept; the history has {first} to {last}")
        self.number = number
        self.first = first
        self.last = last


class RevisionHistory:
    """The latest revisions, oldest first: at most `kept`, and at most `MOST_BYTES`. The last one always stays."""

    def __init__(self, kept: int, revisions: Iterable[Revision] = ()) -> None:
        self._kept = kept
        self._revisions: list[Revision] = []
        self._sizes_bytes: list[int] = []
        for revision in revisions:
            self.add(revision)

    @property
    def revisions(self) -> tuple[Revision, ...]:
        """All that are kept, oldest first."""
        return tuple(self._revisions)

    def add(self, revision: Revision) -> None:
        """Append a revision and drop the oldest ones beyond the limits."""
        self._revisions.append(revision)
        self._sizes_bytes.append(len(msgspec.json.encode(revision)))
        while len(self._revisions) > 1 and self._too_long():
            del self._revisions[0], self._sizes_bytes[0]

    def get(self, number: int) -> Revision:
        """Return a revision.

        Raises:
            RevisionUnknownError: it is not kept.
        """
        for revision in reversed(self._revisions):
            if revision.number == number:
                return revision
        raise RevisionUnknownError(number, *self._range())

    def settings_at(self, number: int, now: DesiredState) -> LiveSettings:
        """Return the live settings that revision `number` made, by undoing later revisions of the state `now`.

        Raises:
            RevisionUnknownError: it is not kept.
        """
        self.get(number)
        tree = tree_of(now.settings)
        for revision in reversed(self._revisions):
            if revision.number > number:
                tree = undone(tree, revision.differences)
        # a discovered worker that has left since may be in the differences with single fields
        tree["workers"] = {name: worker for name, worker in tree["workers"].items() if "url" in worker}
        return from_tree(tree)

    def _too_long(self) -> bool:
        return len(self._revisions) > self._kept or sum(self._sizes_bytes) > MOST_BYTES

    def _range(self) -> tuple[int, int]:
        return (self._revisions[0].number, self._revisions[-1].number) if self._revisions else (0, 0)
