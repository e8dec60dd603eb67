"""Where the fields of a JSON body stand, without an object for anything inside them.

msgspec skips what is not asked for at about 0.5 to 2 ms per MB, and gives the bytes of what is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from router.errors import ErrorKind, RequestError
from router.tokens.fields import PROMPT_FIELDS, BodyFields, ReusedTokens, SpannedFields

SMALL_FIELD_BYTES = 16_384
"""How long the JSON of a field beside the prompt may be in a large body."""
_EMPTY = re.compile(rb'null|false|0|""|\[[ \t\r\n]*\]|\{[ \t\r\n]*\}')
_EMPTY_WITHIN_BYTES = 64
FIELDS = frozenset(BodyFields.__struct_fields__)
_ABSENT = memoryview(b"")
_SMALL_FIELDS = tuple(name for name in BodyFields.__struct_fields__ if name not in PROMPT_FIELDS)
_OBJECTS = frozenset({"stream_options", "vllm_xargs"})
_UNREAD = "too long to be read"
"""Stands for an object of options that is not small: neither an object nor absent."""

_find = msgspec.json.Decoder(SpannedFields).decode
_decode = msgspec.json.Decoder().decode
_reused = msgspec.json.Decoder(ReusedTokens).decode


class Spans:
    """The bytes of each field's value. They are views of the body and keep it in memory."""

    __slots__ = ("_found",)

    def __init__(self, found: Mapping[str, memoryview]) -> None:
        self._found = found

    def filled(self, name: str) -> bool:
        """Whether the field is there and neither null, false, zero nor empty."""
        value = self._view(name)
        return len(value) > _EMPTY_WITHIN_BYTES or (len(value) > 0 and _EMPTY.fullmatch(value) is None)

    def opening(self, name: str) -> bytes:
        """The first byte of the field's value, which says of what type it is; empty where there is no such field."""
        return bytes(self._view(name)[:1])

    def small_fields(self) -> BodyFields:
        """All fields but the prompt's, decoded.

        Raises:
            RequestError: INVALID_BODY for a field that is too long; INVALID_JSON for a number of thousands of digits.
        """
        fields = BodyFields()
        for name in _SMALL_FIELDS:
            value = self._view(name)
            if not len(value):
                continue
            if len(value) <= SMALL_FIELD_BYTES:
                setattr(fields, name, _small(value))
            elif name in _OBJECTS:
                setattr(fields, name, _UNREAD)
            else:
                message = f"`{name}` must not be longer than {SMALL_FIELD_BYTES} bytes."
                raise RequestError(ErrorKind.INVALID_BODY, message, param=name)
        return fields

    def names_transfer(self, *, look_inside: bool = True) -> bool:
        """As the function of that name, for values that have not been decoded. Else than `look_inside`,
        `kv_transfer_params` are left to the caller."""
        if self.filled("ec_transfer_params"):
            return True
        if not look_inside or self.opening("kv_transfer_params") != b"{":
            return False
        try:
            _reused(self._view("kv_transfer_params"))
        except ValueError:
            return True
        return False

    def _view(self, name: str) -> memoryview:
        return self._found.get(name, _ABSENT)


def find_spans(body: bytes) -> Spans:
    """The fields of `body`, a JSON object.

    Raises:
        ValueError: it is no object, or no JSON to msgspec, which is stricter than Python's parser.
        RecursionError: it is nested too deeply.
    """
    found = _find(body)
    views = {name: memoryview(getattr(found, name)) for name in FIELDS}
    return Spans({name: view for name, view in views.items() if len(view)})


def names_transfer(kv_transfer_params: object, ec_transfer_params: object) -> bool:
    """Whether these two fields of a body tell a KV or an encoder connector what to transfer.

    ``prompt_token_ids`` alone do not: vLLM's renderer takes them out, and no connector sees them.
    """
    keys = kv_transfer_params.keys() if isinstance(kv_transfer_params, dict) else ()
    return bool(ec_transfer_params) or any(key != "prompt_token_ids" for key in keys)


class UnreadBody(RequestError):
    """The body was not decoded, and may be JSON all the same to a worker, whose Python has other limits."""


def invalid_json(error: Exception) -> RequestError:
    """The refusal of a body that cannot be decoded."""
    kind = UnreadBody if isinstance(error, RecursionError) else RequestError
    return kind(ErrorKind.INVALID_JSON, f"The request body is not valid JSON: {error}.")


def _small(value: memoryview) -> Any:
    try:
        return _decode(value)
    except (ValueError, RecursionError) as error:
        raise invalid_json(error) from None
