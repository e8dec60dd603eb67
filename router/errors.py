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


class ErrorKind(Enum):
    """The catalogue. Codes are stable: clients and dashboards match on them."""

    # fault of the client
    BAD_REQUEST = ErrorSpec("bad_request", 400, "invalid_request_error", Fault.CLIENT, "Malformed HTTP request")
    INVALID_JSON = ErrorSpec("invalid_json", 400, "invalid_request_error", Fault.CLIENT, "Body is not valid JSON")
    INVALID_BODY = ErrorSpec("invalid_body", 400, "invalid_request_error", Fault.CLIENT, "Body has a wrong field")
    TRANSFER_PARAMS_NOT_ALLOWED = ErrorSpec(
        "transfer_params_not_allowed",
        400,
        "invalid_request_error",
        Fault.CLIENT,
        "Only a trusted caller may send KV transfer parameters",
    )
    PRIORITY_NOT_ALLOWED = ErrorSpec(
        "priority_not_allowed", 400, "invalid_request_error", Fault.CLIENT, "Only a trusted caller may send a priority"
    )
    INVALID_API_KEY = ErrorSpec(
        "invalid_api_key", 401, "invalid_request_error", Fault.CLIENT, "API key missing or wrong"
    )
    PATH_NOT_FOUND = ErrorSpec("path_not_found", 404, "invalid_request_error", Fault.CLIENT, "No such path")
    METHOD_NOT_ALLOWED = ErrorSpec(
        "method_not_allowed", 405, "invalid_request_error", Fault.CLIENT, "Method not allowed"
    )
    MODEL_REQUIRED = ErrorSpec(
        "model_required", 400, "invalid_request_error", Fault.CLIENT, "Request names none of several models"
    )
    MODEL_NOT_FOUND = ErrorSpec("model_not_found", 404, "invalid_request_error", Fault.CLIENT, "No such model")
    RESPONSE_NOT_FOUND = ErrorSpec(
        "response_not_found",
        404,
        "invalid_request_error",
        Fault.CLIENT,
        "No worker has this response",
    )
    REQUEST_TIMEOUT = ErrorSpec(
        "request_timeout", 408, "invalid_request_error", Fault.CLIENT, "Request did not arrive in time"
    )
    BODY_TOO_LARGE = ErrorSpec("body_too_large", 413, "invalid_request_error", Fault.CLIENT, "Body too large")
    UNSUPPORTED_CONTENT_ENCODING = ErrorSpec(
        "unsupported_content_encoding",
        415,
        "invalid_request_error",
        Fault.CLIENT,
        "Body is compressed or otherwise encoded",
    )
    EXPECTATION_FAILED = ErrorSpec(
        "expectation_failed", 417, "invalid_request_error", Fault.CLIENT, "Unknown expectation"
    )
    REQUEST_CRASHES_WORKERS = ErrorSpec(
        "request_crashes_workers", 422, "invalid_request_error", Fault.CLIENT, "Workers died of this request"
    )
    HEADERS_TOO_LARGE = ErrorSpec("headers_too_large", 431, "invalid_request_error", Fault.CLIENT, "Headers too large")
    NOT_IMPLEMENTED = ErrorSpec(
        "not_implemented", 501, "invalid_request_error", Fault.CLIENT, "Transfer coding not implemented"
    )
    LOOP_DETECTED = ErrorSpec(
        "loop_detected", 508, "service_unavailable", Fault.FLEET, "A worker leads back to this gateway"
    )
    HTTP_VERSION = ErrorSpec(
        "http_version_not_supported", 505, "invalid_request_error", Fault.CLIENT, "HTTP version not supported"
    )
    REQUESTS_PER_MINUTE = ErrorSpec(
        "requests_per_minute_exceeded", 429, "requests", Fault.CLIENT, "Too many requests per minute"
    )
    """The types requests and tokens are those that OpenAI's own rate limits have."""
    TOKENS_PER_MINUTE = ErrorSpec(
        "tokens_per_minute_exceeded", 429, "tokens", Fault.CLIENT, "Too many tokens per minute"
    )
    CONCURRENT_REQUESTS = ErrorSpec(
        "concurrent_requests_exceeded", 429, "requests", Fault.CLIENT, "Too many requests of this caller at once"
    )
    REQUEST_ABOVE_TOKEN_LIMIT = ErrorSpec(
        "request_above_token_limit", 429, "tokens", Fault.CLIENT, "Request larger than the caller's token limit"
    )
    # fault of the workers
    NO_WORKER = ErrorSpec("no_worker_available", 503, "service_unavailable", Fault.FLEET, "No worker is ready")
    OVERLOADED = ErrorSpec("overloaded", 503, "service_unavailable", Fault.FLEET, "Every worker refused for load")
    WORKER_FAILED = ErrorSpec("worker_failed", 503, "service_unavailable", Fault.FLEET, "The worker failed")
    WORKER_DIED_IN_STREAM = ErrorSpec(
        "worker_died_in_stream", 502, "upstream_error", Fault.FLEET, "The worker died in mid-stream"
    )
    BAD_UPSTREAM = ErrorSpec("bad_upstream_response", 502, "upstream_error", Fault.FLEET, "Worker broke HTTP")
    STREAM_IDLE_TIMEOUT = ErrorSpec(
        "stream_idle_timeout", 504, "timeout_error", Fault.FLEET, "The worker's stream stalled"
    )
    TOTAL_TIMEOUT = ErrorSpec("total_timeout", 504, "timeout_error", Fault.FLEET, "Request took too long")
    # fault of the gateway
    SHUTTING_DOWN = ErrorSpec(
        "shutting_down", 503, "service_unavailable", Fault.GATEWAY, "The gateway is shutting down"
    )
    TOO_MANY_REQUESTS = ErrorSpec(
        "too_many_requests", 503, "service_unavailable", Fault.GATEWAY, "Too many requests are waiting"
    )
    TENANT_REQUESTS_QUEUED = ErrorSpec(
        "tenant_max_queued_requests",
        503,
        "service_unavailable",
        Fault.GATEWAY,
        "Too many of the tenant's requests are waiting",
    )
    TENANT_BODY_BYTES = ErrorSpec(
        "tenant_max_buffered_body_bytes",
        503,
        "service_unavailable",
        Fault.GATEWAY,
        "The tenant's request bodies take up too much memory",
    )
    ROUTE_BUSY = ErrorSpec("route_busy", 503, "service_unavailable", Fault.GATEWAY, "The route is at its limit")
    ROUTE_BUSY_429 = ErrorSpec("route_limit", 429, "rate_limit_error", Fault.GATEWAY, "The route is at its limit")
    """As `ROUTE_BUSY`, for routes whose `queue.status` is 429."""
    CONCURRENCY_LIMIT = ErrorSpec(
        "concurrency_limit", 503, "service_unavailable", Fault.GATEWAY, "Too many requests in progress"
    )
    """503 and not 429: the gateway is full, and not this client's quota. On 503 a balancer tries the next one."""
    EXHAUSTED = ErrorSpec(
        "gateway_exhausted", 503, "service_unavailable", Fault.GATEWAY, "The gateway can open no more connections"
    )
    INTERNAL = ErrorSpec("internal_error", 500, "internal_error", Fault.GATEWAY, "Internal error")

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

    `retry_after_s` becomes a ``Retry-After`` header (whole seconds, rounded up).
    """

    def __init__(
        self, kind: ErrorKind, message: str, *, param: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
