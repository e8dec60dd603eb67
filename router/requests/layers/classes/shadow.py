"""Classes in a shadow: what would have become of each request is counted, and nothing is held or refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from router.config.model import Config, RouteConfig
from router.errors import RequestError
from router.metrics.instruments import Reading
from router.placement.admission.shadow import ShadowAdmission
from router.placement.core import DecisionCore
from router.placement.fleet.fleet import Fleet
from router.placement.tickets import Held, Queued, Ticket
from router.requests.layer import Feature, Layer, LayeredRequest, RequestEnd
from router.requests.layers.classes.claims import Claims
from router.requests.layers.classes.levels import ClassLevels


class ClassShadow(Feature):
    def __init__(self, config: Config, core: DecisionCore, fleet: Fleet) -> None:
        self.claims = Claims(config)
        classes = list(self.claims.classes.values())
        self.admission = ShadowAdmission(classes, core.dispatcher, fleet, core.loads, core.tickets)
        self.levels = ClassLevels(classes)

    def adopt(self, routes: Sequence[RouteConfig]) -> bool:
        self.claims.adopt(routes)
        return True

    def layer(self, request: LayeredRequest) -> Layer | None:
        return ShadowLayer(self, request) if request.route.prefills else None

    def readings(self) -> Iterable[Reading]:
        for (name, outcome), requests in self.admission.counts.items():
            yield "warmroute_class_shadow_requests", (name, outcome), requests
        yield from self.levels.readings()

    def statistics(self) -> Mapping[str, Any]:
        return {"classes_shadow": {"waiting": self.admission.statistics()}}

    def close(self) -> None:
        self.admission.close()


class ShadowLayer(Layer):
    __slots__ = ("_feature", "_first", "_request")

    def __init__(self, feature: ClassShadow, request: LayeredRequest) -> None:
        self._feature = feature
        self._request = request
        self._first: Ticket | None = None

    def response_lines(self, ticket: Ticket | None) -> bytes:
        self._first = self._first or ticket
        return b""

    def decided(self, placed: Ticket | Queued | Held | RequestError, now_s: float, took_s: float) -> None:
        """Judge the first placement; a retry has had its turn."""
        request = self._request
        if not isinstance(placed, Ticket) or request.claim is not None or placed.request.pinned is not None:
            return
        request.claim = self._feature.claims.of(request, placed.request.route)
        self._feature.admission.judge(placed, request.claim, now_s)

    def ended(self, end: RequestEnd) -> None:
        self._feature.levels.ended(self._request, end, self._first)
