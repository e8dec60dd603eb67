"""From what a gateway sent to a request that a worker can be found for: its caller, its route, its prompt."""

from __future__ import annotations

import asyncio
from collections.abc import Container
from typing import Final

from router.errors import ErrorKind, RequestError
from router.picker.collected_request import CollectedRequest
from router.picker.parts import PickerParts
from router.picker.pools.worker_pool import WorkerPool
from router.picker.request_headers import Subset
from router.requests.incoming import IncomingRequest
from router.requests.request_head import RequestHead
from router.requests.routes import ModelSource, Route, forbidden
from router.security.callers import Caller
from router.security.keys import let_in
from router.tokenization.body.parsed_body import ParsedBody, unread_body

_PASSED_ON: Final = Route("unknown", ("GET", "POST"), ModelSource.JSON, extra=True)
"""Any path that no worker's API is known to have. Such requests are picked for, too."""
_MODEL_HEADER: Final = b"x-gateway-model-name"
"""GAIE's body-based router names the model in it."""
_ENCODED: Final = "the endpoint picker decodes no Content-Encoding; send the body without one"
_LATE: Final = "the request was not read in time; try again later"
_UNSALTED: Final = (
    "This caller's cache is isolated by a salt in the body, and the gateway sends the endpoint picker no body; use "
    "request_body_mode FULL_DUPLEX_STREAMED or BUFFERED."
)


def admitted(parts: PickerParts, head: RequestHead) -> Caller:
    """Return the caller.

    Raises:
        RequestError: the key is missing or wrong, or the path would change a worker.
    """
    name = None
    if parts.keys is not None:
        name = let_in(parts.keys, head.fields)
        parts.metrics.requests_by_key.add(1.0, (name,))
    if forbidden(head.path):
        raise RequestError(ErrorKind.PATH_NOT_FOUND, f"no such path: {head.path[:200]}")
    return parts.callers.of(name) if name is not None else parts.callers.anybody


def incoming_of(
    parts: PickerParts, collected: CollectedRequest, caller: Caller, request_id: bytes, pool: WorkerPool | None
) -> IncomingRequest:
    """Return the request as every front keeps it. `pool` is that of the port, if there are several.

    Raises:
        RequestError: the body is encoded, and its prompt would have to be read.
    """
    head = collected.head
    route = parts.identifier.paths.find(head.path)
    if route is None or head.method not in route.methods:
        route = _PASSED_ON
    elif head.fields.get(b"content-encoding", b"identity").lower() != b"identity" and not collected.by_headers:
        raise RequestError(ErrorKind.UNSUPPORTED_CONTENT_ENCODING, _ENCODED)
    incoming = IncomingRequest(head, collected.body, route, request_id, caller, parts.time())
    incoming.within = _within(collected.subset, pool)
    if collected.by_headers:
        incoming.size_bytes = head.content_length
    return incoming


def _within(subset: Subset | None, pool: WorkerPool | None) -> Container[str] | None:
    if subset is None:
        return pool
    subset.pool = pool
    return subset


async def identify(parts: PickerParts, incoming: IncomingRequest, until_s: float) -> None:
    """Read the body and identify its prompt, as far as there is time.

    Raises:
        RequestError: as at the gateway; or the body was not read in time.
    """
    identifier = parts.identifier
    parsed: ParsedBody | None = None
    try:
        async with asyncio.timeout_at(until_s):
            parsed = identifier.read_now(incoming) or await identifier.read(incoming)
            pending = identifier.identify_now(incoming, parsed)
            if pending is not None:
                await identifier.identify(incoming, parsed, pending)
    except TimeoutError:
        if parsed is None:
            raise RequestError(ErrorKind.TOO_MANY_REQUESTS, _LATE) from None
        identifier.place_by_load(incoming, parsed)
    except RequestError as error:
        if not incoming.route.extra or error.kind is not ErrorKind.INVALID_JSON:
            raise
        identifier.place_by_load(incoming, unread_body())


def identify_by_headers(parts: PickerParts, incoming: IncomingRequest) -> None:
    """Set the request without its body, which the picker does not get.

    Raises:
        RequestError: the caller's cache is isolated, which needs the body.
    """
    if incoming.caller.salts is not None and incoming.route.salted:
        raise RequestError(ErrorKind.NOT_IMPLEMENTED, _UNSALTED)
    named = incoming.head.fields.get(_MODEL_HEADER)
    parts.identifier.place_by_load(incoming, unread_body(None if named is None else named.decode("latin-1")))
