"""What became of each item of a foreign configuration, in plain words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Became(Enum):
    """What an item has here. The value is the heading of such items."""

    SETTING = "Became settings"
    NEAREST = "Nearest, not the same"
    IMPLIED = "Needs no setting"
    NOTHING = "No counterpart"


@dataclass(frozen=True, slots=True)
class Note:
    """`item` names the plugin or key, with its place in the file."""

    became: Became
    item: str
    text: str


@dataclass(slots=True)
class Findings:
    """The settings found so far, nested as in a file, and the notes in order."""

    settings: dict[str, Any] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    def set(self, path: str, value: Any) -> None:
        *sections, name = path.split(".")
        here = self.settings
        for section in sections:
            here = here.setdefault(section, {})
        here[name] = value

    def note(self, became: Became, item: str, text: str) -> None:
        self.notes.append(Note(became, item, text))

    def of(self, became: Became) -> Iterator[Note]:
        return (note for note in self.notes if note.became is became)
