"""The description of one worker, as sources of workers report it and as workers register themselves."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from backends.foreign_json import read_json
from backends.worker import parse_endpoint

MOST_BYTES = 65_536
LEASE_S = 15.0
"""How long a registration lasts. It is renewed every `RENEW_S`, so that two renewals may be lost."""
RENEW_S = 5.0
_Text = Annotated[str, Meta(max_length=1_024)]


class KvEvents(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where rank 0 publishes KV events (tcp://HOST:PORT), if the worker's ``/kv_event_sources`` does not list them."""

    endpoint: _Text
    replay_endpoint: _Text | None = None
    topic: _Text = ""


class Registration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One worker. Only `url` is required; unknown fields of a document are ignored.

    `started_at` is the time in seconds since 1970 at which the worker registered first, and tells one process at an
    address from the next.
    """

    url: _Text
    name: _Text | None = None
    model: _Text | None = None
    role: _Text | None = None
    weight: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    labels: Annotated[dict[_Text, _Text], Meta(max_length=256)] = {}
    kv_events: KvEvents | None = None
    started_at: float | None = None

    @property
    def worker_id(self) -> str:
        """``host:port``.

        Raises:
            ValueError: `url` is not a worker URL.
        """
        return parse_endpoint(self.url).authority


def encode(registration: Registration) -> bytes:
    return msgspec.json.encode(registration)


def decode(document: bytes) -> Registration:
    """Return the registration of a JSON document.

    Raises:
        ValueError: the document is no registration; the message says why.
    """
    if len(document) > MOST_BYTES:
        raise ValueError(f"a registration of {len(document)} bytes; at most {MOST_BYTES} are read")
    try:
        registration = read_json(document, Registration)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(f"not a registration: {error}") from None
    parse_endpoint(registration.url)
    return registration


def registration_key(prefix: str, fleet: str, worker_id: str) -> str:
    """Return the Redis key of a worker's registration.

    The fleet is the key's hash tag, so that all keys of a fleet are on one node of a Redis Cluster.
    """
    return f"{prefix}:{{{fleet}}}:worker:{worker_id}"
