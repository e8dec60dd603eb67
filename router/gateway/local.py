"""Answer requests without a worker: health, version, the fleet's models, preflights and refusals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

import msgspec

from backends.foreign_json import read_json
from backends.worker import ServedModel
from router.config.version import version
from router.errors import ErrorKind, RequestError
from router.gateway.drain_state import DrainState
from router.gateway.http.client.access_log import AccessLog
from router.gateway.http.client.cors import Cors
from router.gateway.http.upstream.headers import connection_line, own_reply, retry_after
from router.placement.fleet.fleet import Fleet
from router.requests.answers.error_format import error_body
from router.requests.metrics import GatewayMetrics
from router.requests.model_names import ModelNames
from router.requests.request_head import RequestHead
from router.requests.request_ids import RequestIds
from router.requests.routes import Route, RouteTable
from router.security.keys import ApiKeys, let_in

Answer = tuple[int, dict[str, Any]]
"""Status and JSON body."""

_GET = ("GET", "HEAD")
_MODEL = "/v1/models/"
_OPEN = frozenset({"/health", "/ping", "/livez", "/livez/engine", "/readyz", "/version"})
"""Paths that need no API key."""
_ENCODED = "the gateway decodes no Content-Encoding; send the body without one"


class MethodNotAllowed(RequestError):
    """Status 405, with the methods that are allowed."""

    def __init__(self, method: str, methods: tuple[str, ...]) -> None:
        super().__init__(ErrorKind.METHOD_NOT_ALLOWED, f"{method} is not allowed here; use {', '.join(methods)}")
        self.methods = methods


class LocalAnswers:
    """Finds the route of a request, and writes the answers that need no worker.

    `further` has answers to GET by path; they replace the gateway's own.
    """

    def __init__(
        self,
        metrics: GatewayMetrics,
        paths: RouteTable,
        cors: Cors,
        access: AccessLog,
        request_ids: RequestIds,
        fleet: Fleet,
        drain: DrainState,
        names: ModelNames,
        further: Mapping[str, Callable[[], Answer]] | None = None,
    ) -> None:
        self._metrics = metrics
        self._paths = paths
        self._cors = cors
        self._access = access
        self._request_ids = request_ids
        self._fleet = fleet
        self._drain = drain
        self._names = names
        self._version = version()
        self._answers: dict[str, tuple[tuple[str, ...], Callable[[], Answer]]] = {
            "/health": (_GET, self._readiness),
            "/ping": ((*_GET, "POST"), self._readiness),
            "/livez": (_GET, lambda: (200, {"status": "alive"})),
            "/readyz": (_GET, self._readiness),
            "/version": (_GET, lambda: (200, {"version": self._version})),
            "/v1/models": (_GET, self._models),
        }
        for path, answer in (further or {}).items():
            methods, _ = self._answers.get(path, (_GET, answer))
            self._answers[path] = methods, answer

    def route(self, head: RequestHead) -> Route | None:
        """Return the route to forward on; None if the gateway itself answers.

        Raises:
            RequestError: unknown path, wrong method, or an encoded body.
        """
        route = self._paths.find(head.path) if not self._local(head.path) else None
        methods = self._methods(head.path, route)
        if head.method == "OPTIONS" and (methods or head.target == b"*"):
            return None
        if not methods:
            raise RequestError(ErrorKind.PATH_NOT_FOUND, f"no such path: {head.path[:200]}")
        if head.method not in methods:
            raise MethodNotAllowed(head.method, methods)
        if route is not None and head.fields.get(b"content-encoding", b"identity").lower() != b"identity":
            raise RequestError(ErrorKind.UNSUPPORTED_CONTENT_ENCODING, _ENCODED)
        return route

    def let_in(self, head: RequestHead, keys: ApiKeys) -> str | None:
        """Return the name of the request's API key; None for paths that need none, and for preflights.

        Call this before any other check: a caller without a valid key must not learn which paths exist.

        Raises:
            RequestError: the request needs a key, and has none or an unknown one.
        """
        if head.path in _OPEN or head.method == "OPTIONS":
            return None
        name = let_in(keys, head.fields)
        self._metrics.requests_by_key.add(1.0, (name,))
        return name

    def answer(self, head: RequestHead, peer: str, close: bool, key_name: str | None = None) -> bytes:
        if head.method == "OPTIONS":
            status, body, lines = 204, b"", self._options(head)
        else:
            status, content = self._content(head.path)
            body = msgspec.json.encode(content)
            lines = b"retry-after: 1\r\n" if status == 503 else b""
        return self._reply(head, peer, "local", status, body, lines, close, key_name)

    def refusal(self, head: RequestHead | None, peer: str, error: RequestError, close: bool) -> bytes:
        """Return the error response for a refused request. `head` is None if the head could not be parsed."""
        self._metrics.errors.add(1.0, (error.kind.spec.code, "request", "", ""))
        lines = retry_after(error)
        if isinstance(error, MethodNotAllowed):
            lines += b"allow: " + _allow(error.methods) + b"\r\n"
        if error.kind is ErrorKind.INVALID_API_KEY:
            lines += b"www-authenticate: Bearer\r\n"
        if error.kind is ErrorKind.UNSUPPORTED_CONTENT_ENCODING:
            lines += b"accept-encoding: identity\r\n"  # RFC 9110 section 15.5.16
        body = error_body(error, head.path if head is not None else "")
        return self._reply(head, peer, "unknown", error.kind.spec.status, body, lines, close)

    def _reply(
        self,
        head: RequestHead | None,
        peer: str,
        path: str,
        status: int,
        body: bytes,
        lines: bytes,
        close: bool,
        key_name: str | None = None,
    ) -> bytes:
        identifier = self._request_ids.of(head)
        lines += b"x-request-id: " + identifier + b"\r\n"
        if head is not None:
            lines += self._cors.lines(head)
        lines += connection_line(head, close)
        reply = own_reply(status, body, lines, without_body=head is not None and head.method == "HEAD")
        self._metrics.requests.add(1.0, (path, "", "", str(status)))
        self._metrics.durations.observe(0.0, (path, "", ""))
        if self._access.enabled and head is not None:
            named = {} if key_name is None else {"key_name": key_name}
            said = {"bytes": len(reply), "request_id": identifier.decode("latin-1")}
            self._access.write(head, peer, status=status, **said, **named)
        return reply

    def _local(self, path: str) -> bool:
        return path in self._answers or (path.startswith(_MODEL) and len(path) > len(_MODEL))

    def _content(self, path: str) -> Answer:
        found = self._answers.get(path)
        return found[1]() if found is not None else self._model(unquote(path[len(_MODEL) :]))

    def _methods(self, path: str, route: Route | None) -> tuple[str, ...]:
        if route is None:
            return self._answers[path][0] if path in self._answers else _GET if self._local(path) else ()
        return (*route.methods, "HEAD") if "GET" in route.methods else route.methods

    def _options(self, head: RequestHead) -> bytes:
        methods = self._methods(head.path, self._paths.find(head.path)) or ("GET", "POST")
        allow = _allow(methods)
        return b"allow: " + allow + b"\r\n" + self._cors.preflight(head, allow)

    def _readiness(self) -> Answer:
        if self._drain.draining:
            return 503, {"status": "draining"}
        return (200, {"status": "ready"}) if self._fleet.serving > 0 else (503, {"status": "no worker is ready"})

    def _models(self) -> Answer:
        return 200, {"object": "list", "data": list(self._cards().values())}

    def _cards(self) -> dict[str, dict[str, Any]]:
        """Return the models of the fleet and their aliases, by name. The `root` of an alias is its model."""
        cards = {model.id: _card(model) for model in self._fleet.models.served()}
        aliases = {
            alias: {**cards[model], "id": alias, "root": model, "parent": None}
            for alias, model in self._names.aliases.items()
            if model in cards
        }
        return {**cards, **aliases}

    def _model(self, name: str) -> Answer:
        card = self._cards().get(name)
        if card is not None:
            return 200, card
        missing = RequestError(ErrorKind.MODEL_NOT_FOUND, f"The model `{name[:200]}` does not exist.", param="model")
        self._metrics.errors.add(1.0, (missing.kind.spec.code, "request", "", ""))
        return 404, read_json(error_body(missing, "/v1/models"))


def _allow(methods: tuple[str, ...]) -> bytes:
    return ", ".join((*methods, "OPTIONS")).encode("ascii")


def _card(model: ServedModel) -> dict[str, Any]:
    return {
        "id": model.id,
        "object": "model",
        "created": 0,
        "owned_by": "vllm",
        "root": model.root,
        "parent": model.parent,
        "max_model_len": model.max_model_len,
    }
