"""The fields of a worker as texts by name, which annotations, labels and settings carry."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from backends.discovery.registration import KvEvents, Registration

PREFIX = "warmroute.io/"
"""Begins the names of Kubernetes annotations and labels."""
LABEL = "label."
"""Begins the field of one label: label.zone is the worker's label `zone`."""
FIELDS = ("name", "model", "role", "weight", "scheme", "path", "kv-events-port", "kv-replay-port")
_HIGHEST_PORT = 65_535
_DNS_PORT = 53


def described(host: str, port: int, fields: Mapping[str, str], labels: Mapping[str, str] | None = None) -> Registration:
    """Return the worker at `host` and `port` with these fields, and with `labels` beneath those of the fields.

    Raises:
        ValueError: a field has a value that it cannot have; the message names it.
    """
    own = {name.removeprefix(LABEL): text for name, text in fields.items() if name.startswith(LABEL)}
    weight = fields.get("weight")
    address = address_of(host, port)
    return Registration(
        url=f"{fields.get('scheme', 'http')}://{address}{fields.get('path', '')}",
        name=fields.get("name"),
        model=fields.get("model"),
        role=fields.get("role"),
        weight=None if weight is None else _number("weight", weight),
        labels={**(labels or {}), **own},
        kv_events=_kv_events(host, fields),
    )


def address_of(host: str, port: int) -> str:
    """Return ``host:port``, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def with_defaults(worker: Registration, fields: Mapping[str, str]) -> Registration:
    """Return the worker with the fields that it does not have itself.

    Raises:
        ValueError: a field has a value that it cannot have.
    """
    host, _, port = worker.worker_id.rpartition(":")
    default = described(host.strip("[]"), int(port), fields)
    return Registration(
        url=worker.url,
        name=worker.name,
        model=worker.model or default.model,
        role=worker.role or default.role,
        weight=default.weight if worker.weight is None else worker.weight,
        labels={**default.labels, **worker.labels},
        kv_events=worker.kv_events or default.kv_events,
        started_at=worker.started_at,
    )


def port_of(name: str, text: str) -> int:
    """Return a port number.

    Raises:
        ValueError: the text is none.
    """
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(_HIGHEST_PORT))):
        raise ValueError(f"{name} is {text[:40]!r}; write a port number")
    if not 0 < (port := int(text)) <= _HIGHEST_PORT:
        raise ValueError(f"{name} is {port}; write a port number from 1 to {_HIGHEST_PORT}")
    return port


def parse_server(text: str) -> tuple[str, int]:
    """Return address and port of a DNS server: ``10.0.0.2``, ``10.0.0.2:5353``, ``fd00::2`` or ``[fd00::2]:5353``.

    Raises:
        ValueError: it is none of these.
    """
    host, port = text, str(_DNS_PORT)
    if text.startswith("[") and "]" in text:
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":") or port
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise ValueError(f"{text!r} is no address of a DNS server; write ADDRESS or ADDRESS:PORT") from None
    return host, port_of(f"the port of {text!r}", port)


def _kv_events(host: str, fields: Mapping[str, str]) -> KvEvents | None:
    events, replay = fields.get("kv-events-port"), fields.get("kv-replay-port")
    if events is None:
        if replay is not None:
            raise ValueError("kv-replay-port is given without kv-events-port; write both")
        return None
    return KvEvents(
        endpoint=f"tcp://{address_of(host, port_of('kv-events-port', events))}",
        replay_endpoint=None if replay is None else f"tcp://{address_of(host, port_of('kv-replay-port', replay))}",
    )


def _number(name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= 1e6:
        raise ValueError(f"{name} is {text[:40]!r}; write a number above 0")
    return number
