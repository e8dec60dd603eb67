"""The history of the desired state: one revision for each change, of which the latest are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

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


def kept(revisions: Sequence[Revision], most: int) -> tuple[Revision, ...]:
    """Return the latest revisions: at most `most`, and at most `MOST_BYTES`. The last one always stays."""
    size_bytes, first = 0, len(revisions)
    while first > 0 and len(revisions) - first < most:
        size_bytes += len(msgspec.json.encode(revisions[first - 1]))
        if size_bytes > MOST_BYTES and first < len(revisions):
            break
        first -= 1
    return tuple(revisions[first:])


class RevisionHistory(NamedTuple):
    """All revisions that are kept, oldest first."""

    revisions: tuple[Revision, ...]

    def get(self, number: int) -> Revision:
        """Return a revision.

        Raises:
            RevisionUnknownError: it is not kept.
        """
        for revision in reversed(self.revisions):
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
        for revision in reversed(self.revisions):
            if revision.number > number:
                tree = undone(tree, revision.differences)
        # a discovered worker that has left since may be in the differences with single fields
        tree["workers"] = {name: worker for name, worker in tree["workers"].items() if "url" in worker}
        return from_tree(tree)

    def _range(self) -> tuple[int, int]:
        return (self.revisions[0].number, self.revisions[-1].number) if self.revisions else (0, 0)
