"""Know the first bytes of a chat's body again, so that only the messages after them are decoded.

Bytes that end with a message decide all that a parser knows at that place. So the body of a next turn, which begins
with the bytes of an earlier body, has its messages too. What is kept of them is their number and the running hash that
`router.tokenization.turns` makes of them. The rest of the body is decoded behind its own first bytes, the first message
included: nothing is kept of other fields, and one that occurs twice counts as in the whole body.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from xxhash import xxh3_128_intdigest

from backends.foreign_json import json_decoder
from router.tokenization.body.fields import BodyFields, MessagesSpan
from router.tokenization.byte_bounded_lru import ByteBoundedLru

START_BYTES = 200
"""Memory of a `BodyStart` and its key, rounded up."""
MOST_NEW_MESSAGES = 4
"""Messages, counted from the end of a body, at whose start known bytes are looked for."""
MOST_NEW_BYTES = 65_536
"""Bytes at the end of a body in which these messages are looked for."""
LEARN_EVERY_MESSAGES = 16
"""A conversation whose start was dropped is learned again after as many messages at most."""
STAND_IN = 7_021_795_563_084_621_903
"""Replaces the known messages but the first. JSON has one spelling of it, and a body that contains it is not known."""
HASH_SEED: Final = secrets.randbits(64)
"""Of this process, so that no caller can make two texts with the same hash."""
_STAND_IN = str(STAND_IN).encode()
_SPACE = b" \t\r\n"
_BEGINNING_BYTES = 64

_decode = json_decoder(BodyFields).decode
_find_messages = json_decoder(MessagesSpan).decode
_elements = json_decoder(list[msgspec.Raw]).decode


class BodyStart(msgspec.Struct, frozen=True, gc=False):
    """The bytes of a body up to the end of message number `messages`.

    `array` is the place of the bracket before the messages, `first_end` the place after the first message, and `key`
    the running hash of the messages.
    """

    array: int
    first_end: int
    messages: int
    key: int


class KnownStart(msgspec.Struct, frozen=True, gc=False):
    """`start` is known of this body, up to `place`. `shortened` is the body without the messages between the first and
    there, with `STAND_IN` in their place.
    """

    start: BodyStart
    place: int
    shortened: bytes


class KnownBodies:
    """The starts of bodies, up to `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self._starts: ByteBoundedLru[int, BodyStart] = ByteBoundedLru(max_bytes)

    def search(self, body: bytes) -> KnownStart | None:
        """Return the longest known start of `body`; None if there is none."""
        if not len(self._starts):
            return None
        for place in _message_ends(body):
            start = self._starts.get(_digest_to(body, place))
            if start is not None:
                shortened = b"%b,%b%b" % (body[: start.first_end], _STAND_IN, body[place:])
                return KnownStart(start, place, shortened) if shortened.count(_STAND_IN) == 1 else None
        return None

    def learn(self, body: bytes, keys: Sequence[int]) -> None:
        """Keep where the last message and the one before it end in a valid `body`. `keys` has a running hash for each
        message.
        """
        ends = _ends(body)
        if ends is None or len(keys) < len(ends.last):
            return
        for place, messages in zip(ends.last, (len(keys), len(keys) - 1), strict=True):
            start = BodyStart(ends.array, ends.first, messages, keys[messages - 1])
            self._starts.put(_digest_to(body, place), start, START_BYTES)

    def extend(self, body: bytes, known: KnownStart, keys: Sequence[int]) -> None:
        """Keep where the last message of a body with a known start ends. `keys` has the running hash of the known
        messages, and one for each further message.
        """
        if len(keys) < 2:
            return
        start = known.start
        end = start.array + _length(bytes(_find_messages(known.shortened).messages))
        place = len(body) - len(known.shortened) + end
        grown = BodyStart(start.array, start.first_end, start.messages + len(keys) - 1, keys[-1])
        self._starts.put(_digest_to(body, place), grown, START_BYTES)

    def statistics(self) -> dict[str, int]:
        return self._starts.statistics()


def new_messages(fields: BodyFields) -> list[object] | None:
    """Return the messages of a shortened body, without its stand-in; None if they are not those of the known start.

    A body with two fields `messages` has those of the second.
    """
    messages = fields.messages
    if type(messages) is not list or len(messages) < 2 or type(messages[1]) is not int or messages[1] != STAND_IN:
        return None
    del messages[1]
    return messages


def _digest_to(body: bytes, place: int) -> int:
    return xxh3_128_intdigest(memoryview(body)[:place], HASH_SEED)


def _message_ends(body: bytes) -> Iterator[int]:
    least, end = max(0, len(body) - MOST_NEW_BYTES), len(body)
    for _ in range(MOST_NEW_MESSAGES):
        role = body.rfind(b'"role"', least, end)
        end = body.rfind(b"}", least, role) if role > 0 else -1
        if end < 0:
            break
        yield end + 1


class _Ends(msgspec.Struct, frozen=True, gc=False):
    """Places in a body: its array of messages, the end of the first message, and of the last two from the last on."""

    array: int
    first: int
    last: tuple[int, int]


def _ends(body: bytes) -> _Ends | None:
    """Return the places of the messages in a valid body of at least two; None if they are not found with certainty."""
    if _STAND_IN in body:
        return None
    value = bytes(_find_messages(body).messages)
    array = body.find(value[:_BEGINNING_BYTES])
    if not value.startswith(b"[") or not body.startswith(value, array):
        return None
    try:  # Behind a stand-in that occurs nowhere else, what opens here is the array of messages.
        if _decode(b"%b%b]}" % (body[: array + 1], _STAND_IN)).messages != [STAND_IN]:
            return None
    except (ValueError, RecursionError):
        return None
    elements = _elements(value)
    first, last = bytes(elements[0]), bytes(elements[-1])
    last_end = _length(value)
    before = value[: last_end - len(last)].rstrip(_SPACE)
    first_start = len(value) - len(value[1:].lstrip(_SPACE))
    before_end = len(before[:-1].rstrip(_SPACE))
    return _Ends(array, array + first_start + len(first), (array + last_end, array + before_end))


def _length(array: bytes) -> int:
    """Return the length of a JSON array up to the end of its last element."""
    return len(array[:-1].rstrip(_SPACE))
