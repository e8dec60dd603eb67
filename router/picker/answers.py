"""The answers to gateways, as serialised messages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from router.errors import ErrorKind, RequestError
from router.picker.collected_request import CollectedRequest, PickAt
from router.picker.protocol.ext_proc_pb2 import (
    BodyMutation,
    BodyResponse,
    CommonResponse,
    HeaderMutation,
    HeadersResponse,
    HeaderValue,
    HeaderValueOption,
    HttpStatus,
    ImmediateResponse,
    ProcessingMode,
    ProcessingRequest,
    ProcessingResponse,
    StreamedBodyResponse,
    TrailersResponse,
)
from router.picker.protocol.names import DESTINATION, DROP_REASON, LB_NAMESPACE, MOST_CHUNK_BYTES, SCORES
from router.requests.answers.error_format import error_body

_SHED: Final = frozenset(
    {
        ErrorKind.OVERLOADED,
        ErrorKind.TOO_MANY_REQUESTS,
        ErrorKind.TENANT_REQUESTS_QUEUED,
        ErrorKind.ROUTE_BUSY,
        ErrorKind.CONCURRENCY_LIMIT,
    }
)
"""Errors that are 503 at the public port, where a balancer tries another gateway. Behind a picker there is none, and
GAIE's protocol asks for 429."""
_SHED_STATUS: Final = 429
_REASONS: Final[Mapping[ErrorKind, str]] = {
    **dict.fromkeys(_SHED, "rejected-saturated"),
    ErrorKind.NO_WORKER: "rejected-no-endpoints",
    ErrorKind.SHUTTING_DOWN: "rejected-shutting-down",
}
"""llm-d's reasons for a request that was dropped."""
_REASONS_OF_CLASSES: Final[Mapping[str | None, str]] = {
    "predicted-wait": "rejected-saturated",
    "queue-full": "rejected-saturated",
    "waited": "rejected-ttl-expired",
}
"""llm-d's names for `router.requests.layers.classes.layer.REFUSALS`."""
_RETRY_AFTER_S: Final = 1.0

PASS_HEADERS: Final[bytes] = ProcessingResponse(request_headers=HeadersResponse()).SerializeToString()
PASS_BODY: Final[bytes] = ProcessingResponse(request_body=BodyResponse()).SerializeToString()
PASS_TRAILERS: Final[bytes] = ProcessingResponse(request_trailers=TrailersResponse()).SerializeToString()
_PASS_RESPONSE_HEADERS: Final[bytes] = ProcessingResponse(response_headers=HeadersResponse()).SerializeToString()
_PASS_RESPONSE_BODY: Final[bytes] = ProcessingResponse(response_body=BodyResponse()).SerializeToString()
_PASS_RESPONSE_TRAILERS: Final[bytes] = ProcessingResponse(response_trailers=TrailersResponse()).SerializeToString()


@dataclass(frozen=True, slots=True)
class PickAnswer:
    """A pick: the endpoints, what changes in the headers, and the body if that changes."""

    destination: str
    """``ip:port``, or a comma list, best first."""
    headers: Sequence[tuple[str, bytes]]
    removed: Sequence[str]
    body: bytes | None
    scores: Mapping[str, float] = field(default_factory=dict)
    """By endpoint; empty: not said."""


def pick_answers(collected: CollectedRequest, pick: PickAnswer) -> Iterator[bytes]:
    """Yield the answers to the messages of a request, in their order."""
    if collected.answered_at is PickAt.BODY:
        yield _with_metadata(ProcessingResponse(request_body=BodyResponse(response=_changes(pick, pick.body))), pick)
        if collected.trailers:
            yield PASS_TRAILERS
        return
    yield _with_metadata(ProcessingResponse(request_headers=HeadersResponse(response=_changes(pick, None))), pick)
    if collected.answered_at is PickAt.DUPLEX:
        yield from _chunks(collected.body if pick.body is None else pick.body, ends=not collected.trailers)
        if collected.trailers:
            yield PASS_TRAILERS


