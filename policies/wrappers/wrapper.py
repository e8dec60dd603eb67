from __future__ import annotations

from collections.abc import Callable, Mapping

from policies.view import LifecycleEvent, Policy


class Wrapper:
    """Pass events to the inner policy, and show its statistics.

    A subclass has `__getnewargs__`: a compiled class calls `__init__` when a copy of an instance is made.
    """

    def __init__(self, inner: Policy) -> None:
        self.inner = inner

    def pass_on(self, event: LifecycleEvent) -> None:
        observe: Callable[[LifecycleEvent], None] | None = getattr(self.inner, "observe", None)
        if observe is not None:
            observe(event)

    def statistics(self) -> dict[str, object]:
        shows: Callable[[], Mapping[str, object]] | None = getattr(self.inner, "statistics", None)
        return {} if shows is None else dict(shows())
