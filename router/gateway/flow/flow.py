"""Follow one request through the transition table. Pure: events go in, effects come out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from router.gateway.flow.transitions import BY_STATE, Effect, Event, Guard, RequestState, Transition

_NOTHING: Final[tuple[Effect, ...]] = ()
_FIRST: Final = BY_STATE[RequestState.IDENTIFYING]
# A member of an enum is slow to look up.
_ALWAYS: Final = Guard.ALWAYS
_OTHERS_RUN: Final = Guard.OTHERS_RUN
_EARLIER_LEG: Final = Guard.EARLIER_LEG


class Flow:
    """The state of one request, its running attempts and its place in the plan.

    `attempts` are opaque handles; each has its own load reservation. `dropped` are the attempts that the last event
    took off the request: `Effect.CANCEL` concerns them. A plan has one or more legs, as a prefill worker and then a
    decode worker; only the last leg's answer goes to the client.
    """

    __slots__ = ("_rows", "attempts", "commented", "dropped", "leg", "legs", "row", "state")

    def __init__(self, legs: int = 1) -> None:
        self.state = RequestState.IDENTIFYING
        self._rows = _FIRST
        self.attempts: list[Any] = []
        self.dropped: Sequence[Any] = ()
        self.leg = 0
        self.legs = legs
        self.commented = False
        """SSE comments were written to the client."""
        self.row: Transition | None = None
        """The last transition."""

    def handle(self, event: Event, attempt: Any = None) -> tuple[Effect, ...]:
        """Take the event's transition; return the effects for the driver, in order.

        An event that the state does not expect has no effects, nor has one of an attempt that was dropped before.
        """
        attempts = self.attempts
        for row in self._rows[event]:
            guard = row.guard
            if guard is _ALWAYS:
                break
            if guard is _OTHERS_RUN:
                if len(attempts) > 1:
                    break
            elif guard is _EARLIER_LEG:
                if self.leg < self.legs - 1:
                    break
            elif self.commented:
                break
        else:
            return _NOTHING
        if row.sends:
            attempts.append(attempt)
        elif attempt is not None and attempt not in attempts:
            return _NOTHING
        if row.cancels and (attempt is None or len(attempts) > 1):
            self._drop(attempt)
        if row.releases:
            self.attempts.remove(attempt)
        if row.advances:
            self.leg += 1
        elif row.comments:
            self.commented = True
        self.state = row.to
        self._rows = row.then
        self.row = row
        return row.effects

    def _drop(self, but: Any) -> None:
        """Take all attempts but one off the request."""
        self.dropped = [each for each in self.attempts if each is not but]
        self.attempts = [] if but is None else [but]

    def take_dropped(self) -> Sequence[Any]:
        """Return `dropped`, and forget it."""
        dropped, self.dropped = self.dropped, ()
        return dropped
