"""Read a large JSON body and find its members step by step, so that no step blocks the event loop.

msgspec skips a body in one call, which takes up to 2 ms per MB and cannot be interrupted. The steps together take about
as long for a body of long strings, and up to twenty times as long for a body of brackets.

The module does not validate. It finds the members of JSON that Python's parser accepts, and leaves the refusal of
invalid JSON to the worker. No object is made for a member's value; only its place is kept.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator
from itertools import accumulate
from typing import TypeAlias

from xxhash import xxh3_128

from backends.foreign_json import json_decoder
from router.errors import ErrorKind, RequestError
from router.tokenization.body.decoding import NOT_AN_OBJECT, long_digit_bytes

STEP_BYTES = 65_536
"""A step of this size takes at most about 4 ms."""
MAX_MEMBERS = 65_536
"""No request has this many fields."""
_MEMBERS_A_STEP = 64
_MAX_NAME_BYTES = 256
_FIRST_WINDOW_BYTES = 128
_PASSES = 4
"""How often pairs of brackets without brackets in them are removed, before the rest is walked."""

_SPACE = re.compile(rb"[ \t\r\n]*+")
_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_SCALAR = re.compile(rb'[^ \t\r\n"{}\[\]:,]*+')
_NO_BRACKETS = bytes(sorted(set(range(256)) - set(b"[]{}")))
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_decode_name = json_decoder(str).decode

Steps: TypeAlias = Generator[None, None, int]


class LargeObjectScan:
    """Find the members of one JSON object; run `steps` to the end.

    `spans` has start and end of each value whose name is in `names`; the last one if a name occurs twice. `others` says
    whether there are members with other names.
    """

    def __init__(self, body: bytes, names: Collection[str]) -> None:
        self._body = body
        self._size = len(body)
        self._names = names
        self.spans: dict[str, tuple[int, int]] = {}
        self.others = False

    def steps(self, start: int = 0) -> Steps:
        """Step through the object that begins at `start`; return where it ends.

        Raises:
            RequestError: INVALID_BODY if no object begins there or it has too many members; INVALID_JSON if a member is
                broken.
        """
        body = self._body
        place = yield from self._past(_SPACE, start)
        if body[place : place + 1] != b"{":
            raise RequestError(ErrorKind.INVALID_BODY, NOT_AN_OBJECT)
        place += 1
        for member in range(MAX_MEMBERS + 1):
            place = yield from self._past(_SPACE, place)
            if member and body[place : place + 1] == b",":
                place = yield from self._past(_SPACE, place + 1)
            if body[place : place + 1] == b"}":
                return place + 1
            name_end = yield from self._string(place)
            colon = yield from self._past(_SPACE, name_end)
            if body[colon : colon + 1] != b":":
                raise _broken(colon)
            value = yield from self._past(_SPACE, colon + 1)
            end = yield from self._value(value)
            self._keep(place, name_end, value, end)
            place = end
            if member % _MEMBERS_A_STEP == 0:
                yield
        raise RequestError(ErrorKind.INVALID_BODY, f"The request body has more than {MAX_MEMBERS} members.")

    def _keep(self, start: int, end: int, value: int, value_end: int) -> None:
        name = None
        if end - start <= _MAX_NAME_BYTES:
            try:
                name = _decode_name(self._body[start:end])
            except ValueError:
                pass  # a lone surrogate, or a mistake
        if name is not None and name in self._names:
            self.spans[name] = (value, value_end)
        else:
            self.others = True

    def _value(self, place: int) -> Steps:
        opening = self._body[place : place + 1]
        if opening == b'"':
            return (yield from self._string(place))
        if opening in (b"{", b"["):
            return (yield from self._nested(place + 1))
        end = yield from self._past(_SCALAR, place)
        if end == place:
            raise _broken(place)
        return end

    def _string(self, place: int) -> Steps:
        if self._body[place : place + 1] != b'"':
            raise _broken(place)
        end = yield from self._past(_STRING, place + 1)
        if self._body[end : end + 1] != b'"':
            raise _broken(end)
        return end + 1

    def _past(self, pattern: re.Pattern[bytes], place: int) -> Steps:
        """Return the place after the match of `pattern`; it matches anywhere, even nothing."""
        while True:
            window = min(place + STEP_BYTES, self._size)
            found = pattern.match(self._body, place, window)
            end = found.end() if found is not None else place
            if window == self._size or end < window - 1 or end == place:
                return end
            place = end
            yield

    def _nested(self, place: int) -> Steps:
        """Return the place after the array or object whose inside begins at `place`.

        The search moves window by window while a window cannot contain the end.
        """
        depth, in_string, window = 1, False, _FIRST_WINDOW_BYTES
        done = place
        while place < self._size:
            end = self._window_end(place, place + window)
            brackets, still_in_string = _outside_strings(self._body[place:end], in_string)
            net, lowest = _balance(brackets)
            if depth + lowest > 0:
                depth, in_string, place = depth + net, still_in_string, end
                window = min(4 * window, STEP_BYTES)
            elif window > _FIRST_WINDOW_BYTES:
                window = max(window // 8, _FIRST_WINDOW_BYTES)
            else:
                return self._closing(place, depth, in_string)
            if place - done >= STEP_BYTES:
                done = place
                yield
        raise _broken(self._size)

    def _window_end(self, start: int, end: int) -> int:
        """Return `end`, or one byte less where it would divide an escape."""
        if end >= self._size:
            return self._size
        window = self._body[start:end]
        return end - (len(window) - len(window.rstrip(b"\\"))) % 2

    def _closing(self, place: int, depth: int, in_string: bool) -> int:
        body = self._body
        while place < self._size:
            byte = body[place]
            if in_string:
                if byte == 0x5C:
                    place += 1
                in_string = byte != 0x22
            elif byte == 0x22:
                in_string = True
            else:
                depth += _STEPS.get(byte, 0)
                if not depth:
                    return place + 1
            place += 1
        raise _broken(place)


class BodySurvey:
    """Properties of a body; run `steps` to the end.

    `brackets` that open, `commas` and the bytes of `long_digits` (`long_digit_bytes`) are counted, inside strings too.
    `wide`: characters beyond ASCII occur. `digest` is the xxh3-128 of the body.
    """

    def __init__(self) -> None:
        self.brackets = 0
        self.commas = 0
        self.long_digits = 0
        self.wide = False
        self.digest = 0

    def steps(self, body: bytes) -> Generator[None, None, None]:
        digest = xxh3_128()
        for start in range(0, len(body), STEP_BYTES):
            piece = body[start : start + STEP_BYTES]
            digest.update(piece)
            self._look_at(piece)
            yield
        self.digest = digest.intdigest()

    def _look_at(self, piece: bytes) -> None:
        self.wide = self.wide or not piece.isascii() or b"\\u" in piece or piece.endswith(b"\\")
        self.brackets += piece.count(b"{") + piece.count(b"[")
        self.commas += piece.count(b",")
        self.long_digits += long_digit_bytes(piece)


def _outside_strings(piece: bytes, in_string: bool) -> tuple[bytes, bool]:
    """Return the brackets of `piece` outside strings, and whether it ends in a string. `piece` must not divide an
    escape."""
    if b'"' not in piece:
        return (b"" if in_string else piece.translate(None, _NO_BRACKETS)), in_string
    if b"\\" in piece:
        piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Without escapes every quote begins or ends a string, so every second part is outside of strings.
    parts = piece.split(b'"')
    outside = b"".join(parts[1 if in_string else 0 :: 2])
    return outside.translate(None, _NO_BRACKETS), in_string ^ (len(parts) % 2 == 0)


def _balance(brackets: bytes) -> tuple[int, int]:
    """Return the change of depth over `brackets`, and the lowest depth within them, relative to their start (at most
    0).
    """
    for _ in range(_PASSES):
        left = brackets.replace(b"[]", b"").replace(b"{}", b"")
        if len(left) == len(brackets):
            break
        brackets = left
    opened = brackets.lstrip(b"]}")
    closed = len(brackets) - len(opened)
    if b"]" not in opened and b"}" not in opened:
        return len(opened) - closed, -closed
    depths = list(accumulate(map(_STEPS.__getitem__, opened), initial=-closed))
    return depths[-1], min(depths)


def _broken(place: int) -> RequestError:
    return RequestError(ErrorKind.INVALID_JSON, f"The request body is not valid JSON: unexpected byte {place}.")
