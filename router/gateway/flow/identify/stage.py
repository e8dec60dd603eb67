"""Parse a request's body and identify its prompt, so that the dispatcher can place it."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import parse_qs

from policies.view import WorkerId
from router.errors import ErrorKind, RequestError
from router.gateway.admission import admit
from router.gateway.flow.identify.model_choice import BodyFacts, ModelChoice
from router.gateway.flow.outbound import OutboundRequest
from router.gateway.http.client.request_head import RequestHead
from router.gateway.http.client.routes import ModelSource, Route, RouteTable
from router.gateway.http.time_slices import TimeSlices
from router.gateway.pins import Pins
from router.gateway.response_search import ResponseSearch, may_be_stored
from router.gateway.rewrites.body_rewriter import BodyRewriter
from router.gateway.rewrites.json_splice import salted
from router.metrics.instruments import Histogram
from router.placement.fleet.fleet import Fleet
from router.placement.policies.traffic_routes import RouteFacts, TrafficRoutes
from router.placement.request import Request, SessionKind
from router.residency.prompt import Prompt
from router.tokenization.body.intake import (
    READ_AT_ONCE_BYTES,
    WHOLE_BYTES,
    ParsedBody,
    UnreadBody,
    parse_at_once,
    parse_steps,
)
from router.tokenization.body.known_bodies import KnownBodies
from router.tokenization.body.multipart import Form, form_steps, read_form
from router.tokenization.prompt_identifier import PromptIdentifier

# Estimates the tokens of a body that is not parsed: English text has about four bytes per token.
_BYTES_PER_TOKEN = 4
# At most one larger body is read per iteration of the loop: decoding and rendering it can take about 10 ms.
READ_QUICKLY_BYTES = 32_768

LONGEST_PREFIX_NAME = 64
EXPECTED_OUTPUT = b"x-warmroute-expected-output-tokens"
"""Request header: the expected length of the answer in tokens, if the client knows it."""
_FEW_DIGITS = re.compile(rb"[0-9]{1,9}")
# A module constant, because looking up a member of an enum is slow.
_SINGLE: Final = SessionKind.SINGLE


def read_request(route: Route, head: RequestHead, body: bytes, known: KnownBodies | None = None) -> BodyFacts:
    """Parse the fields that `route` needs. Only a body that is placed by prefix must be valid.

    The messages at a start that is in `known` are not parsed.

    Raises:
        RequestError: a body that is placed by prefix is invalid.
        UnreadBody: reading takes longer than expected; await `read_in_slices`.
    """
    if route.by_prefix:
        return _of_body(route, parse_at_once(head.path, body, known))
    if route.model is ModelSource.JSON:
        return _read_leniently(route, head.path, body)
    if route.model is ModelSource.MULTIPART:
        return _of_form(read_form(head.fields.get(b"content-type", b""), body))
    if route.model is ModelSource.QUERY:
        return BodyFacts(parse_qs(head.query).get("model", [None])[0])
    return BodyFacts(None)


def reads_at_once(route: Route, body: bytes) -> bool:
    """Return whether `read_request` takes little time, as far as the size shows; otherwise await `read_in_slices`."""
    if route.model is ModelSource.MULTIPART:
        return len(body) <= READ_QUICKLY_BYTES
    return len(body) <= READ_AT_ONCE_BYTES or route.model is not ModelSource.JSON


def reads_quickly(route: Route, body: bytes) -> bool:
    """Return whether `read_request` and the work after it are short enough for any iteration of the loop."""
    return len(body) <= READ_QUICKLY_BYTES or route.model not in (ModelSource.JSON, ModelSource.MULTIPART)


async def read_in_slices(
    route: Route, head: RequestHead, body: bytes, slices: TimeSlices, known: KnownBodies | None = None
) -> BodyFacts:
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
    return _of_body(route, await slices.finish(parse_steps(head.path, body)))


def _of_form(form: Form | None) -> BodyFacts:
    return BodyFacts(None if form is None else form.model, form=form)


def _of_body(route: Route, parsed: ParsedBody) -> BodyFacts:
    intake, previous = (parsed, parsed.previous_response_id) if route.by_prefix else (None, None)
    return BodyFacts(parsed.model, parsed.stream, parsed, intake, previous)


def _read_leniently(route: Route, path: str, body: bytes) -> BodyFacts:
    """Parse a JSON body of a path whose prompts are not identified.

    A small body that is not JSON goes to a worker, whose error message explains the mistake. Any other body that
    cannot be parsed is refused, because it may have fields that its sender must not send.
    """
    try:
        parsed = parse_at_once(path, body)
    except RequestError as error:
        if len(body) > WHOLE_BYTES or error.kind is not ErrorKind.INVALID_JSON:
            raise
        return BodyFacts(None)
    return _of_body(route, parsed)


def pinned_to(route: Route, head: RequestHead, reading: BodyFacts, pins: Pins, paths: RouteTable) -> WorkerId | None:
    """Return the worker that holds the stored response that this request is about; None for any worker.

    Raises:
        RequestError: the path names an unknown response. An unknown response in the body is no error here: a worker's
            own answer explains it.
    """
    if not route.pinned:
        previous = reading.previous_response_id
        return pins.worker(previous) if previous is not None else None
    response_id = paths.stored_id(head.path)
    worker = pins.worker(response_id)
    if worker is None:
        raise RequestError(ErrorKind.RESPONSE_NOT_FOUND, f"no worker has response {response_id!r}")
    return worker


def describe(
    outbound: OutboundRequest,
    reading: BodyFacts,
    prompt: Prompt | None,
    pinned: WorkerId | None,
    routes: TrafficRoutes,
    prefix_header: bytes | None = None,
) -> Request:
    """Return the request for the dispatcher, with its route and policy.

    As in vLLM, a session id in the body overrides the header, and a priority in the header overrides the body.
    """
    head = outbound.head
    parsed = reading.intake
    guessed_tokens = outbound.size_bytes // _BYTES_PER_TOKEN if outbound.route.prefills else 0
    session_id = parsed.session_id if parsed is not None else None
    if session_id is None and b"x-session-id" in head.fields:
        session_id = head.fields[b"x-session-id"].decode("latin-1")
    request_id = outbound.id.decode("latin-1")
    prompt_tokens = prompt.tokens if prompt is not None else guessed_tokens
    priority = _priority(head, parsed) if "priority" in outbound.caller.may else 0
    route = routes.only
    if route is None:
        route = routes.match(
            RouteFacts(
                reading.model,
                head.path,
                head.fields,
                outbound.caller.name,
                outbound.caller.tenant,
                prompt_tokens,
                session_id is not None,
                reading.stream,
                priority,
            )
        )
    return Request(
        id=request_id,
        path=head.path,
        model=reading.model,
        prompt=prompt,
        prompt_tokens=prompt_tokens,
        arrived_s=outbound.arrived_s,
        max_tokens=parsed.max_tokens if parsed is not None else None,
        session_id=session_id,
        priority=priority,
        pinned=pinned,
        stream=reading.stream,
        reads_cache=parsed is None or parsed.reads_cache,
        answers=1 if parsed is None else parsed.answers,
        kind=_kind(parsed, session_id),
        hinted_tokens=_hinted_tokens(head),
        route=route.name,
        policy=route.policy_of(request_id, session_id),
        prefix_name=None if prefix_header is None else _prefix_name(head.fields.get(prefix_header)),
    )


def _prefix_name(value: bytes | None) -> str | None:
    """Return a name of printable ASCII; None for any other value, because an operator's page shows it."""
    if value is None or not 0 < len(value) <= LONGEST_PREFIX_NAME:
        return None
    name = value.decode("latin-1")
    return name if name.isascii() and name.isprintable() else None


