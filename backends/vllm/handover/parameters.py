"""Check transfer parameters that a worker returned, before they go to another worker.

vLLM trusts them: it connects to the host that they name, and an incomplete set stops its engine
(``build_connector_meta`` raises KeyError). So a set is complete and well-formed, or it is not used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from ipaddress import ip_address
from typing import Any, TypeAlias, TypeGuard

TransferParams: TypeAlias = dict[str, Any]
"""The JSON object ``kv_transfer_params``."""
Checks: TypeAlias = Mapping[str, Callable[[Any], bool]]
"""Members that must be there, each with what says whether its value is valid."""

MAX_MEMBERS = 64
MAX_NAME_CHARACTERS = 64
MAX_TEXT_CHARACTERS = 1_024
MAX_BLOCKS = 1_048_576
"""Block ids of one prompt, over all KV cache groups. A million tokens have 65,536 blocks of 16 in each group."""
MAX_TOKEN_IDS = 4_194_304
_MAX_INT = 2**63
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252}[A-Za-z0-9])?|\[?[0-9A-Fa-f:.]{2,45}\]?")


class HandoverError(Exception):
    """A KV handover cannot go on; the request is computed on one worker. The message says why, without content."""


def checked_object(value: object) -> TransferParams:
    """Return a copy of `value`, a JSON object of a bounded number of members with short names.

    Raises:
        HandoverError: it is another value.
    """
    if not isinstance(value, dict):
        raise HandoverError("the worker returned no kv_transfer_params")
    if len(value) > MAX_MEMBERS or any(len(name) > MAX_NAME_CHARACTERS for name in value):
        raise HandoverError(f"kv_transfer_params has more than {MAX_MEMBERS} members, or a name that is too long")
    return dict(value)


def check_members(params: TransferParams, checks: Checks) -> None:
    """Check that each member of `checks` is there and valid. Other members may hold any value.

    Raises:
        HandoverError: with the first member that is missing or invalid.
    """
    for name, valid in checks.items():
        if name not in params:
            raise HandoverError(f"kv_transfer_params lacks {name}")
        if not valid(params[name]):
            raise HandoverError(f"kv_transfer_params.{name} is not valid")


def is_text(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_TEXT_CHARACTERS


def is_host(value: object) -> bool:
    return isinstance(value, str) and len(value) <= 255 and _HOST.fullmatch(value) is not None


def is_port(value: object) -> bool:
    return is_count(value) and 0 < value <= 65_535


def labelled_port(label: str) -> int | None:
    """Return the port that a worker's label gives in decimal digits; None if it gives none."""
    if not (label.isascii() and label.isdigit() and len(label) <= 5):
        return None
    port = int(label)
    return port if is_port(port) else None


def labelled_address(label: str, host: str) -> tuple[str, int] | None:
    """Return the address that a worker's label gives as PORT or HOST:PORT; `host` is that of the worker's URL."""
    given, _, digits = label.rpartition(":")
    port = labelled_port(digits)
    return None if port is None else (given.strip("[]") or host, port)


def is_count(value: object) -> TypeGuard[int]:
    """Return whether `value` is a whole number from 0 that fits into 63 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_INT


def is_positive(value: object) -> bool:
    return is_count(value) and value != 0


def is_block_ids(value: object) -> bool:
    """Return whether `value` is vLLM's block ids: a list for each KV cache group."""
    if not isinstance(value, list) or not 0 < len(value) <= MAX_MEMBERS:
        return False
    if not all(isinstance(group, list) for group in value) or sum(map(len, value)) > MAX_BLOCKS:
        return False
    return any(value) and all(_all_counts(group) for group in value)


def is_token_ids(value: object) -> bool:
    return isinstance(value, list) and 0 < len(value) <= MAX_TOKEN_IDS and _all_counts(value)


def _all_counts(values: Iterable[object]) -> bool:
    return all(type(value) is int and 0 <= value < _MAX_INT for value in values)


def is_loopback(host: str) -> bool:
    """Return whether `host` can only be reached from its own machine, as vLLM's default side channel."""
    name = host.strip("[]").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


PEER: Checks = {"remote_engine_id": is_text, "remote_host": is_host, "tp_size": is_positive}
"""How a worker names itself."""
HANDED_OVER: Checks = {
    "do_remote_prefill": lambda value: value is True,
    "remote_block_ids": is_block_ids,
    **PEER,
}
"""How a worker names the blocks that another one reads."""
