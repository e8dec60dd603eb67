"""A filter that gives what it passes on to the filter of another feature."""

from __future__ import annotations

from router.requests.outgoing import AnswerFilter


class ChainedFilter(AnswerFilter):
    """Judges each event of a stream. `inner` gets what passes, if there is one."""

    __slots__ = ("inner",)

    def __init__(self, inner: AnswerFilter | None) -> None:
        super().__init__()
        self.inner = inner

    def feed(self, content: bytes) -> bytes:
        if self.broken:
            return b""
        passed = AnswerFilter.feed(self, content)
        return passed if self.inner is None else self.inner.feed(passed)

    def rest(self) -> bytes:
        """Return the rest of a complete stream."""
        rest = b"" if self.broken else self._rest()
        return rest if self.inner is None else self.inner.feed(rest) + self.inner.rest()

    def _rest(self) -> bytes:
        """Return what is left of this filter's own stream."""
        pending = AnswerFilter.rest(self)
        return self._judged(pending) if pending else b""

    def of_body(self) -> AnswerFilter | None:
        return None if self.inner is None else self.inner.of_body()

    def tail(self) -> bytes:
        return (b"" if self.inner is None else self.inner.tail()) or self.taken

    def has(self, part: AnswerFilter | None) -> bool:
        return part is self or (self.inner is not None and self.inner.has(part))

    @property
    def keeps_ending(self) -> bool:
        return self.inner is None or self.inner.keeps_ending

    def _suspicious(self, content: bytes) -> bool:
        return True
