"""The answer of another worker from its beginning, behind the role that the client has of the first one."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from router.gateway.layers.migration.later_leg import CHOICES, MEMBERS, SHARED, raw_json, shared_members, without_role
from router.gateway.layers.migration.tracked_stream import FINISH
from router.requests.answers.sse import data_of
from router.requests.outgoing import AnswerFilter


class RestartedLeg(AnswerFilter):
    """Passes a whole answer on with the id of the `preamble`, and without its role. `inner` gets what passes."""

    __slots__ = ("_inner", "_on_text", "_shared")

    def __init__(self, preamble: bytes, inner: AnswerFilter | None, on_text: Callable[[], None]) -> None:
        super().__init__()
        self._shared = shared_members(preamble)
        self._inner = inner
        self._on_text: Callable[[], None] | None = on_text

    def feed(self, content: bytes) -> bytes:
        passed = AnswerFilter.feed(self, content)
        return passed if self._inner is None else self._inner.feed(passed)

    def rest(self) -> bytes:
        rest = AnswerFilter.rest(self)
        return rest if self._inner is None else self._inner.feed(rest) + self._inner.rest()

    def tail(self) -> bytes:
        return (b"" if self._inner is None else self._inner.tail()) or self.taken

    def has(self, part: AnswerFilter | None) -> bool:
        return part is self or (self._inner is not None and self._inner.has(part))

    def _suspicious(self, content: bytes) -> bool:
        return True

    def _judged(self, event: bytes) -> bytes:
        try:
            members = MEMBERS.decode(data_of(event))
            choices = CHOICES.decode(members["choices"]) if "choices" in members else []
            if choices and without_role(choices[0], event):
                return b""
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return event  # a comment, or the end
        if choices:
            members["choices"] = raw_json(choices)
            self._began()
        members |= {name: self._shared[name] for name in SHARED if name in members and name in self._shared}
        event = b"data: %b\n\n" % msgspec.json.encode(members)
        if self.taken or FINISH.search(event) is not None:
            self.taken += event
        return event

    def _began(self) -> None:
        on_text, self._on_text = self._on_text, None
        if on_text is not None:
            on_text()
