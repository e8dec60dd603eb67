"""Find the places of fields in a JSON body, without making objects for their contents.

msgspec skips other fields at about 0.5 to 2 ms per MB, and returns the bytes of the requested ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from backends.foreign_json import json_decoder
from router.errors import ErrorKind, RequestError
from router.tokenization.body.decoding import NO_SCALAR, is_unicode
from router.tokenization.body.fields import (
    PROMPT_FIELDS,
    BodyFields,
    EngineArguments,
    ReusedTokens,
    SamplingParams,
    SpannedFields,
)

SMALL_FIELD_BYTES = 16_384
"""Largest JSON of a field other than the prompt in a large body."""
_EMPTY = re.compile(rb'null|false|0|""|\[[ \t\r\n]*\]|\{[ \t\r\n]*\}')
_EMPTY_WITHIN_BYTES = 64
FIELDS = frozenset(BodyFields.__struct_fields__)
_ABSENT = memoryview(b"")
_SMALL_FIELDS = tuple(name for name in BodyFields.__struct_fields__ if name not in PROMPT_FIELDS)
OBJECTS = frozenset({"stream_options", "vllm_xargs"})
_MAY_BE_LONG = OBJECTS | {"session_id"}
"""Fields that vLLM accepts at any length. They are not read then: neither an object, nor a string, nor absent."""

_find = json_decoder(SpannedFields).decode
_decode = json_decoder(object).decode
_reused = json_decoder(ReusedTokens).decode
_sampling = json_decoder(SamplingParams).decode
_arguments = json_decoder(EngineArguments).decode
_OBJECT, _NULL = b"{n"
_LIST = ord("[")
TRANSFER_FIELDS = ("kv_transfer_params", "ec_transfer_params")
"""Fields that tell a KV or an encoder connector what to transfer."""
REUSED = frozenset({"prompt_token_ids"})
"""Members of kv_transfer_params that no connector reads."""


class JsonSpans:
    """The bytes of each field's value. They are views of the body and keep it in memory."""

    def __init__(self, found: Mapping[str, memoryview]) -> None:
        self._found = found

    def filled(self, name: str) -> bool:
        """Return whether the field is present and neither null, false, zero nor empty."""
        value = self._view(name)
        return len(value) > _EMPTY_WITHIN_BYTES or (len(value) > 0 and _EMPTY.fullmatch(value) is None)

    def opening(self, name: str) -> bytes:
        """Return the first byte of the field's value, which shows its type; empty if there is no such field."""
        return bytes(self._view(name)[:1])

    def small_fields(self) -> BodyFields:
        """Decode all fields except the prompt's.

        Raises:
            RequestError: INVALID_BODY for a field that is too long; INVALID_JSON for a number of thousands of digits.
        """
        fields = BodyFields()
        for name in _SMALL_FIELDS:
            value = self._view(name)
            if not len(value):
                continue
            if value[0] == _LIST or (value[0] == _OBJECT and name not in OBJECTS):
                setattr(fields, name, NO_SCALAR)
            elif len(value) <= SMALL_FIELD_BYTES:
                setattr(fields, name, _small(value))
            elif name in _MAY_BE_LONG:
                setattr(fields, name, NO_SCALAR)
            else:
                message = f"`{name}` must not be longer than {SMALL_FIELD_BYTES} bytes."
                raise RequestError(ErrorKind.INVALID_BODY, message, param=name)
        return fields

    def transfer_field(self, *, look_inside: bool = True) -> str | None:
        """Return the result of the function `transfer_field`, for values that are not decoded.

        Without `look_inside`, objects are not searched, and the caller has to do that.
        """
        params = self._view("kv_transfer_params")
        if _given(params) and not (params[0] == _OBJECT and (not look_inside or _only_reused(params))):
            return "kv_transfer_params"
        if _given(self._view("ec_transfer_params")):
            return "ec_transfer_params"
        if look_inside and (name := _named_in(self._view("vllm_xargs"))):
            return f"vllm_xargs.{name}"
        if look_inside and (name := _named_in(_extra_args(self._view("sampling_params")))):
            return f"sampling_params.extra_args.{name}"
        return None

    def _view(self, name: str) -> memoryview:
        return self._found.get(name, _ABSENT)


def find_spans(body: bytes) -> JsonSpans:
    """Find the fields of `body`, a JSON object.

    Raises:
        ValueError: it is not an object, or not JSON to msgspec, which is stricter than Python's parser.
        RecursionError: it is nested too deeply.
    """
    found = _find(body)
    views = {name: memoryview(getattr(found, name)) for name in FIELDS}
    return JsonSpans({name: view for name, view in views.items() if len(view)})


def transfer_field(fields: BodyFields) -> str | None:
    """Return the field of a decoded body that tells a KV or an encoder connector what to transfer; None if there is
    none.

    ``prompt_token_ids`` alone does not count: vLLM's renderer takes it out, and no connector sees it. vLLM puts the two
    fields into the arguments that it makes from `vllm_xargs` and from a token-in request's
    ``sampling_params.extra_args``. Members with these names in them count too.
    """
    params = fields.kv_transfer_params
    if params is not None and not (isinstance(params, dict) and params.keys() <= REUSED):
        return "kv_transfer_params"
    if fields.ec_transfer_params is not None:
        return "ec_transfer_params"
    if isinstance(fields.vllm_xargs, dict) and (name := _named(fields.vllm_xargs)):
        return f"vllm_xargs.{name}"
    if isinstance(fields.sampling_params, dict) and (name := _named(fields.sampling_params.get("extra_args"))):
        return f"sampling_params.extra_args.{name}"
    return None


def _named(arguments: object) -> str | None:
    given = arguments if isinstance(arguments, dict) else {}
    return next((name for name in TRANSFER_FIELDS if given.get(name) is not None), None)


def _named_in(value: memoryview) -> str | None:
    if not _given(value):
        return None
    try:
        found = _arguments(value)
    except ValueError:
        return None  # not an object: vLLM refuses it
    return next((name for name in TRANSFER_FIELDS if _given(memoryview(getattr(found, name)))), None)


def _extra_args(sampling_params: memoryview) -> memoryview:
    if not _given(sampling_params):
        return _ABSENT
    try:
        return memoryview(_sampling(sampling_params).extra_args)
    except ValueError:
        return _ABSENT


def _only_reused(params: memoryview) -> bool:
    try:
        _reused(params)
    except ValueError:
        return False
    return True


def _given(value: memoryview) -> bool:
    return len(value) > 0 and value[0] != _NULL


def invalid_json(error: Exception) -> RequestError:
    return RequestError(ErrorKind.INVALID_JSON, f"The request body is not valid JSON: {error}.")


def _small(value: memoryview) -> Any:
    """Return a small value, by Python's parser if only that reads it.

    Raises:
        RequestError: INVALID_JSON.
    """
    try:
        return _decode(value)
    except RecursionError:
        return NO_SCALAR
    except ValueError:
        pass
    try:
        found = json.loads(bytes(value))
    except RecursionError:
        return NO_SCALAR
    except ValueError as error:
        raise invalid_json(error) from None
    return found if is_unicode(found) else NO_SCALAR