def _kind(parsed: ParsedBody | None, session_id: str | None) -> SessionKind:
    if parsed is not None and parsed.has_tools:
        return SessionKind.AGENT
    return _SINGLE if session_id is None else SessionKind.CONVERSATION


def _hinted_tokens(head: RequestHead) -> int | None:
    """Return the expected output tokens that the client gave; None without a valid number."""
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


class IdentifiedRequest(Protocol):
    def stream_expected(self) -> None:
        """Prepare for comments: the body was parsed, and its answer will be a stream."""

    def identified(self) -> None:
        """Go on with the request: `OutboundRequest.request` is set."""

    def refuse(self, error: RequestError) -> None:
        """End the request: its body is invalid, or the caller may not send it."""

    def unidentified(self) -> None:
        """End the request after a defect; called from an `except` block."""


@dataclass(frozen=True, slots=True)
class IdentifyStage:
    """Parses, admits and identifies requests, at once if possible and otherwise in a task.

    `prefix_header` is the lower-case name of the header that names a prefix, if there is one.
    """

    identity: PromptIdentifier
    fleet: Fleet
    durations: Histogram
    loop: asyncio.AbstractEventLoop
    paths: RouteTable
    pins: Pins
    slices: TimeSlices
    rewriter: BodyRewriter
    routes: TrafficRoutes
    models: ModelChoice
    search: ResponseSearch
    prefix_header: bytes | None

    def start(self, outbound: OutboundRequest, request: IdentifiedRequest) -> asyncio.Task[None] | None:
        """Parse and identify `outbound`, then call a method of `request`: at once, or in the task that is returned."""
        route, body, read, reading = outbound.route, outbound.body, None, None
        try:
            if reads_quickly(route, body) or (reads_at_once(route, body) and self.slices.take(self.loop)):
                read = read_request(route, outbound.head, body, self.identity.bodies)
                if self._unknown_response(outbound, read) is None:
                    reading = self._named(outbound, read)
                    if self._describe_now(outbound, reading, request):
                        request.identified()
                        return None
        except RequestError as error:
            request.refuse(error)
            return None
        except UnreadBody:
            pass  # in the task, step by step
        return self.loop.create_task(self._finish(outbound, read, reading, request))

    async def _finish(
        self, outbound: OutboundRequest, read: BodyFacts | None, reading: BodyFacts | None, request: IdentifiedRequest
    ) -> None:
        try:
            described = False
            if reading is None:
                if read is None:
                    read = await read_in_slices(
                        outbound.route, outbound.head, outbound.body, self.slices, self.identity.bodies
                    )
                await self._find_response(outbound, read)
                reading = self._named(outbound, read)
                described = self._describe_now(outbound, reading, request)
            if not described:
                outbound.request = await self._describe_later(outbound, reading)
            request.identified()
        except RequestError as error:
            request.refuse(error)
        except Exception:
            request.unidentified()

    def _unknown_response(self, outbound: OutboundRequest, reading: BodyFacts) -> str | None:
        """Return the id of the stored response that the request is about, if it has to be looked for."""
        response_id = reading.previous_response_id
        if outbound.route.pinned:
            response_id = self.paths.stored_id(outbound.head.path)
        if response_id is None or self.pins.worker(response_id) is not None or not may_be_stored(response_id):
            return None
        return response_id

    async def _find_response(self, outbound: OutboundRequest, reading: BodyFacts) -> None:
        """Pin the stored response that the request is about to the worker that has it, unless it is pinned.

        Raises:
            RequestError: it is not certain whether a worker has it.
        """
        response_id = self._unknown_response(outbound, reading)
        if response_id is not None:
            withheld = b"authorization" in outbound.withheld
            credentials = None if withheld else outbound.head.fields.get(b"authorization")
            await self.search.find(response_id, self.models.serving(reading.model), credentials)

    def _named(self, outbound: OutboundRequest, reading: BodyFacts, *, counted: bool = True) -> BodyFacts:
        """Apply the operator's names. A body in UTF-16 or UTF-32 goes on in UTF-8, so that it can be changed."""
        parsed = reading.fields
        if parsed is not None and parsed.converted and parsed.body is not None:
            outbound.body, outbound.withheld = parsed.body, outbound.caller.withheld_salted
        return self.models.named(outbound, reading, counted=counted)

    def _admit(self, outbound: OutboundRequest, reading: BodyFacts) -> None:
        """Check that the caller may send these fields, and prepare the rewrites of the body.

        Raises:
            RequestError: the caller may not send them.
        """
        salt = admit(outbound.route, outbound.caller, outbound.body, reading.fields, reading.form)
        if salt is not None:
            outbound.body = self.rewriter.salt(outbound.body, salt)
            outbound.withheld = outbound.caller.withheld_salted
        if reading.intake is not None:
            outbound.digest = reading.intake.digest
        limits = outbound.caller.limits
        metered = limits is not None and limits.by_tokens
        outbound.rewrites = self.rewriter.of(outbound.head, reading.intake, metered=metered)

    def _describe_now(self, outbound: OutboundRequest, reading: BodyFacts, request: IdentifiedRequest) -> bool:
        """Admit and describe the request. Return False if identification must continue in a task.

        Raises:
            RequestError: the caller may not send the body, or the path names an unknown stored response.
        """
        self._admit(outbound, reading)
        if reading.stream:
            request.stream_expected()
        prompt = None
        if reading.intake is not None:
            adapter = self.fleet.adapter(reading.model)
            prompt = self.identity.identify_now(outbound.head.path, reading.intake, adapter)
            if prompt is None:
                return False
            self._identified(outbound, reading.intake, prompt)
        outbound.request = self._describe(outbound, reading, prompt)
        return True

    async def _describe_later(self, outbound: OutboundRequest, reading: BodyFacts) -> Request:
        prompt = None
        if reading.intake is not None:
            adapter = self.fleet.adapter(reading.model)
            prompt = await self.identity.identify(outbound.head.path, reading.intake, adapter)
            self._identified(outbound, reading.intake, prompt)
        return self._describe(outbound, reading, prompt)

    async def preview(self, outbound: OutboundRequest) -> Request:
        """Return the request that the dispatcher would get. It is not counted in any metric or limit.

        Raises:
            RequestError: as the public port would answer.
        """
        reading = await read_in_slices(outbound.route, outbound.head, outbound.body, self.slices)
        await self._find_response(outbound, reading)
        reading = self._named(outbound, reading, counted=False)
        salt = admit(outbound.route, outbound.caller, outbound.body, reading.fields, reading.form)
        if salt is not None:
            outbound.body = salted(outbound.body, salt)
        prompt = None
        if reading.intake is not None:
            adapter = self.fleet.adapter(reading.model)
            prompt = self.identity.identify_now(outbound.head.path, reading.intake, adapter)
            if prompt is None:
                prompt = await self.identity.identify(outbound.head.path, reading.intake, adapter)
        return self._describe(outbound, reading, prompt)

    def _describe(self, outbound: OutboundRequest, reading: BodyFacts, prompt: Prompt | None) -> Request:
        pinned = None
        if outbound.route.pinned or reading.previous_response_id is not None:
            pinned = pinned_to(outbound.route, outbound.head, reading, self.pins, self.paths)
        return describe(outbound, reading, prompt, pinned, self.routes, self.prefix_header)

    def _identified(self, outbound: OutboundRequest, parsed: ParsedBody, prompt: Prompt | None) -> None:
        parsed.release()
        source = prompt.source if prompt is not None else "none"
        self.durations.observe(self.loop.time() - outbound.arrived_s, (source,))
