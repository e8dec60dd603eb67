"""What a request would be to the dispatcher, for an operator who asks before sending it."""

from __future__ import annotations

from collections.abc import Mapping

from router.errors import ErrorKind, RequestError
from router.gateway.admission import admit
from router.gateway.http.request_head import RequestHead
from router.gateway.placing import describe, pinned_to, read_in_slices, read_request, reads_at_once
from router.gateway.plane import Plane
from router.placement.lifecycle_events import Request
from router.security.callers import Caller


async def preview(
    plane: Plane, path: str, headers: Mapping[str, str], body: bytes, key_name: str | None = None
) -> Request:
    """Read and identify these bytes as the public port would from the bearer of that key; nothing is dispatched.

    Raises:
        RequestError: as the public port would answer; INVALID_API_KEY where no key has that name.
    """
    head = _head(path, headers, len(body))
    route = plane.paths.find(head.path)
    if route is None:
        raise RequestError(ErrorKind.PATH_NOT_FOUND, f"no such path: {head.path[:200]}")
    caller = _caller(plane, key_name)
    if reads_at_once(route, body):
        reading = read_request(route, head, body)
    else:
        reading = await read_in_slices(route, head, body, plane.slices)
    admit(route, caller, head, body, reading.fields)
    pinned = pinned_to(route, head, reading, plane.pins, plane.paths)
    prompt = None
    if reading.intake is not None:
        adapter = plane.fleet.adapter(reading.model)
        prompt = plane.identity.identify_now(head.path, reading.intake, adapter)
        if prompt is None:
            prompt = await plane.identity.identify(head.path, reading.intake, adapter)
    request_id = plane.request_ids.of(head).decode("latin-1")
    return describe(route, head, body, reading, prompt, pinned, request_id, plane.time(), caller)


def _caller(plane: Plane, key_name: str | None) -> Caller:
    if key_name is None:
        return plane.callers.anybody
    if plane.keys is None or key_name not in plane.keys.names:
        raise RequestError(ErrorKind.INVALID_API_KEY, f"no API key is named {key_name!r}")
    return plane.callers.of(key_name)


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
