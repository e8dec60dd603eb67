"""Adds a member to a JSON body by splicing bytes, without decoding and encoding the rest.

A quoted name followed by a colon cannot occur inside a JSON string, because quotes are escaped there. So if it occurs
once, it is the member that the parser found. If it occurs more often, or names may be spelled with escapes, or the
parser found something else, the body is left unchanged.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Any, Final, NamedTuple

from router.errors import ErrorKind, RequestError

_OBJECT = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\r\n]*\{[ \t\r\n]*(\}?)")
_SPACE = b" \t\r\n"
_OPENING = re.compile(rb"[ \t\r\n]*\{[ \t\r\n]*(?=[\"}])")
_SCALAR = rb'"%s"[ \t\r\n]*:[ \t\r\n]*([^\s,}\]{\["]++|"(?:[^"\\]++|\\.)*+")'
_MEMBER = rb'"%s"[ \t\r\n]*:[ \t\r\n]*'
_ESCAPED = re.compile(rb"\\u00[4-7]")
"""A letter that needs no escape. No encoder writes one in this way."""


VOUCHED: Final = frozenset(
    {b"content-digest", b"repr-digest", b"digest", b"content-md5", b"signature", b"content-encoding"}
)
"""Request headers that depend on the exact bytes of the body."""
MAX_SEARCHED_BYTES: Final = 1_048_576
"""Larger bodies are not searched for the place of a splice, because that takes about 1 ms per MB."""


class Splice(NamedTuple):
    """Replace ``body[start:end]`` by `text`."""

    start: int
    end: int
    text: bytes


def set_inner(body: bytes, outer: str, inner: str, value: bytes, present: Any) -> Splice | None:
    """Return the splice that sets ``{outer: {inner: value}}`` in `body`, a JSON object.

    `present` is the current value of `outer`. Return None if no single splice is certain to be correct.
    """
    opening = _OPENING.match(body)
    if opening is None or escapes_letters(body):
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


def escapes_letters(body: bytes) -> bool:
    """Return whether names in `body` may be spelled with escapes, so that a search does not find all of them."""
    return b"\\u00" in body and _ESCAPED.search(body) is not None


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


def appended(body: bytes, name: bytes, value: bytes) -> Splice | None:
    """Return the splice that adds a last member to `body`, a valid JSON object; None if it is no object in UTF-8.

    It takes the place of all earlier members of that name, in any spelling (see `with_member`).
    """
    opening, end = _OBJECT.match(body), body.rfind(b"}")
    if opening is None or not is_object(body):
        return None
    return Splice(end, end, b'%b"%b":%b' % (b"" if opening[1] else b",", name, value))


def salted(body: bytes, salt: str) -> bytes:
    """Return `body`, a valid JSON object, with `cache_salt` as its last member.

    Raises:
        RequestError: INVALID_BODY; the body is no JSON object in UTF-8.
    """
    return with_member(body, b"cache_salt", b'"%b"' % salt.encode("ascii"))


def with_member(body: bytes, name: bytes, value: bytes) -> bytes:
    """Return `body`, a valid JSON object, with a further member at its end. `value` is JSON.

    vLLM's parsers (Python's json, pydantic) use the last of several members of one name, in any spelling. The last
    brace of a valid body closes the object.

    Raises:
        RequestError: INVALID_BODY; the body is no JSON object in UTF-8.
    """
    splice = appended(body, name, value)
    if splice is None:
        message = f"The request body must be a JSON object in UTF-8, because the gateway sets its {name.decode()}."
        raise RequestError(ErrorKind.INVALID_BODY, message)
    return spliced(body, splice)


def is_object(body: bytes) -> bool:
    """Return whether a valid JSON body is an object in UTF-8, so that a member can be added to it."""
    return _OBJECT.match(body) is not None and not body[body.rfind(b"}") + 1 :].strip(_SPACE)


def spliced(body: bytes, splice: Splice) -> bytes:
    whole = memoryview(body)
    return b"".join([whole[: splice.start], splice.text, whole[splice.end :]])
