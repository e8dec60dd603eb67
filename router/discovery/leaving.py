"""Workers that no source names any more: they are drained, and then they leave."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from router.control.state.desired_state import FoundWorker


class Leaving:
    """Decide when each of them leaves: once it has no request, or after `drain_s`."""

    def __init__(self, drain_s: float) -> None:
        self._drain_s = drain_s
        self._since_s: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._since_s)

    def among(
        self,
        named: Mapping[str, FoundWorker],
        before: Mapping[str, FoundWorker],
        idle: Callable[[str], bool],
        now_s: float,
    ) -> dict[str, FoundWorker]:
        """Return the workers of `before` that sources do not name now and that are still leaving.

        `idle` says whether a worker has no request. It is asked about workers that get no new ones.
        """
        found: dict[str, FoundWorker] = {}
        for name, one in before.items():
            if name in named:
                continue
            since_s = self._since_s.get(name, now_s)
            if not (one.leaving and (idle(name) or now_s - since_s >= self._drain_s)):
                found[name] = replace(one, leaving=True)
                self._since_s[name] = since_s
        self._since_s = {name: since_s for name, since_s in self._since_s.items() if name in found}
        return found
