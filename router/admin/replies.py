"""The answers of several processes to one operation, which their supervisor merges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from backends.foreign_json import read_json
from router.admin.http.problems import no_process

_One = TypeVar("_One")


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply of one process. Names in `headers` are in lower case."""

    status_code: int
    content: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_success(self) -> bool:
        return 200 <= self.status_code < 300

    @property
    def detail(self) -> str:
        """The detail of a problem document, or the status."""
        try:
            return read_json(self.content, _Problem).detail
        except (msgspec.DecodeError, UnicodeDecodeError):
            return f"status {self.status_code}"


class _Problem(msgspec.Struct):
    detail: str


Replies = Mapping[int, Reply]
"""By process, without processes that gave no answer."""


def documents_of(replies: Replies, kind: type[_One]) -> dict[int, _One]:
    """Return the documents of the processes that did what was asked.

    Raises:
        AdminError: 503, no process has answered.
    """
    if not replies:
        raise no_process()
    return {number: read_json(one.content, kind) for number, one in replies.items() if one.is_success}
