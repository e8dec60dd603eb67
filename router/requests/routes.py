"""The forwarded routes as data: path, methods, and the place of the model's name. All other paths answer 404.

The list is vLLM 0.33's inference API. Paths that change a worker are never forwarded, whatever the configuration says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import unquote


class ModelSource(StrEnum):
    JSON = "json"
    MULTIPART = "multipart"
    QUERY = "query"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Route:
    """One forwarded path. `pattern` names it in metrics; ``{id}`` stands for one segment.

    - `by_prefix`: requests are placed by the prefix of their prompt.
    - `pinned`: ``{id}`` names a stored response, so requests go to the worker that made it.
    - `stores`: the worker stores the response under an id.
    - `prefills`: the worker runs the model on the body.
    - `generates`: the answer has tokens that the model generated; otherwise it is vectors or scores.
    - `salted`: the worker reads `cache_salt` from the body.
    - `extra`: it comes from the setting `extra_paths`, so that nothing is known about its requests.
    """

    pattern: str
    methods: tuple[str, ...] = ("POST",)
    model: ModelSource = ModelSource.JSON
    by_prefix: bool = False
    pinned: bool = False
    stores: bool = False
    upgrades: bool = False
    prefills: bool = True
    generates: bool = True
    salted: bool = False
    extra: bool = False


_SALTED = ("/v1/chat/completions/batch", "/invocations", "/inference/v1/generate")
"""JSON bodies that take cache_salt and are not placed by prefix."""
_SCORED = (
    "/v1/embeddings",
    "/pooling",
    "/classify",
    "/score",
    "/v1/score",
    "/rerank",
    "/v1/rerank",
    "/v2/rerank",
    "/generative_scoring",
)
"""The same, but the answer has no generated tokens."""
_TEXT_ONLY = (
    "/v1/chat/completions/render",
    "/v1/chat/completions/derender",
    "/v1/completions/render",
    "/v1/completions/derender",
    "/v1/responses/render",
    "/v1/messages/count_tokens",
    "/v1/messages/render",
    "/tokenize",
    "/detokenize",
)
"""Paths that do not run the model."""
# vLLM 0.33 documents no method for these, so both are forwarded.
_EITHER_METHOD = ("/v1/decisions", "/v1/systemone")

ROUTES: tuple[Route, ...] = (
    Route("/v1/chat/completions", by_prefix=True, salted=True),
    Route("/v1/completions", by_prefix=True, salted=True),
    Route("/v1/messages", by_prefix=True, salted=True),
    Route("/v1/responses", by_prefix=True, stores=True, salted=True),
    Route("/v1/responses/{id}", ("GET",), ModelSource.NONE, pinned=True, prefills=False),
    Route("/v1/responses/{id}/cancel", ("POST",), ModelSource.NONE, pinned=True, prefills=False),
    Route("/v1/audio/transcriptions", model=ModelSource.MULTIPART),
    Route("/v1/audio/translations", model=ModelSource.MULTIPART),
    Route("/v1/realtime", ("GET",), ModelSource.QUERY, upgrades=True),
    *(Route(path, prefills=False) for path in _TEXT_ONLY),
    *(Route(path, salted=True) for path in _SALTED),
    *(Route(path, salted=True, generates=False) for path in _SCORED),
    Route("/v2/embed", generates=False),  # vLLM 0.33 reads no cache_salt from this and the next one
    Route("/cohere/v2/chat"),
    *(Route(path, ("GET", "POST"), salted=True) for path in _EITHER_METHOD),
)

FORBIDDEN_PATHS: frozenset[str] = frozenset(
    {
        "/abort_requests",
        "/collective_rpc",
        "/finish_weight_update",
        "/inference/v1/abort_requests",
        "/init_weight_transfer_engine",
        "/init_weights_update_group",
        "/pause",
        "/release_kv_cache_memory",
        "/reset_encoder_cache",
        "/reset_mm_cache",
        "/reset_prefix_cache",
        "/resume",
        "/scale_elastic_ep",
        "/sleep",
        "/start_profile",
        "/start_weight_update",
        "/stop_profile",
        "/update_weights",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/wake_up",
    }
)
FORBIDDEN_PREFIXES: tuple[str, ...] = ("/fault_tolerance/",)

_STORED = "/v1/responses/"


def forbidden(path: str) -> bool:
    """Return whether `path` changes a worker, in any spelling (percent-encoded, doubled or trailing slashes)."""
    plain = "/" + "/".join(segment for segment in unquote(path).split("/") if segment)
    return plain in FORBIDDEN_PATHS or (plain + "/").startswith(FORBIDDEN_PREFIXES)


def _plain(path: str) -> bool:
    """Return whether a worker cannot resolve `path` to another path than the one matched here."""
    decoded = unquote(path)
    return "//" not in decoded and "\\" not in decoded and not {".", ".."} & set(decoded.split("/"))


class RouteTable:
    """Routes by path: built-in paths, stored responses, and the configured extra paths."""

    def __init__(self, extra: Mapping[str, Sequence[str]] = {}) -> None:
        self._exact = {route.pattern: route for route in ROUTES if not route.pinned}
        self._stored = {route.pattern.partition("{id}")[2]: route for route in ROUTES if route.pinned}
        self._prefixes: list[tuple[str, Route]] = []
        for path, methods in extra.items():
            self._add(Route(path, tuple(method.upper() for method in methods), extra=True))

    def _add(self, route: Route) -> None:
        if route.pattern.endswith("/*"):
            self._prefixes.append((route.pattern[:-1], route))
        elif not forbidden(route.pattern):
            self._exact.setdefault(route.pattern, route)

    def find(self, path: str) -> Route | None:
        route = self._exact.get(path)
        if route is not None:
            return route
        if path.startswith(_STORED):
            response_id, slash, rest = path[len(_STORED) :].partition("/")
            plain = response_id and "%2f" not in response_id.lower() and _plain(path)
            route = self._stored.get(slash + rest) if plain else None
        if route is None:
            route = next((route for prefix, route in self._prefixes if path.startswith(prefix)), None)
            if route is not None and (forbidden(path) or not _plain(path)):
                return None
        return route

    def stored_id(self, path: str) -> str:
        return unquote(path[len(_STORED) :].partition("/")[0])
