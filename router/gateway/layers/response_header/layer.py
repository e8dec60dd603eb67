from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from router.gateway.layers.response_header.settings import ResponseHeaderSettings
from router.placement.tickets import Ticket
from router.requests.layer import Layer, LayeredRequest, RouteFeature


class ResponseHeader(RouteFeature):
    """Adds a header to each response of a route, errors of the gateway included once the route is known."""

    name: ClassVar[str] = "response_header"
    settings: ClassVar[type[msgspec.Struct]] = ResponseHeaderSettings

    def __init__(self) -> None:
        self._lines: dict[str, bytes] = {}

    def switch_on(self, by_route: Mapping[str, Any]) -> None:
        self._lines = {route: f"{one.name}: {one.value}\r\n".encode("ascii") for route, one in by_route.items()}

    def layer(self, request: LayeredRequest) -> Layer:
        return ResponseHeaderLayer(request, self._lines)


class ResponseHeaderLayer(Layer):
    __slots__ = ("_lines", "_request")

    def __init__(self, request: LayeredRequest, lines: Mapping[str, bytes]) -> None:
        self._request = request
        self._lines = lines

    def response_lines(self, ticket: Ticket | None) -> bytes:
        request = self._request.request
        return b"" if request is None else self._lines.get(request.route, b"")
