"""The endpoints file of llm-d's plugin `file-discovery`: each entry is one worker, with the labels of its pod."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from backends.discovery.fields import PREFIX, described, port_of
from backends.discovery.registration import Registration

MOST_BYTES = 1 << 20
"""llm-d's own limit."""
KEY = "endpoints"
"""The one key of the file. No other format has it."""
ROLE_LABEL = "llm-d.ai/role"
ROLES: Mapping[str, str] = {
    "prefill": "prefill",
    "decode": "decode",
    "both": "mixed",
    "prefill-decode": "mixed",
    "encode-prefill": "prefill",
    "encode-prefill-decode": "mixed",
}
"""Roles by the values of llm-d's label. A worker that only encodes images (`encode`) takes no request of a client."""
_DEFAULT_NAMESPACE = "default"


class _LlmdEndpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    address: str
    port: str
    namespace: str = _DEFAULT_NAMESPACE
    labels: dict[str, str] = {}


def is_endpoints_file(value: Any) -> bool:
    return isinstance(value, dict) and KEY in value


def endpoints_of(value: Mapping[str, Any]) -> Iterator[Registration]:
    """Yield the workers of an endpoints file.

    Raises:
        ValueError: it has a mistake; the message says where.
    """
    listed = value[KEY]
    if not isinstance(listed, list) or len(value) > 1:
        raise ValueError(f"not an endpoints file of llm-d; write a mapping with the list `{KEY}` alone")
    seen: set[tuple[str, str]] = set()
    for number, entry in enumerate(listed):
        try:
            endpoint = msgspec.convert(entry, _LlmdEndpoint)
            identity = endpoint.namespace, endpoint.name
            if identity in seen:
                raise ValueError(f"{'/'.join(identity)} is named twice")
            seen.add(identity)
            yield _worker_of(endpoint)
        except ValueError as error:  # msgspec's errors are ValueErrors too
            raise ValueError(f"endpoint {number}: {error}") from None


def role_of(labels: Mapping[str, str]) -> str | None:
    """Return the role that llm-d's label gives a worker, None without that label.

    Raises:
        ValueError: the label has another value.
    """
    text = labels.get(ROLE_LABEL)
    if text is not None and text not in ROLES:
        raise ValueError(f"the label {ROLE_LABEL} is {text[:40]!r}; write one of {', '.join(ROLES)}")
    return None if text is None else ROLES[text]


def _worker_of(endpoint: _LlmdEndpoint) -> Registration:
    try:
        address = str(ipaddress.IPv4Address(endpoint.address))
    except ValueError:
        raise ValueError(f"address is {endpoint.address[:40]!r}; write an IPv4 address") from None
    own = {name.removeprefix(PREFIX): text for name, text in endpoint.labels.items() if name.startswith(PREFIX)}
    role = role_of(endpoint.labels)
    fields = {"name": endpoint.name, **({} if role is None else {"role": role}), **own}
    labels = {
        name: text for name, text in endpoint.labels.items() if not name.startswith(PREFIX) and name != ROLE_LABEL
    }
    return described(address, port_of("port", endpoint.port), fields, labels)
