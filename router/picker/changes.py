"""What a pick changes in a request: the headers that name its workers, and what a client may not send."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from policies.view import Decision
from router.picker.answers import PickAnswer
from router.picker.parts import PickerParts
from router.picker.pick import Pick
from router.picker.protocol.names import DP_RANK_HOST, PD_HEADERS
from router.placement.fleet.endpoints import Candidate
from router.placement.tickets import Ticket
from router.requests.request_head import RequestHead

RANK: Final = "x-data-parallel-rank"
_TRACE: Final = b"traceparent"
"""The gateway in front traces, and not the picker."""


def changes_of(parts: PickerParts, pick: Pick, head: RequestHead, body: bytes) -> PickAnswer:
    """Return the answer for a pick. `head` and `body` are the request as it came.

    Raises:
        RequestError: INVALID_BODY; a fallback's name cannot be put into the body with certainty.
    """
    ticket, incoming = pick.ticket, pick.incoming
    assert ticket is not None, "it was picked"
    model = ticket.request.model
    if model is not None and incoming.named is not None and model != incoming.named:
        incoming.rename(model)
        incoming.withheld = incoming.caller.withheld_salted
    changed = incoming.body is not body
    headers = dict(_headers(parts, pick, ticket, head))
    if changed:
        headers["content-length"] = b"%d" % len(incoming.body)
    removed = [name for name in _unwanted(parts, pick, head, ticket) if name not in headers]
    scores = scores_of(ticket.record.decision) if parts.settings.scores else {}
    sent = incoming.body if changed else None
    return PickAnswer(_destination(parts, pick, ticket), [*headers.items()], removed, sent, scores)


def scores_of(decision: Decision) -> dict[str, float]:
    """Return a score of each endpoint, from 1 for the best to 0 for the worst: by the costs, or else by the places.

    An endpoint with several ranks has the score of its best one.
    """
    ranked, costs = decision.ranked, decision.costs
    known = list(costs) if len(costs) == len(ranked) else list(range(len(ranked)))
    best, worst = min(known, default=0), max(known, default=0)
    found: dict[str, float] = {}
    for worker, cost in zip(ranked, known, strict=True):
        score = 1.0 if best == worst else float((worst - cost) / (worst - best))
        endpoint = worker.partition("#")[0]
        found[endpoint] = max(score, found.get(endpoint, 0.0))
    return found


def _destination(parts: PickerParts, pick: Pick, ticket: Ticket) -> str:
    most = parts.settings.endpoints if pick.moved is None else 1
    if most == 1:
        return ticket.candidate.endpoint.id
    ranked = [ticket.candidate.id, *ticket.record.decision.ranked]
    return ",".join(list(dict.fromkeys(worker.partition("#")[0] for worker in ranked))[:most])


def _headers(parts: PickerParts, pick: Pick, ticket: Ticket, head: RequestHead) -> Iterator[tuple[str, bytes]]:
    incoming = pick.incoming
    if head.fields.get(b"x-request-id") != incoming.id:
        yield "x-request-id", incoming.id
    if incoming.head.target != head.target:
        yield ":path", incoming.head.target
    if ticket.candidate.rank is not None:
        yield _rank(parts, ticket.candidate, ticket.candidate.rank)
    if pick.moved is not None:
        yield pick.moved.header
    if parts.worker_keys is not None and (line := parts.worker_keys.line(ticket.candidate.endpoint.id)):
        yield "authorization", line.partition(b": ")[2]


def _rank(parts: PickerParts, candidate: Candidate, rank: int) -> tuple[str, bytes]:
    if parts.settings.rank_header == "rank":
        return RANK, b"%d" % rank
    host, _, port = candidate.endpoint.id.rpartition(":")
    return DP_RANK_HOST, f"{host}:{int(port) + rank}".encode("ascii")


def _unwanted(parts: PickerParts, pick: Pick, head: RequestHead, ticket: Ticket) -> Iterator[str]:
    """Yield the client's headers that no worker may get."""
    incoming = pick.incoming
    for name in incoming.withheld:
        if name in head.fields and name != _TRACE:
            yield name.decode("latin-1")
    for text in PD_HEADERS:
        permission = "rank" if text == DP_RANK_HOST else "transfer_params"
        if text.encode() in head.fields and permission not in incoming.caller.may:
            yield text
    # clients authenticate to the picker, so their keys go no further
    if parts.worker_keys is not None and b"authorization" in head.fields:
        yield "authorization"
