"""Put the admin API's changes over the settings that the gateway was started with, or has reloaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET

from router.control.state.desired_state import LiveSettings, from_tree, tree_of
from router.control.state.differences import WHOLE, Path, SettingDifference, applied, differences, path_text, value_at


class Conflict(msgspec.Struct, frozen=True, omit_defaults=True):
    """An item that the API had changed and that a reload changed too. The reload wins."""

    path: Path
    api: Any = UNSET
    file: Any = UNSET

    def __str__(self) -> str:
        """Return the item and both values. Secrets are not shown."""
        values = str(SettingDifference(self.path, self.api, self.file)).removeprefix(f"{path_text(self.path)}: ")
        return f"{path_text(self.path)}: changed by the admin API and then in the settings, which win ({values})"


@dataclass(frozen=True, slots=True)
class Merged:
    """The settings after a reload, and the API's changes that it replaced."""

    settings: LiveSettings
    conflicts: tuple[Conflict, ...]


def api_changes(file: LiveSettings, desired: LiveSettings) -> tuple[SettingDifference, ...]:
    return differences(tree_of(file), tree_of(desired), whole=WHOLE)


def merge(file: LiveSettings, changes: Sequence[SettingDifference]) -> LiveSettings:
    return from_tree(applied(tree_of(file), changes))


def reloaded(desired: LiveSettings, before: LiveSettings, after: LiveSettings) -> Merged:
    """Return the desired settings after the file changed from `before` to `after`.

    The API's changes stay, except those of items that the file changed itself. An item that contains another one
    counts as the same item.
    """
    by_file = [change.path for change in api_changes(before, after)]
    changes, new = api_changes(before, desired), tree_of(after)
    kept = [change for change in changes if not any(_overlap(change.path, path) for path in by_file)]
    lost = [change for change in changes if change not in kept and value_at(new, change.path) != change.after]
    conflicts = tuple(Conflict(change.path, change.after, value_at(new, change.path)) for change in lost)
    return Merged(merge(after, kept), conflicts)


def _overlap(one: Path, other: Path) -> bool:
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]
