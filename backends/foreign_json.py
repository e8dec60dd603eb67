"""The only place that makes decoders of JSON.

msgspec takes 11 us for ``1e308``. Python's `float` takes 0.3 us and returns the same number. Other values take msgspec
no longer than Python.

msgspec passes floats to `float` only where any type is allowed. So a type for JSON that others write has no list and no
mapping of floats.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from types import UnionType
from typing import Any, TypeAlias, TypeVar, overload

import msgspec

T = TypeVar("T")
JsonText: TypeAlias = bytes | str | memoryview | msgspec.Raw

_KEPT_DECODERS = 256
"""Decoders that `read_json` keeps. The program has fewer types."""


@overload
def json_decoder(kind: type[T], read_float: Callable[[str], float] = ...) -> msgspec.json.Decoder[T]: ...


@overload
def json_decoder(kind: UnionType, read_float: Callable[[str], float] = ...) -> msgspec.json.Decoder[Any]: ...


def json_decoder(kind: Any, read_float: Callable[[str], float] = float) -> msgspec.json.Decoder[Any]:
    """Return a decoder of `kind`. `read_float` converts floats of any type; its exceptions end the decoding."""
    return msgspec.json.Decoder(kind, float_hook=read_float)


_anything = json_decoder(object)
_kept: Callable[[Any], msgspec.json.Decoder[Any]] = lru_cache(_KEPT_DECODERS)(json_decoder)


@overload
def read_json(text: JsonText) -> Any: ...


@overload
def read_json(text: JsonText, kind: type[T]) -> T: ...


@overload
def read_json(text: JsonText, kind: UnionType) -> Any: ...


def read_json(text: JsonText, kind: Any = None) -> Any:
    """Return the value of `text`, of type `kind` if that is given.

    Raises:
        msgspec.DecodeError: it is not JSON, or not of this type.
        UnicodeDecodeError: it is not UTF-8.
        RecursionError: it is nested too deeply.
    """
    return (_anything if kind is None else _kept(kind)).decode(text)