def _changes(pick: PickAnswer, body: bytes | None) -> CommonResponse:
    headers = [_header(DESTINATION, pick.destination.encode()), *(_header(*each) for each in pick.headers)]
    return CommonResponse(
        header_mutation=HeaderMutation(set_headers=headers, remove_headers=pick.removed),
        body_mutation=None if body is None else BodyMutation(body=body),
        clear_route_cache=True,
    )


def _header(name: str, value: bytes) -> HeaderValueOption:
    return HeaderValueOption(
        header=HeaderValue(key=name, raw_value=value),
        append_action=HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD,
    )


def _wire(answer: ProcessingResponse) -> bytes:
    serialised: bytes = answer.SerializeToString()
    return serialised


def _with_metadata(answer: ProcessingResponse, pick: PickAnswer) -> bytes:
    namespace = answer.dynamic_metadata.fields[LB_NAMESPACE].struct_value
    namespace.fields[DESTINATION].string_value = pick.destination
    for endpoint, score in pick.scores.items():
        namespace.fields[SCORES].struct_value.fields[endpoint].number_value = score
    return _wire(answer)


def _chunks(body: bytes, *, ends: bool) -> Iterator[bytes]:
    """Yield the body in chunks. Without one, a last empty chunk ends it."""
    starts = range(0, len(body), MOST_CHUNK_BYTES) or ((0,) if ends else ())
    for start in starts:
        end = start + MOST_CHUNK_BYTES
        part = StreamedBodyResponse(body=body[start:end], end_of_stream=ends and end >= len(body))
        mutation = CommonResponse(body_mutation=BodyMutation(streamed_response=part))
        yield _wire(ProcessingResponse(request_body=BodyResponse(response=mutation)))


def refusal(error: RequestError, path: str, request_id: bytes) -> bytes:
    """Return the answer that ends a request with an error, in the format of its API."""
    kind, shed = error.kind, error.kind in _SHED
    headers = [_header("content-type", b"application/json"), _header("x-request-id", request_id)]
    retry_after_s = _RETRY_AFTER_S if error.retry_after_s is None and shed else error.retry_after_s
    if retry_after_s is not None:
        headers.append(_header("retry-after", b"%d" % max(1, math.ceil(retry_after_s))))
    if kind is ErrorKind.WAIT_TOO_LONG:
        headers += [_header("x-should-retry", b"true"), _header("x-warmroute-refused", (error.reason or "").encode())]
    reason = _REASONS_OF_CLASSES.get(error.reason) if kind is ErrorKind.WAIT_TOO_LONG else _REASONS.get(kind)
    if reason is not None:
        headers.append(_header(DROP_REASON, reason.encode()))
    if kind is ErrorKind.INVALID_API_KEY:
        headers.append(_header("www-authenticate", b"Bearer"))
    answer = ImmediateResponse(
        status=HttpStatus(code=_SHED_STATUS if shed else kind.spec.status),
        headers=HeaderMutation(set_headers=headers),
        body=error_body(error, path),
        details=kind.spec.code,
    )
    return _wire(ProcessingResponse(immediate_response=answer))


def passed(message: ProcessingRequest, request_mode: int, response_mode: int) -> bytes | None:
    """Return the answer that lets a message pass after the pick; None for what needs none."""
    kind = message.WhichOneof("request")
    if kind == "response_headers":
        return _PASS_RESPONSE_HEADERS
    if kind == "response_body":
        return _echo(message) if response_mode == ProcessingMode.FULL_DUPLEX_STREAMED else _PASS_RESPONSE_BODY
    if kind == "response_trailers":
        return _PASS_RESPONSE_TRAILERS
    if request_mode == ProcessingMode.FULL_DUPLEX_STREAMED:
        return None  # the request has ended, and its end may come twice
    return PASS_BODY if kind == "request_body" else PASS_TRAILERS


def _echo(message: ProcessingRequest) -> bytes:
    part = StreamedBodyResponse(body=message.response_body.body, end_of_stream=message.response_body.end_of_stream)
    mutation = CommonResponse(body_mutation=BodyMutation(streamed_response=part))
    return _wire(ProcessingResponse(response_body=BodyResponse(response=mutation)))
