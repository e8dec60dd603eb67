"""Every error that a client or an operator can see: fault, HTTP status and stable code.

Clients get OpenAI's error object (`body`), operators a problem document (RFC 9457, `problem`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum

import msgspec


class Fault(StrEnum):
    """Who has to change something: the client, the operator of the workers, or the operator of the gateway."""

    CLIENT = "client"
    FLEET = "fleet"
    GATEWAY = "gateway"


@dataclass(frozen=True, slots=True)
class ErrorSpec:
    """One kind of error: its stable code, HTTP status and OpenAI error type."""

    code: str
    status: int
    type: str
    fault: Fault
    title: str


def _client(code: str, status: int, title: str, kind: str = "invalid_request_error") -> ErrorSpec:
    return ErrorSpec(code, status, kind, Fault.CLIENT, title)


def _fleet(code: str, status: int, title: str, kind: str = "service_unavailable") -> ErrorSpec:
    return ErrorSpec(code, status, kind, Fault.FLEET, title)


def _gateway(code: str, status: int, title: str, kind: str = "service_unavailable") -> ErrorSpec:
    return ErrorSpec(code, status, kind, Fault.GATEWAY, title)


class ErrorKind(Enum):
    """The catalogue. Codes are stable: clients and dashboards match on them."""

    # fault of the client
    BAD_REQUEST = _client("bad_request", 400, "Malformed HTTP request")
    INVALID_JSON = _client("invalid_json", 400, "Body is not valid JSON")
    INVALID_BODY = _client("invalid_body", 400, "Body has a wrong field")
    TRANSFER_PARAMS_NOT_ALLOWED = _client(
        "transfer_params_not_allowed", 400, "Only a trusted caller may send KV transfer parameters"
    )
    PRIORITY_NOT_ALLOWED = _client("priority_not_allowed", 400, "Only a trusted caller may send a priority")
    INVALID_API_KEY = _client("invalid_api_key", 401, "API key missing or wrong")
    PATH_NOT_FOUND = _client("path_not_found", 404, "No such path")
    METHOD_NOT_ALLOWED = _client("method_not_allowed", 405, "Method not allowed")
    MODEL_REQUIRED = _client("model_required", 400, "Request names none of several models")
    MODEL_NOT_FOUND = _client("model_not_found", 404, "No such model")
    RESPONSE_NOT_FOUND = _client("response_not_found", 404, "No worker has this response")
    REQUEST_TIMEOUT = _client("request_timeout", 408, "Request did not arrive in time")
    PREFIX_NOT_CACHED = _client("prefix_not_cached", 412, "The worker does not hold the prompt")
    """Only for a request that asks for it (`Prefer: if-available` at the endpoint picker)."""
    BODY_TOO_LARGE = _client("body_too_large", 413, "Body too large")
    UNSUPPORTED_CONTENT_ENCODING = _client(
        "unsupported_content_encoding", 415, "Body is compressed or otherwise encoded"
    )
    EXPECTATION_FAILED = _client("expectation_failed", 417, "Unknown expectation")
    REQUEST_CRASHES_WORKERS = _client("request_crashes_workers", 422, "Workers died of this request")
    HEADERS_TOO_LARGE = _client("headers_too_large", 431, "Headers too large")
    NOT_IMPLEMENTED = _client("not_implemented", 501, "Transfer coding not implemented")
    LOOP_DETECTED = _fleet("loop_detected", 508, "A worker leads back to this gateway")
    HTTP_VERSION = _client("http_version_not_supported", 505, "HTTP version not supported")
    REQUESTS_PER_MINUTE = _client("requests_per_minute_exceeded", 429, "Too many requests per minute", "requests")
    """The types requests and tokens are those that OpenAI's own rate limits have."""
    TOKENS_PER_MINUTE = _client("tokens_per_minute_exceeded", 429, "Too many tokens per minute", "tokens")
    CONCURRENT_REQUESTS = _client(
        "concurrent_requests_exceeded", 429, "Too many requests of this caller at once", "requests"
    )
    REQUEST_ABOVE_TOKEN_LIMIT = _client(
        "request_above_token_limit", 429, "Request larger than the caller's token limit", "tokens"
    )
    WAIT_TOO_LONG = _client("wait_too_long", 429, "The request would wait for too long", "requests")
    PREEMPTED = _client("preempted", 429, "The worker was needed for an earlier class", "requests")
    # fault of the workers
    NO_WORKER = _fleet("no_worker_available", 503, "No worker is ready")
    OVERLOADED = _fleet("overloaded", 503, "Every worker refused for load")
    WORKER_FAILED = _fleet("worker_failed", 503, "The worker failed")
    WORKER_DIED_IN_STREAM = _fleet("worker_died_in_stream", 502, "The worker died in mid-stream", "upstream_error")
    BAD_UPSTREAM = _fleet("bad_upstream_response", 502, "Worker broke HTTP", "upstream_error")
    STREAM_IDLE_TIMEOUT = _fleet("stream_idle_timeout", 504, "The worker's stream stalled", "timeout_error")
    TOTAL_TIMEOUT = _fleet("total_timeout", 504, "Request took too long", "timeout_error")
    # fault of the gateway
    SHUTTING_DOWN = _gateway("shutting_down", 503, "The gateway is shutting down")
    TOO_MANY_REQUESTS = _gateway("too_many_requests", 503, "Too many requests are waiting")
    TENANT_REQUESTS_QUEUED = _gateway(
        "tenant_max_queued_requests", 503, "Too many of the tenant's requests are waiting"
    )
    TENANT_BODY_BYTES = _gateway(
        "tenant_max_buffered_body_bytes", 503, "The tenant's request bodies take up too much memory"
    )
    ROUTE_BUSY = _gateway("route_busy", 503, "The route is at its limit")
    CONCURRENCY_LIMIT = _gateway("concurrency_limit", 503, "Too many requests in progress")
    """503 and not 429: the gateway is full, and not this client's quota. On 503 a balancer tries the next one."""
    EXHAUSTED = _gateway("gateway_exhausted", 503, "The gateway can open no more connections")
    INTERNAL = _gateway("internal_error", 500, "Internal error", "internal_error")

    @property
    def spec(self) -> ErrorSpec:
        return self.value


def body(kind: ErrorKind, message: str, param: str | None = None) -> bytes:
    """Return OpenAI's error object as JSON: ``{"error": {"message", "type", "param", "code"}}``."""
    spec = kind.spec
    return msgspec.json.encode({"error": {"message": message, "type": spec.type, "param": param, "code": spec.code}})


def problem(status: int, code: str, title: str, detail: str) -> dict[str, object]:
    """Return a problem document (RFC 9457); serve it as ``application/problem+json``."""
    return {
        "type": f"urn:warmroute:problem:{code}",
        "title": title,
        "status": status,
        "detail": detail,
        "code": code,
    }


class RequestError(Exception):
    """A request that the gateway answers itself with `kind`.

    `retry_after_s` becomes a ``Retry-After`` header (whole seconds, rounded up), and the `reason` of `WAIT_TOO_LONG`
    an ``x-warmroute-refused`` header.
    """

    def __init__(
        self,
        kind: ErrorKind,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        reason: str | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        self.reason = reason
