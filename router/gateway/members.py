"""Adding a member to a JSON body by splicing bytes: nothing else in it moves, nothing is written anew.

A quoted name followed by a colon cannot stand inside a JSON string, where its quotes are escaped; so the one place
where it stands is the member that the parser has found. Where it stands more than once, or not as the parser read it,
the body is left alone.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Any, NamedTuple

_OPENING = re.compile(rb"[ \t\r\n]*\{[ \t\r\n]*(?=[\"}])")
_SCALAR = rb'"%s"[ \t\r\n]*:[ \t\r\n]*([^\s,}\]{\["]++|"(?:[^"\\]++|\\.)*+")'
_MEMBER = rb'"%s"[ \t\r\n]*:[ \t\r\n]*'


class Splice(NamedTuple):
    """Replace ``body[start:end]`` by `text`."""

    start: int
    end: int
    text: bytes


def set_inner(body: bytes, outer: str, inner: str, value: bytes, present: Any) -> Splice | None:
    """Make `body`, a JSON object, have ``{outer: {inner: value}}``; `present` is the value it has there now.

    None where that cannot be done for certain by one splice.
    """
    opening = _OPENING.match(body)
    if opening is None:
        return None
    places = list(islice(re.finditer(_MEMBER % outer.encode("ascii"), body), 2))
    member = b'"%s":%s' % (inner.encode("ascii"), value)
    if present is None:
        if places:
            return None
        comma = b"" if body[opening.end() : opening.end() + 1] == b"}" else b","
        return Splice(opening.end(), opening.end(), b'"%s":{%s}%s' % (outer.encode("ascii"), member, comma))
    if not isinstance(present, dict) or len(places) != 1:
        return None
    return _within(body, places[0].end(), inner, member, value, present)


def _within(body: bytes, start: int, inner: str, member: bytes, value: bytes, present: dict[str, Any]) -> Splice | None:
    opening = _OPENING.match(body, start)
    if opening is None:
        return None
    if inner not in present:
        return Splice(opening.end(), opening.end(), member + b"," if present else member)
    if any(isinstance(value, dict | list) for value in present.values()):
        return None
    found = re.compile(_SCALAR % inner.encode("ascii")).search(body, start)
    if found is None or found.end() > body.find(b"}", start):
        return None
    return Splice(found.start(1), found.end(1), value)


def spliced(body: bytes, splices: list[Splice]) -> bytes:
    """`body` with all of them made; they must not overlap."""
    pieces: list[bytes] = []
    at = 0
    for splice in sorted(splices):
        pieces += body[at : splice.start], splice.text
        at = splice.end
    return b"".join([*pieces, body[at:]])
