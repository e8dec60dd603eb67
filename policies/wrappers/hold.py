"""A wrapper around any rule: it decides when a prompt waits in the gateway and not in a worker's queue."""

from __future__ import annotations

from collections import OrderedDict
from typing import Annotated, NamedTuple

from msgspec import Meta
from msgspec.structs import replace

from policies.kv_space import fits
from policies.params import Params
from policies.view import Decision, FleetView, LifecycleEvent, LifecycleEventKind, Policy, RequestView, WorkerView
from policies.wrappers.wrapper import Wrapper

SHORTEST_HOLD_S = 0.005
"""A shorter hold is not worth another decision."""
_LOOKS = 4
"""Decisions per own prefill time while a prompt waits for KV space."""
_FORGETTING = 0.99
"""Weight of the past at each request: about the last hundred count."""
_MODELS_KEPT = 64
PREFILLS = "prefills"
KV_SPACE = "space in its KV cache"


class HoldParams(Params, frozen=True):
    """How long a prompt is held, from its arrival on."""

    prefills: Annotated[
        float,
        Meta(
            ge=0,
            description="Hold a long prompt while its worker runs other prefills, until it has waited this "
            "many times as long as its own prefill takes. 0: do not hold for prefills.",
        ),
    ] = 2.0
    kv_space: Annotated[
        float,
        Meta(
            ge=0,
            description="Hold a long prompt until the KV cache of its worker has space for it, "
            "until it has waited this many times as long as its own prefill takes. 0: do not hold for KV space.",
        ),
    ] = 6.0
    max_s: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="The longest hold of a request in seconds. Without it the gateway's 60 s apply."),
    ] = None


class HoldPlan(NamedTuple):
    """The longest time to hold in seconds, and the cause: prefills or KV space. 0 means: place the request now."""

    seconds: float
    awaited: str


NO_HOLD = HoldPlan(0.0, "")


class _Mean:
    """A mean that forgets, in seconds."""

    def __init__(self) -> None:
        self._weight = 0.0
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        self._weight = self._weight * _FORGETTING + 1.0
        self.seconds += (seconds - self.seconds) / self._weight


class _MeanPrefill(NamedTuple):
    """A model's mean prefill, and its mean queue wait on workers without prefills: the fixed part of every wait."""

    prefill: _Mean
    fixed: _Mean

    def hold_s(self, chosen: WorkerView) -> float:
        """Return the time until a mean prefill is ahead of the prompt; 0 if a hold would cost more than it saves."""
        if not chosen.queued_requests:
            return 0.0
        mean_s, fixed_s = self.prefill.seconds, self.fixed.seconds
        hold_s = max(0.0, chosen.queue_wait_s - fixed_s - mean_s)
        saved_s = chosen.utilisation * hold_s * (chosen.prefill_s - mean_s)
        return hold_s if saved_s > fixed_s * mean_s else 0.0  # both sides times the mean, which may be 0


class AdmissionHold(Wrapper):
    """Hold a prompt with a longer prefill than the mean while it would wait for more than a mean prefill, or for KV
    space.

    vLLM serves first come, first served, and a request that was sent to a worker stays there. A prompt that waits in
    the gateway loses nothing while the worker is busy, and gains three things. Shorter prompts that arrive meanwhile
    go first; as with shortest job first, this pays on average for a prompt longer than the mean. The worker is chosen
    when the queues are known and not when they are estimated. And any worker that becomes free sooner can take it.
    If no more than a mean prefill is ahead, there is little to gain. A worker whose queue of short prompts is never
    empty would also delay the prompt for nothing.

    A hold also costs something. Every prompt needs a fixed time before its prefill can begin: transport, tokenising in
    the worker, and the rest of the step under way. A prompt in the worker's queue spends this time while other prefills
    run. A held prompt spends it after the hold. So a prompt is held only if shorter prompts save more than this time.
    During a hold of h seconds a worker with utilisation u receives u h / m prompts of the mean prefill m. The held
    prompt, of prefill p, waits m longer for each of them, and each of them waits p less:

        u h (p - m) / m  must exceed the mean queue wait on workers without prefills

    A lack of KV space is different. A prompt that waits inside a worker takes the blocks of the next request that
    ends. It thereby evicts the context that this session needs again seconds later. The session's next turn must then
    be prefilled again, and evicts the context of another session. With more conversations than fit, caches soon hold
    little that is useful, and the fleet spends most of its time on repeated prefills: it thrashes. So a prompt that
    does not fit beside running and idle context waits until it does, while sessions whose context is cached continue.
    Operating systems do the same when the working sets of their processes do not fit together (Denning 1968).

    No prompt starves. From its arrival on, it waits at most `prefills` times its own prefill time for prefills, and at
    most `kv_space` times for KV space.

    The inner rule ranks first, and the facts of its choice decide. If the inner rule holds by itself, the longer hold
    counts.
    """

    def __init__(self, inner: Policy, params: HoldParams) -> None:
        super().__init__(inner)
        self._params = params
        self._usual: OrderedDict[str, _MeanPrefill] = OrderedDict()
        """By model."""

    def __getnewargs__(self) -> tuple[Policy, HoldParams]:
        return self.inner, self._params

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        decision = self.inner.decide(request, fleet)
        place = fleet.row_of(decision.ranked[0])
        if place is None:
            return decision  # invalid, which the caller reports
        seconds, awaited = self.hold(request, fleet.worker(place))
        if seconds <= decision.hold_s:
            return decision
        reason = f"{decision.reason}; holds for {awaited}"
        return replace(decision, reason=reason, hold_s=seconds, until_prefills_done=awaited != KV_SPACE)

    def hold(self, request: RequestView, chosen: WorkerView) -> HoldPlan:
        """Return the longest wait before the next decision. `chosen` is the worker that would get the request now."""
        usual = self._usual.get(request.model)
        if usual is None or chosen.prefill_s < usual.prefill.seconds or not chosen.learned:
            return NO_HOLD
        ahead_s = usual.hold_s(chosen)
        left_s = self._left_s(self._params.prefills, request, chosen)
        if ahead_s > 0.0 and left_s >= SHORTEST_HOLD_S:
            return HoldPlan(min(left_s, max(ahead_s, SHORTEST_HOLD_S)), PREFILLS)
        left_s = self._left_s(self._params.kv_space, request, chosen)
        if left_s >= SHORTEST_HOLD_S and not fits(chosen):
            return HoldPlan(min(left_s, max(chosen.prefill_s / _LOOKS, SHORTEST_HOLD_S)), KV_SPACE)
        return NO_HOLD

    def _left_s(self, prefills: float, request: RequestView, chosen: WorkerView) -> float:
        """Return how much longer the request may wait, in all at most `prefills` times its own prefill."""
        longest_s = prefills * chosen.prefill_s
        if self._params.max_s is not None:
            longest_s = min(longest_s, self._params.max_s)
        return longest_s - request.waited_s

    def observe(self, event: LifecycleEvent) -> None:
        """Record the prefill time of a reservation, and its queue wait if no prefill is ahead."""
        self.pass_on(event)
        placed, model = event.placed, event.request.model
        if (
            event.kind is not LifecycleEventKind.RESERVED
            or placed is None
            or not placed.learned
            or not event.request.prompt_tokens
        ):
            return
        usual = self._usual.pop(model, None) or _MeanPrefill(_Mean(), _Mean())
        usual.prefill.add(placed.prefill_s)
        if not (placed.queued_requests or placed.queued_tokens):
            usual.fixed.add(placed.queue_wait_s)
        self._usual[model] = usual
        if len(self._usual) > _MODELS_KEPT:
            self._usual.popitem(last=False)
