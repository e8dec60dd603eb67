"""The filters of the legs' answers: they keep the ids, hide them, and stop at what shows the death of a worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final

from router.gateway.layers.migration.chained_filter import ChainedFilter
from router.gateway.layers.migration.eligibility import Ineligible
from router.gateway.layers.migration.tracked_stream import FINISH, TrackedStream
from router.requests.answers.sse import StreamError, judge_event
from router.requests.outgoing import AnswerFilter

MOST_HELD: Final = 16
"""More events than this pass without an end of a character that is known. Then the answer cannot go on elsewhere."""
_DONE: Final = (b"data: [DONE]", b"data:[DONE]")
ABORT = "abort"
ERROR_EVENT = "error_event"


class LegFilter(ChainedFilter):
    """Passes the events of one leg on.

    Events go to the client up to the end of a character whose ids are known: those after it wait for the next one. An
    error event and the finish reason ``abort`` are held back while the answer `may_go_on` elsewhere.
    """

    held_bytes: ClassVar[int] = 16_777_216  # the first event has all ids of the prompt
    __slots__ = ("_done", "_held", "_may_go_on", "holds", "stream")

    def __init__(
        self, stream: TrackedStream, inner: AnswerFilter | None, may_go_on: Callable[[], bool], *, holds: bool
    ) -> None:
        """`holds`: events without text wait, too, because the client sees more than text of them; after a death another
        worker writes them again."""
        super().__init__(inner)
        self.stream = stream
        self._may_go_on = may_go_on
        self.holds = holds
        self._held: list[bytes] = []
        self._done = False

    def quick(self, content: bytes) -> bytes | None:
        if self._pending or self._held or self.broken:
            return None
        passed = self.stream.note_token(content)
        return passed if passed is None or self.inner is None else self.inner.feed(passed)

    def _rest(self) -> bytes:
        pending = AnswerFilter.rest(self)
        if self.whole and not self._done:  # the worker has died after its last token
            self._done = True
            return b"data: [DONE]\n\n"
        held, self._held = self._held, []
        return b"".join([*held, self._passed(pending) if pending else b""])

    def _too_long(self) -> bytes:
        self.stream.lose(Ineligible.LENGTH)
        held, self._held = self._held, []
        return b"".join([*held, AnswerFilter.rest(self)])

    @property
    def whole(self) -> bool:
        """Whether the answer has its finish reason, and its usage is known or not asked for."""
        return self.stream.finished and not self.broken and (not self.stream.asks_usage or b'"usage":{' in self.taken)

    @property
    def pending(self) -> bytes:
        return b"".join([*self._held, bytes(self._pending)])

    def _judged(self, event: bytes) -> bytes:
        if self.broken:
            return b""
        if (death := death_in(event)) and self._may_go_on():
            self.broken = death
            return b""
        event = self._passed(event)
        stream = self.stream
        waits = stream.lost is None and not stream.shown and _has_token(event) and (self.holds or stream.unclear)
        if waits:
            self._held.append(event)
            stream.has_role = stream.has_role and b'"role"' not in event
            if len(self._held) < MOST_HELD:
                return b""
            stream.lose(Ineligible.SEAM)
            event = b""
        elif not self._held:
            return event
        held, self._held, stream.has_role = self._held, [], True
        return b"".join([*held, event])

    def _passed(self, event: bytes) -> bytes:
        self._done = self._done or event.startswith(_DONE)
        event = self._noted(event)
        if self.stream.finished:
            self.taken += event
        return event

    def _noted(self, event: bytes) -> bytes:
        """Return the event as the client gets it."""
        return self.stream.note(event)


def death_in(event: bytes) -> str:
    """Return what an event says of the death of its worker; empty if it says nothing."""
    finish = FINISH.search(event)
    if finish is not None:
        return ABORT if finish[1] == b"abort" else ""
    if b'"error"' in event and b'"choices"' not in event and isinstance(judge_event(event), StreamError):
        return ERROR_EVENT
    return ""


def _has_token(event: bytes) -> bool:
    """Return whether an event has the id of a token, or had it before it was hidden."""
    return b'"choices"' in event and b'"token_ids"' in event
