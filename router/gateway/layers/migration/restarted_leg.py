"""The answer of another worker from its beginning, behind the role that the client has of the first one."""

from __future__ import annotations

from collections.abc import Callable

from router.gateway.layers.migration.chained_filter import ChainedFilter
from router.gateway.layers.migration.later_events import (
    UNREADABLE,
    UNREADABLE_ERRORS,
    LaterEvents,
    read,
    without_role,
)
from router.gateway.layers.migration.tracked_stream import FINISH
from router.requests.outgoing import AnswerFilter


class RestartedLeg(ChainedFilter):
    """Passes a whole answer on with the id of the `preamble`, and without its role."""

    __slots__ = ("_events",)

    def __init__(self, preamble: bytes, inner: AnswerFilter | None, on_text: Callable[[], None]) -> None:
        super().__init__(inner)
        self._events = LaterEvents(preamble, on_text)

    def _judged(self, event: bytes) -> bytes:
        if self.broken:
            return b""
        try:
            event = self._joined(event)
        except UNREADABLE_ERRORS:
            self.broken = UNREADABLE
            return b""
        if self.taken or FINISH.search(event) is not None:
            self.taken += event
        return event

    def _joined(self, event: bytes) -> bytes:
        found = read(event)
        if found is None:
            return event
        members, choices = found
        if choices and without_role(choices[0]):
            return b""
        event = self._events.written(members, choices)
        if choices:
            self._events.text_passes()
        return event
