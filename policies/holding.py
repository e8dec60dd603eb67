"""When a prompt had better wait in the gateway than in a worker's queue."""

from __future__ import annotations

from collections import OrderedDict

from policies.view import Edge, EdgeKind, RequestView, WorkerView

SHORTEST_HOLD_S = 0.005
"""Less is not worth another decision."""
_FORGETTING = 0.99
"""Weight of the past at each request: about the last hundred count."""
_MODELS_KEPT = 64


class Holding:
    """Holds back prompts that would have to wait for more than a usual prefill, if their own is longer than usual, too.

    vLLM serves first come, first served, and what has been sent to a worker stays there. A prompt that waits in the
    gateway instead loses nothing while the worker is busy, and three things are gained: shorter ones that come
    meanwhile go ahead (each of them saves this prefill, where it costs its own: that pays on average for one longer
    than the mean, as shortest job first does); where it goes is decided when the queues are known and not when they
    are guessed; and a worker that gets free sooner can have it. With no more than a mean prefill ahead there is little
    of that left to gain, and a worker whose queue of short prompts is never empty would keep it waiting for nothing.
    Nobody starves: it has waited enough when that is `limit` times as long as its own prefill takes, since it arrived.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._usual: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """By model: weight, and mean seconds of a prefill."""

    def hold_s(self, request: RequestView, chosen: WorkerView) -> float:
        """How long to wait at most before it is decided anew, 0 for not at all; `chosen` is where it would go now."""
        usual = self._usual.get(request.model)
        if usual is None or chosen.prefill_s < usual[1] or not chosen.queued_requests or not chosen.learned:
            return 0.0
        left_s, ahead_s = self._limit * chosen.prefill_s - request.waited_s, chosen.backlog_s - usual[1]
        return min(left_s, max(ahead_s, SHORTEST_HOLD_S)) if left_s >= SHORTEST_HOLD_S and ahead_s > 0.0 else 0.0

    def observe(self, edge: Edge) -> None:
        """Take note of a booking; other edges do not matter here."""
        placed, model = edge.placed, edge.request.model
        if edge.kind is not EdgeKind.BOOKED or placed is None or not placed.learned:
            return
        weight, mean_s = self._usual.pop(model, (0.0, 0.0))
        weight = weight * _FORGETTING + 1.0
        self._usual[model] = weight, mean_s + (placed.prefill_s - mean_s) / weight
        if len(self._usual) > _MODELS_KEPT:
            self._usual.popitem(last=False)
