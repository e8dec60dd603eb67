"""Refusals in vLLM's shape: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

from http import HTTPStatus

import msgspec

_TYPES = {
    HTTPStatus.BAD_REQUEST: "BadRequestError",
    HTTPStatus.NOT_FOUND: "NotFoundError",
    HTTPStatus.METHOD_NOT_ALLOWED: "MethodNotAllowedError",
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "UnsupportedMediaTypeError",
    HTTPStatus.SERVICE_UNAVAILABLE: "ServiceUnavailableError",
}


class ApiError(Exception):
    """A request that the worker answers with `status` and vLLM's error object."""

    def __init__(self, message: str, *, status: HTTPStatus = HTTPStatus.BAD_REQUEST, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.param = param

    def body(self) -> bytes:
        kind = _TYPES.get(self.status, "InternalServerError")
        error = {"message": self.message, "type": kind, "param": self.param, "code": int(self.status)}
        return msgspec.json.encode({"error": error})


def unknown_model(name: str) -> ApiError:
    return ApiError(f"The model `{name}` is not served here.", status=HTTPStatus.NOT_FOUND, param="model")


def unavailable(message: str) -> ApiError:
    """Return a 503: another instance may take the request."""
    return ApiError(message, status=HTTPStatus.SERVICE_UNAVAILABLE)
