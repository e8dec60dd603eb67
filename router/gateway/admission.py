"""What only some callers may send, and the cache salt that a body goes to its worker with. Pure.

A worker with a KV connector trusts transfer parameters: it reads memory of the host that they name, and some values end
its engine. A priority other than 0 goes before everybody else's requests, or is an error where vLLM does not schedule
by priority.
"""

from __future__ import annotations

from router.errors import ErrorKind, RequestError
from router.gateway.http.request_head import RequestHead
from router.gateway.http.routes import ModelSource, Route
from router.security.callers import Caller
from router.tokenization.intake import ParsedBody, as_int
from router.tokenization.multipart import in_utf8, transfer_argument


def admit(route: Route, caller: Caller, head: RequestHead, body: bytes, parsed: ParsedBody | None) -> str | None:
    """The salt that the worker is to get in place of the body's own, None for none; `parsed` gets it, too.

    `parsed` is None for a body that is no JSON object.

    Raises:
        RequestError: the body has what `caller` may not send, or cannot be salted where it must be.
    """
    if parsed is not None:
        check(parsed, caller.may)
    if route.model is ModelSource.MULTIPART and "transfer_params" not in caller.may:
        check_form(head.fields.get(b"content-type", b""), body)
    salts = caller.salts
    if salts is None or not route.salted or not body:
        return None
    if parsed is None:
        raise RequestError(ErrorKind.INVALID_JSON, "The request body is not a JSON object.")
    own = parsed.fields.cache_salt
    if own is not None and (not isinstance(own, str) or not own):
        message = "`cache_salt` must be a string that is not empty."
        raise RequestError(ErrorKind.INVALID_BODY, message, param="cache_salt")
    parsed.cache_salt = salts.of(own)
    return parsed.cache_salt


def check(parsed: ParsedBody, may: frozenset[str]) -> None:
    """Refuse what a caller that may send `may` (of transfer_params, priority, rank) must not send.

    Raises:
        RequestError: TRANSFER_PARAMS_NOT_ALLOWED or PRIORITY_NOT_ALLOWED, with the field's name.
    """
    priority, transfer = parsed.fields.priority, parsed.transfer_field
    if priority is not None and "priority" not in may and as_int(priority) != 0:
        message = "This caller may not send a `priority` other than 0."
        raise RequestError(ErrorKind.PRIORITY_NOT_ALLOWED, message, param="priority")
    if transfer is not None and "transfer_params" not in may:
        raise _no_transfer(transfer)


def check_form(content_type: bytes, body: bytes) -> None:
    """Refuse a form in whose `vllm_xargs` transfer fields may stand.

    Raises:
        RequestError: TRANSFER_PARAMS_NOT_ALLOWED; INVALID_BODY for a form that is not in UTF-8, and so not looked into.
    """
    if not in_utf8(content_type):
        raise RequestError(ErrorKind.INVALID_BODY, "A form must be in UTF-8.")
    argument = transfer_argument(body)
    if argument is not None:
        raise _no_transfer(f"vllm_xargs.{argument}")


def _no_transfer(field: str) -> RequestError:
    message = f"This caller may not send `{field}`, except for `kv_transfer_params.prompt_token_ids`."
    return RequestError(ErrorKind.TRANSFER_PARAMS_NOT_ALLOWED, message, param=field)
