"""The numbers by which a worker's front end takes data-parallel ranks. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum


class RankForm(Enum):
    """How ``X-data-parallel-rank`` is written."""

    WITHIN = "within"
    """From 0 within the endpoint, as vLLM's Python front end takes it."""
    OWN = "own"
    """The numbers of the whole deployment, as vLLM's Rust front end takes it."""
    NONE = "none"
    """Not at all: the front end refuses requests with the header."""


class RankNumbers:
    """What one endpoint takes. Until `settled`, a refused request is repeated in the other forms.

    `engines` are the worker's own numbers, in the order of the candidates' ranks.
    """

    __slots__ = ("engines", "form", "settled")

    def __init__(self) -> None:
        self.engines: tuple[int, ...] = ()
        self.form = RankForm.WITHIN
        self.settled = False

    def learn(self, engines: tuple[int, ...]) -> None:
        """Store the numbers that a probe has read, if any. Other numbers may be taken in another form."""
        if engines and engines != self.engines:
            self.engines = engines
            self.forget()

    def forget(self) -> None:
        """Learn again, because another process answers at the endpoint."""
        self.form, self.settled = RankForm.WITHIN, False

    def sent(self, rank: int | None, form: RankForm) -> int | None:
        """Return the header's value for a candidate, or None for no header."""
        if rank is None or form is RankForm.NONE:
            return None
        return self.engines[rank] if form is RankForm.OWN and rank < len(self.engines) else rank

    def other_forms(self) -> Iterator[RankForm]:
        """Yield the forms to repeat a refused request in; none once the form is settled."""
        if not self.settled:
            if self._differ:
                yield RankForm.OWN
            yield RankForm.NONE

    def accepted(self, rank: int | None, form: RankForm) -> None:
        """Settle the form in which the worker took a request, unless its number is valid in another form, too."""
        if rank is None or self.settled:
            return
        number = self.sent(rank, form)
        other = range(len(self.engines)) if form is RankForm.OWN else self.engines
        if form is not self.form or not self._differ or number not in other:
            self.form, self.settled = form, True

    @property
    def _differ(self) -> bool:
        return self.engines != tuple(range(len(self.engines)))
