"""From a request's bytes to the values a decision needs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from urllib.parse import parse_qs

import msgspec

from policies.view import WorkerId
from router.errors import ErrorKind, RequestError
from router.gateway.http.request_head import RequestHead
from router.gateway.http.routes import ModelSource, Route, RouteTable
from router.gateway.http.time_slices import TimeSlices
from router.gateway.plane import Pins, Plane
from router.placement.lifecycle_events import Request, SessionKind
from router.residency.prompt import Prompt
from router.security.callers import Caller
from router.tokenization.intake import READ_AT_ONCE_BYTES, WHOLE_BYTES, ParsedBody, parse, parse_steps
from router.tokenization.json_spans import UnreadBody
from router.tokenization.multipart import multipart_model

# Enough for a response's opening fields, among which its id is the first.
_ID_WITHIN_BYTES = 4_096
_STORED_ID = re.compile(rb'"id"\s*:\s*"(resp_[^"\\]{1,256})"')
# Where a body is not understood its size stands in for its tokens: about four bytes each in English.
_BYTES_PER_TOKEN = 4
# A larger body is at most one in a turn of the loop: decoding and rendering it takes up to some 10 ms.
READ_QUICKLY_BYTES = 32_768


EXPECTED_OUTPUT = b"x-warmroute-expected-output-tokens"
"""Request header: about how long the answer will be, if its client knows."""
_FEW_DIGITS = re.compile(rb"[0-9]{1,9}")


class Reading(msgspec.Struct, frozen=True):
    """What was read of a body: `fields` of any JSON object, `intake` where the prompt can be identified."""

    model: str | None
    stream: bool = False
    fields: ParsedBody | None = None
    intake: ParsedBody | None = None
    previous_response_id: str | None = None


def read_request(route: Route, head: RequestHead, body: bytes) -> Reading:
    """Read what `route` says can be read; only a body placed by prefix must be right.

    Raises:
        RequestError: for such a body.
    """
    if route.by_prefix:
        return _of_body(route, parse(head.path, body))
    if route.model is ModelSource.JSON:
        return _read_leniently(route, head.path, body)
    if route.model is ModelSource.MULTIPART:
        return Reading(multipart_model(head.fields.get(b"content-type", b"").decode("latin-1"), body))
    if route.model is ModelSource.QUERY:
        return Reading(parse_qs(head.query).get("model", [None])[0])
    return Reading(None)


def reads_at_once(route: Route, body: bytes) -> bool:
    """Whether `read_request` takes little time; else `read_in_slices` has to be awaited."""
    return len(body) <= READ_AT_ONCE_BYTES or route.model is not ModelSource.JSON


def reads_quickly(route: Route, body: bytes) -> bool:
    """Whether `read_request`, and what follows on the event loop, take so little time that any turn has room for it."""
    return len(body) <= READ_QUICKLY_BYTES or route.model is not ModelSource.JSON


async def read_in_slices(route: Route, head: RequestHead, body: bytes, slices: TimeSlices) -> Reading:
    """Read a large JSON body, in a turn of its own, or a very large one in many turns.

    Raises:
        RequestError: the body is wrong.
    """
    if reads_at_once(route, body):
        await slices.available()
        return read_request(route, head, body)
    return _of_body(route, await slices.finish(parse_steps(head.path, body)))


def _of_body(route: Route, parsed: ParsedBody) -> Reading:
    intake, previous = (parsed, parsed.previous_response_id) if route.by_prefix else (None, None)
    return Reading(parsed.model, parsed.stream, parsed, intake, previous)


def _read_leniently(route: Route, path: str, body: bytes) -> Reading:
    """What is read of a body that is otherwise not understood. A small one that is not JSON to Python's parser either
    goes to a worker, which says what is wrong with it. Any other that has not been read is refused: it may have fields
    that its sender must not send."""
    try:
        parsed = parse(path, body)
    except RequestError as error:
        unread = len(body) > WHOLE_BYTES or isinstance(error, UnreadBody)
        if unread or error.kind is not ErrorKind.INVALID_JSON:
            raise
        return Reading(None)
    return _of_body(route, parsed)


def pinned_to(route: Route, head: RequestHead, reading: Reading, pins: Pins, paths: RouteTable) -> WorkerId | None:
    """The one worker that holds the stored response this request is about.

    Raises:
        RequestError: where the path names a response that is not known here. A body that names one is passed on:
            it may also work without.
    """
    if not route.pinned:
        previous = reading.previous_response_id
        return pins.worker(previous) if previous is not None else None
    response_id = paths.stored_id(head.path)
    worker = pins.worker(response_id)
    if worker is None:
        raise RequestError(ErrorKind.RESPONSE_NOT_FOUND, f"response {response_id!r} was not made through this gateway")
    return worker


def describe(
    route: Route,
    head: RequestHead,
    body: bytes,
    reading: Reading,
    prompt: Prompt | None,
    pinned: WorkerId | None,
    request_id: str,
    arrived_s: float,
    caller: Caller,
) -> Request:
    """The request as the dispatcher sees it. vLLM: a session id in the body wins over the header, a priority in the
    header over the body."""
    parsed = reading.intake
    guessed_tokens = len(body) // _BYTES_PER_TOKEN if route.prefills else 0
    session_id = parsed.session_id if parsed is not None else None
    if session_id is None and b"x-session-id" in head.fields:
        session_id = head.fields[b"x-session-id"].decode("latin-1")
    return Request(
        id=request_id,
        path=head.path,
        model=reading.model,
        prompt=prompt,
        prompt_tokens=prompt.tokens if prompt is not None else guessed_tokens,
        arrived_s=arrived_s,
        max_tokens=parsed.max_tokens if parsed is not None else None,
        session_id=session_id,
        priority=_priority(head, parsed) if "priority" in caller.may else 0,
        pinned=pinned,
        stream=reading.stream,
        reads_cache=parsed is None or parsed.reads_cache,
        answers=1 if parsed is None else parsed.answers,
        kind=_kind(parsed, session_id),
        hinted_tokens=_hinted_tokens(head),
    )


def _kind(parsed: ParsedBody | None, session_id: str | None) -> SessionKind:
    if parsed is not None and parsed.has_tools:
        return SessionKind.AGENT
    return SessionKind.SINGLE if session_id is None else SessionKind.CONVERSATION


def _hinted_tokens(head: RequestHead) -> int | None:
    """A number of tokens; anything else is no hint."""
    text = head.fields.get(EXPECTED_OUTPUT)
    return int(text) if text is not None and _FEW_DIGITS.fullmatch(text) else None


def _priority(head: RequestHead, parsed: ParsedBody | None) -> int:
    text = head.fields.get(b"x-vllm-priority")
    if text is not None:
        try:
            return int(text)
        except ValueError:
            pass
    return parsed.priority if parsed is not None else 0


def stored_response_id(pieces: list[bytes]) -> str | None:
    """The id of the stored response whose first body bytes `pieces` are."""
    found = _STORED_ID.search(b"".join(pieces)[:_ID_WITHIN_BYTES])
    return found[1].decode("utf-8", "replace") if found else None


class Placing:
    """Reads and identifies one request, at once where it can, else in a task, and hands on what came of it.

    `described` gets the request for the dispatcher; `crashed` is called while a defect's exception is handled.
    """

    __slots__ = (
        "_arrived_s", "_body", "_caller", "_crashed", "_described", "_head", "_plane", "_request_id", "_route",
    )  # fmt: skip

    def __init__(
        self,
        plane: Plane,
        route: Route,
        head: RequestHead,
        body: bytes,
        request_id: bytes,
        arrived_s: float,
        caller: Caller,
        described: Callable[[Request], None],
        crashed: Callable[[], None],
    ) -> None:
        self._plane = plane
        self._route = route
        self._head = head
        self._body = body
        self._request_id = request_id.decode("latin-1")
        self._arrived_s = arrived_s
        self._caller = caller
        self._described = described
        self._crashed = crashed

    def read(self) -> Reading | None:
        """What the route says can be read; None where that takes so long that `read_in_slices` has to be awaited.

        Raises:
            RequestError: the body is wrong, or its caller may not send it.
        """
        plane, route, body = self._plane, self._route, self._body
        if reads_quickly(route, body) or (reads_at_once(route, body) and plane.slices.take(plane.loop)):
            return read_request(self._route, self._head, self._body)
        return None

    async def read_in_slices(self) -> Reading:
        """The same of a very large body; raises the same."""
        return await read_in_slices(self._route, self._head, self._body, self._plane.slices)

    def start(self, reading: Reading) -> asyncio.Task[None] | None:
        """Identify what was read, where that is possible. Returns the task of an identification that takes longer.

        Raises:
            RequestError: a stored response is meant that is not known here.
        """
        plane = self._plane
        if reading.intake is None:
            self._done(reading, None, pinned_to(self._route, self._head, reading, plane.pins, plane.paths))
            return None
        adapter = plane.fleet.adapter(reading.model)
        prompt = plane.identity.identify_now(self._head.path, reading.intake, adapter)
        if prompt is None:
            return plane.loop.create_task(self._identify(reading, reading.intake, adapter))
        self._identified(reading, prompt)
        return None

    async def _identify(self, reading: Reading, parsed: ParsedBody, adapter: str | None) -> None:
        try:
            self._identified(reading, await self._plane.identity.identify(self._head.path, parsed, adapter))
        except Exception:
            self._crashed()

    def _identified(self, reading: Reading, prompt: Prompt | None) -> None:
        if reading.intake is not None:
            reading.intake.release()
        source = prompt.source if prompt is not None else "none"
        self._plane.metrics.identified(self._plane.time() - self._arrived_s, source)
        self._done(reading, prompt, pinned_to(self._route, self._head, reading, self._plane.pins, self._plane.paths))

    def _done(self, reading: Reading, prompt: Prompt | None, pinned: WorkerId | None) -> None:
        request = describe(
            self._route,
            self._head,
            self._body,
            reading,
            prompt,
            pinned,
            self._request_id,
            self._arrived_s,
            self._caller,
        )
        self._described(request)
