"""Lists in pages: ``limit`` bounds a page, and its ``next`` is the ``cursor`` of the following page.

A cursor names the last entry of a page, not a number of entries, so that entries which join meanwhile move no page.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec

from backends.foreign_json import read_json
from router.admin.http.parameters import Parameter, Query, TextQuery, TruthQuery
from router.admin.http.problems import AdminError, invalid

CURSOR = TextQuery("cursor", "`next` of the page before this one")
WATCH = TruthQuery("watch", "answer with a stream of server-sent events: the list, then what changes in it")

_One = TypeVar("_One")


def paged(default: int, most: int, summary: str, *further: Parameter, watch: bool = False) -> tuple[Parameter, ...]:
    """Return the query parameters of a list: the `limit` of a page, its cursor, `further` ones, and watch."""
    return Query("limit", default, most, summary), CURSOR, *further, *((WATCH,) if watch else ())


def encode_cursor(place: Any) -> str:
    """Return a cursor for `place`, which JSON can hold. Clients must not read it."""
    return urlsafe_b64encode(msgspec.json.encode(place)).decode().rstrip("=")


def decode_cursor(cursor: str, kind: type[_One]) -> _One:
    """Return the place that `encode_cursor` got.

    Raises:
        AdminError: 422, the text is no cursor of this list.
    """
    try:
        return read_json(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)), kind)
    except (ValueError, msgspec.DecodeError):
        raise invalid(f"cursor is {cursor[:40]!r}; write `next` of an answer, or leave it out") from None


def page_of(
    entries: Sequence[_One], id_of: Callable[[_One], str], limit: int, cursor: str | None
) -> tuple[Sequence[_One], str | None]:
    """Return the page after `cursor`, and the cursor of the next page, or None.

    Raises:
        AdminError: 422 for an unreadable cursor; 410 if the entry that it names has left the list.
    """
    start = 0 if cursor is None else _after(entries, id_of, decode_cursor(cursor, str))
    page = entries[start : start + limit]
    more = start + limit < len(entries)
    return page, encode_cursor(id_of(page[-1])) if more and page else None


def _after(entries: Sequence[_One], id_of: Callable[[_One], str], last: str) -> int:
    for index, entry in enumerate(entries):
        if id_of(entry) == last:
            return index + 1
    detail = f"{last[:40]!r}, after which the page would start, has left the list; begin again without cursor"
    raise AdminError(HTTPStatus.GONE, "cursor_expired", detail)
