"""W3C trace context: which trace a request belongs to (https://www.w3.org/TR/trace-context/)."""

from __future__ import annotations

from typing import Final

import msgspec

_HEX: Final = frozenset(b"0123456789abcdef")
_LENGTH: Final = 55
_SAMPLED: Final = 1


class TraceContext(msgspec.Struct, frozen=True, gc=False):
    """The trace and the span in which a request was made. `sampled`: the caller records the trace."""

    trace_id: str
    span_id: str
    sampled: bool


def traced(traceparent: bytes | None) -> TraceContext | None:
    """Return what a `traceparent` header says; None without a valid one, which the standard lets a receiver ignore.

    A later version of the header may be longer.
    """
    if traceparent is None or len(traceparent) < _LENGTH:
        return None
    version, trace_id, span_id, flags = traceparent[:2], traceparent[3:35], traceparent[36:52], traceparent[53:55]
    if not _HEX.issuperset(version + trace_id + span_id + flags) or version == b"ff":
        return None
    if traceparent[2:3] + traceparent[35:36] + traceparent[52:53] != b"---":
        return None
    if len(traceparent) > _LENGTH and (version == b"00" or traceparent[55:56] != b"-"):
        return None
    if not trace_id.strip(b"0") or not span_id.strip(b"0"):
        return None
    return TraceContext(trace_id.decode("ascii"), span_id.decode("ascii"), bool(int(flags, 16) & _SAMPLED))


def traceparent(trace_id: str, span_id: str, sampled: bool) -> bytes:
    """Return the header line for a request that is sent within this span, with its end."""
    return f"traceparent: 00-{trace_id}-{span_id}-{'01' if sampled else '00'}\r\n".encode("ascii")
