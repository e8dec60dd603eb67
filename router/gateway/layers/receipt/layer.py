"""The route receipt: where a request went and why, for clients that ask for it.

It is one response header. An answer that goes on at another worker has a further receipt, as an SSE comment there.
"""

from __future__ import annotations

from typing import Final

from router.placement.tickets import Ticket
from router.requests.layer import Feature, Layer, LayeredRequest

_REASON_CHARACTERS: Final = 200


class Receipts(Feature):
    """Answers the header ``x-warmroute-receipt: 1`` of trusted callers or, with `everyone`, of all."""

    def __init__(self, *, everyone: bool) -> None:
        self._everyone = everyone

    def layer(self, request: LayeredRequest) -> Layer | None:
        if request.head.fields.get(b"x-warmroute-receipt") != b"1":
            return None
        trusted = request.caller.trusted
        return ReceiptLayer(trusted) if trusted or self._everyone else None


class ReceiptLayer(Layer):
    __slots__ = ("_trusted",)

    def __init__(self, trusted: bool) -> None:
        self._trusted = trusted

    def response_lines(self, ticket: Ticket | None) -> bytes:
        if ticket is None:
            return b""
        return b"x-warmroute-receipt: " + receipt(ticket, self._trusted).encode("ascii") + b"\r\n"

    def seam_comment(self, ticket: Ticket) -> bytes:
        return b": x-warmroute-receipt: " + receipt(ticket, self._trusted).encode("ascii") + b"\n\n"


def receipt(ticket: Ticket, trusted: bool) -> str:
    """Return the receipt as a dictionary of RFC 9651. Only trusted callers learn ids of workers."""
    record = ticket.record
    why = record.decision.reason[:_REASON_CHARACTERS]
    if not trusted:
        for worker in sorted(record.fleet.ids, key=len, reverse=True):
            why = why.replace(worker, "a worker")
    members = {"worker": _string(ticket.candidate.id)} if trusted else {}
    members |= {"route": _string(record.route), "policy": _string(record.policy), "attempt": str(ticket.attempt)}
    if ticket.predicted_cached_tokens is not None:
        members["predicted-cached-tokens"] = str(ticket.predicted_cached_tokens)
    members["prompt-tokens"] = str(record.request.prompt_tokens)
    members["residency"] = ticket.residency.value
    members["waited-ms"] = str(round(record.request.waited_s * 1e3))
    members["why"] = _string(why)
    if record.migration is not None:
        members["migration"] = record.migration
    for seam in record.seams[:1]:
        members |= {"from-worker": _string(seam.from_worker)} if trusted else {}
        members |= {"trigger": seam.trigger, "kept-tokens": str(seam.kept_tokens)}
    return ", ".join([f"{key}={value}" for key, value in members.items()])


def _string(text: str) -> str:
    """Return a string of RFC 9651, which has printable ASCII alone. A policy writes the reason, so it may have more."""
    kept = "".join([each if " " <= each <= "~" else "?" for each in text])
    return '"' + kept.replace("\\", "\\\\").replace('"', '\\"') + '"'
