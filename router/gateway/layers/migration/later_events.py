"""The events of a worker that goes on with an answer, as events of the stream that the client has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from backends.foreign_json import json_decoder
from router.requests.answers.sse import data_of

UNREADABLE: Final = "unreadable"
"""Why a leg is given up of which an event cannot be read: it could have ids, or text that is not known."""
UNREADABLE_ERRORS: Final = (msgspec.DecodeError, ValueError, OverflowError, RecursionError)
"""What reading an event, and writing it again, can raise."""
SHARED: Final = ("id", "created", "model", "object", "system_fingerprint", "service_tier")
"""What all events of a stream have in common."""
_EMPTY: Final = frozenset({b"null", b'""', b"[]", b"{}"})

Members = dict[str, msgspec.Raw]
_MEMBERS: Final = json_decoder(Members)
_OBJECT: Final = json_decoder(Members | None)
_CHOICES: Final = json_decoder(list[Members] | None)


class LaterEvents:
    """Reads events, and writes them with what they have in common with the stream that begins with `beginning`.

    `on_text` is called once, with the first event that goes to the client.
    """

    __slots__ = ("_on_text", "_shared")

    def __init__(self, beginning: bytes, on_text: Callable[[], None]) -> None:
        self._shared = shared_members(beginning)
        self._on_text: Callable[[], None] | None = on_text

    def written(self, members: Members, choices: list[Members]) -> bytes:
        if choices:
            members["choices"] = raw_json(choices)
        members |= {name: value for name, value in self._shared.items() if name in members}
        return b"data: %b\n\n" % msgspec.json.encode(members)

    def text_passes(self) -> None:
        on_text, self._on_text = self._on_text, None
        if on_text is not None:
            on_text()


def read(event: bytes) -> tuple[Members, list[Members]] | None:
    """Return the members of an event, and its choices; None for a comment and for the mark of the end.

    Raises:
        UNREADABLE_ERRORS: it is no event of a chat or a completion.
    """
    content = data_of(event).strip()
    if not content or content == b"[DONE]":
        return None
    members = _MEMBERS.decode(content)
    return members, (_CHOICES.decode(members["choices"]) or [] if "choices" in members else [])


def object_in(members: Members, name: str) -> Members:
    return _OBJECT.decode(members[name]) or {} if name in members else {}


def without_role(choice: Members) -> bool:
    """Take the role out of a delta, and return whether the event has nothing else.

    Some engines send the role in an event of its own, others beside the first text.
    """
    delta = object_in(choice, "delta")
    if "role" not in delta:
        return False
    del delta["role"]
    choice["delta"] = raw_json(delta)
    others = [choice[name] for name in ("finish_reason", "token_ids") if name in choice]
    return all(bytes(value) in _EMPTY for value in (*delta.values(), *others))


def shared_members(event: bytes) -> Members:
    """Return what all events of a stream have in common with one of them."""
    try:
        members = _MEMBERS.decode(data_of(event))
    except UNREADABLE_ERRORS:
        return {}
    return {name: members[name].copy() for name in SHARED if name in members}


def raw_json(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))
