"""llm-d's header that names the prefill worker to the sidecar in front of a decode worker."""

from __future__ import annotations

from collections.abc import Collection

from backends.worker import Endpoint

NAME = b"x-prefiller-host-port"
MAX_VALUE_BYTES = 300


def header_line(prefill: Endpoint) -> bytes:
    return b"%b: %b" % (NAME, prefill.authority.encode("ascii"))


def named_worker(value: bytes, prefill_workers: Collection[str]) -> str | None:
    """Return the worker, as ``host:port``, that a caller's header names; None unless it is one of `prefill_workers`.

    The sidecar connects to whatever address the header gives, so only known addresses may pass.
    """
    if len(value) > MAX_VALUE_BYTES:
        return None
    name = value.strip(b" \t").decode("latin-1").lower()
    return name if name in prefill_workers else None
