"""The counters of placement, by the names of the catalogue."""

from __future__ import annotations

from typing import Final

from router.metrics.registry import Registry


class PlacementMetrics:
    """What the parts of placement count. A worker's label is the id of its candidate."""

    def __init__(self, registry: Registry) -> None:
        counter = registry.counter
        self.decisions: Final = counter("decisions")
        self.route_decisions: Final = counter("route_decisions")
        self.prompt_tokens: Final = counter("prompt_tokens")
        self.retries_refused: Final = counter("retry_budget_exhausted")
        self.attempt_failures: Final = counter("attempt_failures")
        self.cached_tokens: Final = counter("cached_tokens")
        self.comparisons: Final = counter("cached_comparisons")
        self.differences: Final = counter("cached_differences")
        self.misrouted: Final = counter("misrouted_requests")
