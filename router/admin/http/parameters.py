"""Query parameters of an operation: how each is read, and how the OpenAPI document and the reference page describe it.

`read` returns the value of a text, where None stands for a parameter that is not given, or raises 422.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from router.admin.http.problems import invalid

_SHOWN_CHARACTERS = 40
"""The part of a refused value that the answer repeats."""


@dataclass(frozen=True, slots=True)
class Query:
    """A whole number from 1 to `most`. The default may be 0: the operation does without."""

    name: str
    default: int
    most: int
    summary: str

    @property
    def values(self) -> str:
        return f"1 to {self.most}" + (f", default {self.default}" if self.default else "")

    def read(self, text: str | None) -> int:
        if text is None:
            return self.default
        if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:12]) <= self.most:
            raise invalid(f"{self.name} is {_shown(text)}; write a whole number from 1 to {self.most}")
        return int(text)

    def schema(self) -> dict[str, Any]:
        default = {"default": self.default} if self.default else {}
        return {"type": "integer", "minimum": 1, "maximum": self.most, **default}


@dataclass(frozen=True, slots=True)
class TextQuery:
    """A text that is not empty; one of `choices`, if there are any. Its value is None if it is not given."""

    name: str
    summary: str
    choices: tuple[str, ...] = ()

    @property
    def values(self) -> str:
        return " or ".join(f"`{choice}`" for choice in self.choices) or "text"

    def read(self, text: str | None) -> str | None:
        if text is None or (text in self.choices if self.choices else text):
            return text
        fix = f"write {' or '.join(self.choices)}" if self.choices else "write a value, or leave it out"
        raise invalid(f"{self.name} is {_shown(text)}; {fix}")

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.choices)} if self.choices else {"type": "string", "minLength": 1}


@dataclass(frozen=True, slots=True)
class TruthQuery:
    """true or false; false if it is not given, true if it is given without a value."""

    name: str
    summary: str

    @property
    def values(self) -> str:
        return "`true` or `false`, default `false`"

    def read(self, text: str | None) -> bool:
        if text in (None, "", "true", "false"):
            return text in ("", "true")
        raise invalid(f"{self.name} is {_shown(text or '')}; write true or false")

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean", "default": False}


Parameter: TypeAlias = Query | TextQuery | TruthQuery


def _shown(text: str) -> str:
    return repr(text[:_SHOWN_CHARACTERS])
