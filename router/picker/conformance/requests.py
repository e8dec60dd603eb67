"""The messages that a gateway sends, as Envoy 1.40 writes them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from uuid import uuid4

from google.protobuf.struct_pb2 import Struct

from router.picker.protocol.ext_proc_pb2 import (
    HeaderMap,
    HeaderValue,
    HttpBody,
    HttpHeaders,
    HttpTrailers,
    Metadata,
    ProcessingMode,
    ProcessingRequest,
    ProtocolConfiguration,
)
from router.picker.protocol.names import LB_NAMESPACE, SERVED, SUBSET, SUBSET_NAMESPACE

NONE = ProcessingMode.NONE
STREAMED = ProcessingMode.STREAMED
BUFFERED = ProcessingMode.BUFFERED
FULL_DUPLEX = ProcessingMode.FULL_DUPLEX_STREAMED

PIECE_BYTES = 16_384
"""What a gateway reads at once."""

HeaderFields = Sequence[tuple[str, str | bytes]]


@dataclass(frozen=True, slots=True)
class GatewayRequest:
    body: bytes | None
    """None: the headers end the request."""
    method: str = "POST"
    path: str = "/v1/chat/completions"
    headers: HeaderFields = ()
    with_length: bool = True
    subset: Sequence[str] | str | None = None
    subset_namespace: str = SUBSET_NAMESPACE
    subset_key: str = SUBSET
    mode: ProcessingMode.BodySendMode = FULL_DUPLEX
    response_mode: ProcessingMode.BodySendMode = NONE
    says_mode: bool = True
    """Whether `protocol_config` is sent; older gateways have none."""
    sends_at_once: bool = False
    """`send_body_without_waiting_for_header_response`."""


def chat(model: str, text: str | None = None, filler_bytes: int = 0) -> bytes:
    """Return the body of a chat. Without `text` its prompt is one that nobody sent before."""
    prompt = f"{text if text is not None else uuid4()} {'words ' * (filler_bytes // 6)}{'x' * (filler_bytes % 6)}"
    return json.dumps({"model": model, "messages": [{"role": "user", "content": prompt}]}).encode()


def chat_of(model: str, size_bytes: int) -> bytes:
    """Return the body of a chat that has exactly `size_bytes`."""
    filler = size_bytes - len(chat(model))
    assert filler >= 0, size_bytes
    return chat(model, filler_bytes=filler)


def request_headers(request: GatewayRequest) -> ProcessingRequest:
    """Return the first message of a stream."""
    message = ProcessingRequest(
        request_headers=HttpHeaders(headers=header_map(_fields(request)), end_of_stream=request.body is None)
    )
    if request.says_mode:
        message.protocol_config.CopyFrom(
            ProtocolConfiguration(
                request_body_mode=request.mode,
                response_body_mode=request.response_mode,
                send_body_without_waiting_for_header_response=request.sends_at_once,
            )
        )
    message.metadata_context.SetInParent()
    if request.subset is not None:
        subset = request.subset if isinstance(request.subset, str) else list(request.subset)
        message.metadata_context.CopyFrom(metadata(request.subset_namespace, request.subset_key, subset))
    return message


def _fields(request: GatewayRequest) -> Iterator[tuple[str, str | bytes]]:
    yield from ((":method", request.method), (":path", request.path))
    yield from ((":authority", "pool.example"), (":scheme", "http"), ("x-request-id", str(uuid4())))
    if request.body is not None:
        yield "content-type", "application/json"
        if request.with_length:
            yield "content-length", str(len(request.body))
    yield from request.headers


def header_map(fields: Iterable[tuple[str, str | bytes]]) -> HeaderMap:
    return HeaderMap(
        headers=[
            HeaderValue(key=key, raw_value=value if isinstance(value, bytes) else value.encode())
            for key, value in fields
        ]
    )


def metadata(namespace: str, key: str, value: str | list[str]) -> Metadata:
    struct = Struct()
    struct.update({key: value})
    return Metadata(filter_metadata={namespace: struct})


def pieces_of(body: bytes, size_bytes: int = PIECE_BYTES) -> list[bytes]:
    """Return the parts of a body; of an empty one, one empty part."""
    return [body[at : at + size_bytes] for at in range(0, len(body), size_bytes)] or [b""]


def body_messages(pieces: Sequence[bytes], ends: bool = True) -> Iterator[ProcessingRequest]:
    """Yield a message per piece; the last one ends the body, unless trailers do."""
    for number, piece in enumerate(pieces, 1):
        yield ProcessingRequest(request_body=HttpBody(body=piece, end_of_stream=ends and number == len(pieces)))


def request_trailers() -> ProcessingRequest:
    return ProcessingRequest(request_trailers=HttpTrailers(trailers=header_map([("x-checksum", "1")])))


def response_headers(
    status: int, headers: HeaderFields = (), served: str | None = None, ends: bool = False
) -> ProcessingRequest:
    """Return the message for the worker's headers. `served` is the endpoint that answered."""
    fields = header_map([(":status", str(status)), *headers])
    message = ProcessingRequest(response_headers=HttpHeaders(headers=fields, end_of_stream=ends))
    message.metadata_context.SetInParent()
    if served is not None:
        message.metadata_context.CopyFrom(metadata(LB_NAMESPACE, SERVED, served))
    return message


def response_body(piece: bytes, ends: bool) -> ProcessingRequest:
    return ProcessingRequest(response_body=HttpBody(body=piece, end_of_stream=ends))


def response_trailers() -> ProcessingRequest:
    return ProcessingRequest(response_trailers=HttpTrailers(trailers=header_map([("x-checksum", "1")])))
