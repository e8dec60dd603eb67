"""Read a request's body as its route wants it: at once, or in iterations of the loop of its own."""

from __future__ import annotations

from urllib.parse import parse_qs

from router.errors import ErrorKind, RequestError
from router.requests.request_head import RequestHead
from router.requests.routes import ModelSource, Route
from router.requests.time_slices import TimeSlices
from router.tokenization.body.intake import (
    READ_AT_ONCE_BYTES,
    WHOLE_BYTES,
    UnreadBody,
    parse_at_once,
    parse_steps,
)
from router.tokenization.body.known_bodies import KnownBodies
from router.tokenization.body.multipart import Form, form_steps, read_form
from router.tokenization.body.parsed_body import ParsedBody, unread_body

# At most one larger body is read per iteration of the loop: decoding and rendering it can take about 10 ms.
READ_QUICKLY_BYTES = 32_768


def read_request(route: Route, head: RequestHead, body: bytes, known: KnownBodies | None = None) -> ParsedBody:
    """Parse the fields that `route` needs. Only a body that is placed by prefix must be valid.

    The messages at a start that is in `known` are not parsed.

    Raises:
        RequestError: a body that is placed by prefix is invalid.
        UnreadBody: reading takes longer than expected; await `read_in_slices`.
    """
    if route.by_prefix:
        return parse_at_once(head.path, body, known)
    if route.model is ModelSource.JSON:
        return _read_leniently(head.path, body)
    if route.model is ModelSource.MULTIPART:
        return _of_form(read_form(head.fields.get(b"content-type", b""), body))
    return unread_body(parse_qs(head.query).get("model", [None])[0] if route.model is ModelSource.QUERY else None)


def reads_at_once(route: Route, body: bytes) -> bool:
    """Return whether `read_request` takes little time, as far as the size shows; otherwise await `read_in_slices`."""
    if route.model is ModelSource.MULTIPART:
        return len(body) <= READ_QUICKLY_BYTES
    return len(body) <= READ_AT_ONCE_BYTES or route.model is not ModelSource.JSON


def reads_quickly(route: Route, body: bytes) -> bool:
    """Return whether `read_request` and the work after it are short enough for any iteration of the loop."""
    return len(body) <= READ_QUICKLY_BYTES or route.model not in (ModelSource.JSON, ModelSource.MULTIPART)


async def read_in_slices(
    route: Route, head: RequestHead, body: bytes, slices: TimeSlices, known: KnownBodies | None
) -> ParsedBody:
    """Parse a large body in an iteration of its own, or a very large one or a form over several iterations.

    Raises:
        RequestError: the body is invalid.
    """
    if reads_at_once(route, body):
        await slices.available()
        try:
            return read_request(route, head, body, known)
        except UnreadBody:
            pass
    if route.model is ModelSource.MULTIPART:
        return _of_form(await slices.finish(form_steps(head.fields.get(b"content-type", b""), body)))
    return await slices.finish(parse_steps(head.path, body))


def _of_form(form: Form | None) -> ParsedBody:
    return unread_body(None if form is None else form.model, form)


def _read_leniently(path: str, body: bytes) -> ParsedBody:
    """Parse a JSON body of a path whose prompts are not identified.

    A small body that is not JSON goes to a worker, whose error message explains the mistake. Any other body that
    cannot be parsed is refused, because it may have fields that its sender must not send.
    """
    try:
        return parse_at_once(path, body)
    except RequestError as error:
        if len(body) > WHOLE_BYTES or error.kind is not ErrorKind.INVALID_JSON:
            raise
        return unread_body()
