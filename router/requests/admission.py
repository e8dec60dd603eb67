"""Check the fields that only some callers may send, and choose the cache salt of a body. Pure.

A worker with a KV connector trusts transfer parameters: it reads memory of the host that they name, and some values
stop its engine. A priority other than 0 can place a request before those of all other callers. vLLM answers it with
an error if it does not schedule by priority.
"""

from __future__ import annotations

from router.errors import ErrorKind, RequestError
from router.requests.routes import Route
from router.security.callers import Caller
from router.tokenization.body.parsed_body import ParsedBody, as_int


def admit(route: Route, caller: Caller, body: bytes, parsed: ParsedBody) -> str | None:
    """Return the cache salt that replaces the body's own, or None for no salt. Set it in `parsed`, too.

    Raises:
        RequestError: the body has a field that `caller` may not send, or needs a salt and cannot take one.
    """
    form = parsed.form
    check(parsed, caller.may)
    if form is not None and form.transfer is not None and "transfer_params" not in caller.may:
        raise _no_transfer(f"vllm_xargs.{form.transfer}")
    salts = caller.salts
    if salts is None or not route.salted or not body:
        return None
    if not parsed.is_json:
        raise RequestError(ErrorKind.INVALID_JSON, "The request body is not a JSON object.")
    own = parsed.fields.cache_salt
    if own is not None and (not isinstance(own, str) or not own):
        message = "`cache_salt` must be a string that is not empty."
        raise RequestError(ErrorKind.INVALID_BODY, message, param="cache_salt")
    parsed.cache_salt = salts.of(own)
    return parsed.cache_salt


def check(parsed: ParsedBody, may: frozenset[str]) -> None:
    """Refuse fields that the caller may not send. `may` is a subset of transfer_params, priority and rank.

    Raises:
        RequestError: TRANSFER_PARAMS_NOT_ALLOWED or PRIORITY_NOT_ALLOWED, with the field's name.
    """
    priority, transfer = parsed.fields.priority, parsed.transfer_field
    if priority is not None and "priority" not in may and as_int(priority) != 0:
        message = "This caller may not send a `priority` other than 0."
        raise RequestError(ErrorKind.PRIORITY_NOT_ALLOWED, message, param="priority")
    if transfer is not None and "transfer_params" not in may:
        raise _no_transfer(transfer)


def _no_transfer(field: str) -> RequestError:
    message = f"This caller may not send `{field}`, except for `kv_transfer_params.prompt_token_ids`."
    return RequestError(ErrorKind.TRANSFER_PARAMS_NOT_ALLOWED, message, param=field)
