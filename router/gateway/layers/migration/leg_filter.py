"""The filters of the legs' answers: they keep the ids, hide them, and stop at what shows the death of a worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final

from router.gateway.layers.migration.eligibility import Ineligible
from router.gateway.layers.migration.tracked_stream import FINISH, TrackedStream
from router.requests.answers.sse import StreamError, judge_event
from router.requests.outgoing import AnswerFilter

MOST_HELD: Final = 16
"""More events than this pass without an end of a character that is known. Then the answer cannot go on elsewhere."""
_DONE: Final = (b"data: [DONE]", b"data:[DONE]")
ABORT = "abort"
ERROR_EVENT = "error_event"


class LegFilter(AnswerFilter):
    """Passes the events of one leg on to `inner`, the filter of another feature, if there is one.

    Events go to the client up to the end of a character whose ids are known: those after it wait for the next one. An
    error event and the finish reason ``abort`` are held back while the answer `may_go_on` elsewhere.
    """

    quick: ClassVar[bool] = True
    """Events of one token need no more than `TrackedStream.note_token`."""
    held_bytes: ClassVar[int] = 16_777_216  # the first event has all ids of the prompt
    __slots__ = ("_done", "_held", "_holds", "_inner", "_may_go_on", "stream")

    def __init__(
        self, stream: TrackedStream, inner: AnswerFilter | None, may_go_on: Callable[[], bool], *, holds: bool
    ) -> None:
        """`holds`: events without text wait, too, because the client sees more than text of them; after a death another
        worker writes them again."""
        super().__init__()
        self.stream = stream
        self._inner = inner
        self._may_go_on = may_go_on
        self._holds = holds
        self._held: list[bytes] = []
        self._done = False

    def feed(self, content: bytes) -> bytes:
        if self.broken:
            return b""
        passed: bytes | None = None
        if self.quick and not self._pending and not self._held and content.find(b"\n\n") == len(content) - 2:
            passed = self.stream.note_token(content)
        if passed is None:
            passed = AnswerFilter.feed(self, content)
        return passed if self._inner is None else self._inner.feed(passed)

    def rest(self) -> bytes:
        """Return the rest of a complete stream."""
        rest = b"" if self.broken else b"".join([*self._held, AnswerFilter.rest(self)])
        if self.whole and not self._done:
            rest, self._done = b"data: [DONE]\n\n", True  # the worker has died after its last token
        self._held = []
        return rest if self._inner is None else self._inner.feed(rest) + self._inner.rest()

    @property
    def whole(self) -> bool:
        """Whether the answer has its finish reason, and its usage is known or not asked for."""
        return self.stream.finished and not self.broken and (not self.stream.asks_usage or b'"usage":{' in self.taken)

    def tail(self) -> bytes:
        """Return the end of the answer, from the event with the finish reason on."""
        return (b"" if self._inner is None else self._inner.tail()) or self.taken

    def of_body(self) -> AnswerFilter | None:
        return None if self._inner is None else self._inner.of_body()

    def has(self, part: AnswerFilter | None) -> bool:
        return part is self or (self._inner is not None and self._inner.has(part))

    @property
    def keeps_ending(self) -> bool:
        return self._inner is None or self._inner.keeps_ending

    @property
    def pending(self) -> bytes:
        return b"".join([*self._held, bytes(self._pending)])

    @property
    def inner(self) -> AnswerFilter | None:
        return self._inner

    def _suspicious(self, content: bytes) -> bool:
        return True

    def _judged(self, event: bytes) -> bytes:
        if self.broken:
            return b""
        self._done = self._done or event.startswith(_DONE)
        if (death := death_in(event)) and self._may_go_on():
            self.broken = death
            return b""
        event = self._noted(event)
        stream = self.stream
        if stream.finished:
            self.taken += event
        waits = stream.lost is None and not stream.shown and _has_token(event) and (self._holds or stream.unclear)
        if waits:
            self._held.append(event)
            if len(self._held) < MOST_HELD:
                return b""
            stream.lose(Ineligible.SEAM)
            event = b""
        elif not self._held:
            return event
        held, self._held = self._held, []
        return b"".join([*held, event])

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
