"""Compare the predicted with the reported cached tokens of each request, and record why they differ."""

from __future__ import annotations

import msgspec

from policies.view import Residency, WorkerView
from router.placement.fleet.endpoints import Candidate
from router.placement.metrics import PlacementMetrics
from router.placement.request import Request, Usage
from router.placement.tickets import Ticket
from router.residency.exact.difference import Difference


def prediction(request: Request, candidate: Candidate, view: WorkerView) -> int | None:
    """Return the cached tokens that the response should report; None if they cannot be predicted."""
    if not request.reads_cache:
        return 0
    if view.residency is Residency.OFF:
        return None if candidate.caches else 0
    if view.residency is Residency.UNKNOWN:
        return None
    return request.reported(view.cached_tokens, candidate.block_tokens)


class Comparisons:
    """Record reports and explanations in a ticket's record and in its worker's `PredictionAccuracy`.

    Tickets with a pending difference are kept until it is explained; the residency map ensures that it will be.
    """

    __slots__ = ("_metrics", "_unexplained")

    def __init__(self, metrics: PlacementMetrics) -> None:
        self._metrics = metrics
        self._unexplained: dict[int, Ticket] = {}

    def completed(self, ticket: Ticket, usage: Usage) -> Usage:
        """Return `usage` with zero cached tokens if the worker has omitted a zero.

        That is so if the number is missing and the worker has reported one on the same path before. vLLM 0.23 reports
        cached tokens only if there are any; 0.33 always reports them.
        """
        paths = ticket.load.accuracy.reporting_paths
        if usage.cached_tokens is not None and ticket.request.prompt is not None:
            paths.add(ticket.request.path)
        elif usage.prompt_tokens is not None and ticket.request.path in paths:
            return msgspec.structs.replace(usage, cached_tokens=0)
        return usage

    def compare(self, ticket: Ticket, usage: Usage, difference: Difference | None) -> None:
        """Record a served request; `difference` comes from the residency map.

        Of several prompts in one body, and of a prompt whose text alone was known, the record alone shows a difference.
        """
        reported = usage.cached_tokens
        ticket.record.reported_cached_tokens = reported
        prompt, predicted = ticket.request.prompt, ticket.predicted_cached_tokens
        if reported is None or predicted is None or prompt is None or not ticket.request.tells_cached:
            return
        if prompt.multiple or not prompt.exact:  # a guess, which no counter holds to the block
            ticket.record.difference = None if predicted == reported else Difference.APPROXIMATE
            return
        ticket.load.accuracy.compare(predicted, reported)
        self._count(ticket, predicted, reported)
        if predicted != reported:
            difference = difference or _unjudged(ticket)
            ticket.load.accuracy.explain(difference)
            self._differed(ticket, difference)

    def _count(self, ticket: Ticket, predicted: int, reported: int) -> None:
        """Count the tokens and the outcome, and a prompt that found fewer cached tokens than predicted, and fewer than
        another worker was predicted to have.
        """
        metrics, worker = self._metrics, ticket.candidate.id
        metrics.cached_tokens.add(predicted, (worker, "predicted"))
        metrics.cached_tokens.add(reported, (worker, "reported"))
        outcome = "equal" if predicted == reported else "over" if predicted > reported else "under"
        metrics.comparisons.add(1.0, (worker, outcome))
        if reported < predicted and reported < _most_elsewhere(ticket):
            metrics.misrouted.add(1.0, (worker,))

    def explained(self, ticket_id: int, difference: Difference) -> None:
        """Record the explanation of a pending difference (`ResidencyMap.on_settled`)."""
        ticket = self._unexplained.pop(ticket_id, None)
        if ticket is not None:
            ticket.load.accuracy.settle(difference)
            self._differed(ticket, difference)

    def _differed(self, ticket: Ticket, difference: Difference) -> None:
        ticket.record.difference = difference
        if difference is Difference.PENDING:
            self._unexplained[ticket.id] = ticket
        else:
            self._metrics.differences.add(1.0, (ticket.candidate.id, difference.value))

    def statistics(self) -> dict[str, int]:
        return {"unexplained": len(self._unexplained)}


def _most_elsewhere(ticket: Ticket) -> int:
    """Return the most cached tokens that a response of another candidate was predicted to report."""
    fleet, chosen = ticket.record.fleet, ticket.candidate
    place, cached = fleet.row_of(chosen.id) or 0, fleet.cached_tokens
    most = int(max(cached[:place].max(initial=0), cached[place + 1 :].max(initial=0)))
    return ticket.request.reported(most, chosen.block_tokens) if most else 0


def _unjudged(ticket: Ticket) -> Difference:
    """Return the explanation if the residency map has none: the view of the prediction is gone or was never exact."""
    return Difference.CLEARED if ticket.residency is Residency.EXACT else Difference.APPROXIMATE
