"""When a prompt had better wait in the gateway than in a worker's queue."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from policies.view import LifecycleEvent, LifecycleEventKind, RequestView, WorkerView

SHORTEST_HOLD_S = 0.005
"""Less is not worth another decision."""
_LOOKS = 4
"""How often in the time of its own prefill one that waits for room is asked for again."""
_FORGETTING = 0.99
"""Weight of the past at each request: about the last hundred count."""
_MODELS_KEPT = 64


PREFILLS = "prefills"
ROOM = "room in its KV cache"


class Wait(NamedTuple):
    """For how many seconds at most, and what for; 0 for not at all."""

    seconds: float
    awaited: str


GO = Wait(0.0, "")


class AdmissionHold:
    """Holds back prompts that would have to wait for more than a usual prefill, or for room in the KV cache, if their
    own prefill is longer than usual, too.

    vLLM serves first come, first served, and what has been sent to a worker stays there. A prompt that waits in the
    gateway instead loses nothing while the worker is busy, and three things are gained: shorter ones that come
    meanwhile go ahead (each of them saves this prefill, where it costs its own: that pays on average for one longer
    than the mean, as shortest job first does); where it goes is decided when the queues are known and not when they
    are guessed; and a worker that gets free sooner can have it. With no more than a mean prefill ahead there is little
    of that left to gain, and a worker whose queue of short prompts is never empty would keep it waiting for nothing.

    Room is another matter than time. A prompt that waits in a worker until there is room takes the blocks of whatever
    ends first, and so the context that its next turn comes back for seconds later; which then has to be prefilled, and
    takes those of another. With more conversations than fit, soon little is found in any cache, and most of the fleet's
    time goes into computing anew what it has just thrown away: it thrashes. So a prompt that does not fit beside what
    runs and what rests there waits until it does, while those go on that are there already. It is what operating
    systems do where the working sets of their processes do not fit together (Denning 1968): some wait, so that the
    others work.

    Nobody starves: it has waited enough for others' prefills when that is `limit` times as long as its own takes, since
    it arrived, and for room when it is `room_limit` times as long.
    """

    def __init__(self, limit: float, room_limit: float) -> None:
        self._limit = limit
        self._room_limit = room_limit
        self._usual: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """By model: weight, and mean seconds of a prefill."""

    def hold(self, request: RequestView, chosen: WorkerView) -> Wait:
        """How long to wait before it is decided anew; `chosen` is where it would go now."""
        usual = self._usual.get(request.model)
        if usual is None or chosen.prefill_s < usual[1] or not chosen.learned:
            return GO
        ahead_s = chosen.queue_wait_s - usual[1] if chosen.queued_requests else 0.0
        left_s = self._limit * chosen.prefill_s - request.waited_s
        if ahead_s > 0.0 and left_s >= SHORTEST_HOLD_S:
            return Wait(min(left_s, max(ahead_s, SHORTEST_HOLD_S)), PREFILLS)
        left_s = self._room_limit * chosen.prefill_s - request.waited_s
        if left_s >= SHORTEST_HOLD_S and not fits(chosen):
            return Wait(min(left_s, max(chosen.prefill_s / _LOOKS, SHORTEST_HOLD_S)), ROOM)
        return GO

    def observe(self, event: LifecycleEvent) -> None:
        """Take note of a booking; other edges do not matter here."""
        placed, model = event.placed, event.request.model
        if (
            event.kind is not LifecycleEventKind.RESERVED
            or placed is None
            or not placed.learned
            or not event.request.prompt_tokens
        ):
            return
        weight, mean_s = self._usual.pop(model, (0.0, 0.0))
        weight = weight * _FORGETTING + 1.0
        self._usual[model] = weight, mean_s + (placed.prefill_s - mean_s) / weight
        if len(self._usual) > _MODELS_KEPT:
            self._usual.popitem(last=False)


def fits(view: WorkerView) -> bool:
    """Whether there is room for the prompt beside what runs and what rests there; so it is where nothing does."""
    held_tokens = view.kv_tokens + view.idle_tokens
    capacity_tokens = view.kv_capacity_tokens
    return not held_tokens or not capacity_tokens or held_tokens + view.uncached_tokens <= capacity_tokens
