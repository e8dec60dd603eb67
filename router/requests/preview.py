"""Turn bytes into the request that they would become, so that an operator can explain its decision in advance."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from router.errors import ErrorKind, RequestError
from router.placement.request import Request
from router.requests.identify.stage import IdentifyStage
from router.requests.incoming import IncomingRequest
from router.requests.layer import Features
from router.requests.ordered_queue import OrderedQueue
from router.requests.request_head import RequestHead
from router.requests.request_ids import RequestIds
from router.security.callers import Caller, Callers
from router.security.keys import ApiKeys


@dataclass(frozen=True, slots=True)
class PreviewedRequest:
    """A request that was not dispatched, and its body as a worker would get it.

    `turn` is its turn in its class, None without classes. `features` says what features would do. `fallbacks` yields it
    once for each fallback of its model.
    """

    request: Request
    fallbacks: Iterator[Request]
    body: bytes
    turn: Mapping[str, object] | None = None
    features: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Preview:
    """Parses and identifies requests as the public port does, without dispatching them."""

    identifier: IdentifyStage
    callers: Callers
    keys: ApiKeys | None
    request_ids: RequestIds
    time: Callable[[], float]
    classes: OrderedQueue | None = None
    features: Features | None = None

    async def request(
        self, path: str, headers: Mapping[str, str], body: bytes, key_name: str | None = None
    ) -> PreviewedRequest:
        """Return the request that these bytes would become if sent with the key named `key_name`.

        Raises:
            RequestError: as the public port would answer; INVALID_API_KEY if no key has that name.
        """
        head = _head(path, headers, len(body))
        route = self.identifier.paths.find(head.path)
        if route is None:
            raise RequestError(ErrorKind.PATH_NOT_FOUND, f"no such path: {head.path[:200]}")
        caller = self._caller(key_name)
        incoming = IncomingRequest(head, body, route, self.request_ids.of(head), caller, self.time())
        request = await self.identifier.preview(incoming)
        turn = None if self.classes is None else self.classes.explained(incoming, request)
        would = {} if self.features is None else self.features.previewed(incoming, incoming.body, request)
        return PreviewedRequest(request, self.identifier.models.instead(incoming, request), incoming.body, turn, would)

    def _caller(self, key_name: str | None) -> Caller:
        if key_name is None:
            return self.callers.anybody
        if self.keys is None or key_name not in self.keys.names:
            raise RequestError(ErrorKind.INVALID_API_KEY, f"no API key is named {key_name!r}")
        return self.callers.of(key_name)


def _head(path: str, headers: Mapping[str, str], body_bytes: int) -> RequestHead:
    fields = {name.lower().encode("latin-1"): value.encode("latin-1") for name, value in headers.items()}
    plain, _, query = path.partition("?")
    return RequestHead(
        method="POST",
        target=path.encode("latin-1", "replace"),
        path=plain,
        query=query,
        minor=1,
        lines=[],
        fields=fields,
        keep_alive=True,
        content_length=body_bytes,
        chunked=False,
        expects_continue=False,
        websocket=False,
    )
