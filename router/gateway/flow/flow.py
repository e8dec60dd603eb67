"""Follow one request through the transition table. Pure: it takes events and returns effects."""

from __future__ import annotations

from typing import Any, Final

from router.gateway.flow.transitions import BY_STATE, Effect, Event, Guard, RequestState, Transition

_NOTHING: Final[tuple[Effect, ...]] = ()
# Module constants, because looking up a member of an enum is slow.
_ALWAYS: Final = Guard.ALWAYS
_EARLIER_LEG: Final = Guard.EARLIER_LEG
_IDENTIFYING: Final = RequestState.IDENTIFYING
_FIRST: Final = BY_STATE[_IDENTIFYING]


class Flow:
    """The state of one request, its running attempt and its place in the plan.

    `attempt` is an opaque handle with a load reservation; None while none runs. A plan has one or more legs, such as a
    prefill worker and then a decode worker. Only the last leg's answer goes to the client.
    """

    __slots__ = ("_dropped", "_rows", "attempt", "commented", "leg", "legs", "row", "state")

    def __init__(self, legs: int = 1) -> None:
        self.state = _IDENTIFYING
        self._rows = _FIRST
        self.attempt: Any = None
        self._dropped: Any = None
        self.leg = 0
        self.legs = legs
        self.commented = False
        """SSE comments were written to the client."""
        self.row: Transition | None = None
        """The last transition."""

    def handle(self, event: Event, attempt: Any = None) -> tuple[Effect, ...]:
        """Take the event's transition; return the effects for the driver, in order.

        The result is empty for an event that the state does not expect, and for an attempt that no longer runs.
        """
        for row in self._rows[event]:
            guard = row.guard
            if guard is _ALWAYS:
                break
            if guard is _EARLIER_LEG:
                if self.leg < self.legs - 1:
                    break
            elif self.commented:
                break
        else:
            return _NOTHING
        if row.sends:
            self.attempt = attempt
        elif attempt is not None and attempt is not self.attempt:
            return _NOTHING
        elif row.cancels:
            self._dropped, self.attempt = self.attempt, None
        elif row.releases:
            self.attempt = None
        if row.advances:
            self.leg += 1
        elif row.comments:
            self.commented = True
        self.state = row.to
        self._rows = row.then
        self.row = row
        return row.effects

    @property
    def in_earlier_leg(self) -> bool:
        return self.leg < self.legs - 1

    def skip_to_last_leg(self) -> None:
        """Give up the plan's earlier legs: the next attempt serves the whole request."""
        self.leg = self.legs - 1

    def take_dropped(self) -> Any:
        """Return the attempt that `Effect.CANCEL` cancels, once."""
        dropped, self._dropped = self._dropped, None
        return dropped
