"""A queue in front of placement, for requests that share a limit: those of one route."""

from __future__ import annotations

from typing import Protocol

from router.errors import RequestError
from router.requests.queues.request import WaitingRequest


class LimitedQueue(Protocol):
    """Admits requests up to its limit; the others wait in it. Requests that wait elsewhere count as its own, too."""

    @property
    def longest_wait_s(self) -> float | None:
        """The longest wait for a worker; None for the gateway's."""

    @property
    def open(self) -> bool:
        """Whether another may wait."""

    @property
    def limit_reached(self) -> str:
        """Why requests are not admitted."""

    def admit(self, *, waited: bool) -> bool:
        """Return whether the request may go to a worker, and count it. A request that has not waited goes last."""

    def end(self) -> None:
        """Give the place of an admitted request to the one that waits longest."""

    def wait(self, request: WaitingRequest) -> None:
        """Let a request wait here, to be offered when there is a place for it."""

    def waits_elsewhere(self, request: WaitingRequest) -> None: ...

    def leave(self, request: WaitingRequest) -> None: ...

    def refusal(self, why: str) -> RequestError:
        """Return the error for a request that may not wait, or has waited too long."""
