"""Apply our rule to the state in which the real router chose.

The state follows the real choices, so that one difference does not cause the next. The rule receives the same knowledge
as the router. For `cache_aware` that is the text, one block per character. For a rule over the workers' caches it is
their contents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from xxhash import xxh3_64_intdigest

from loadtest.peers.choices.sequence import Step
from policies.registry import build_policy
from policies.spec import PolicySpec
from policies.view import (
    Decision,
    FleetView,
    LifecycleEvent,
    LifecycleEventKind,
    Policy,
    RequestView,
    Residency,
    WorkerId,
    WorkerView,
)

Cut = Callable[[str], Sequence[int]]
"""Splits a prompt into units: characters or token ids."""


@dataclass(frozen=True, slots=True)
class Knowledge:
    """How a rule reads a prompt: in blocks of `block_units` units, which `cut` makes."""

    cut: Cut
    block_units: int


@dataclass(frozen=True, slots=True)
class Compared:
    """One step: the real choice, our rule's choice, the choices that our rule ranks equal, and its reason."""

    number: int
    real: int
    ours: int
    equals: frozenset[int]
    reason: str

    @property
    def same(self) -> bool:
        return self.real == self.ours

    @property
    def acceptable(self) -> bool:
        """Whether our rule ranks the real choice equal to its own."""
        return self.real in self.equals


def characters(prompt: str) -> Sequence[int]:
    return [ord(character) for character in prompt]


def replay(
    policy: Policy, steps: Sequence[Step], real: Sequence[int], workers: int, knowledge: Knowledge
) -> list[Compared]:
    """Apply `policy` at every step; `real` are the numbers of the workers that the router chose."""
    state = _State(workers, knowledge)
    compared = []
    for number, (step, chosen) in enumerate(zip(steps, real, strict=True)):
        for released in step.releases:
            state.running[real[released]] -= 1
        request = state.request(number, step.prompt)
        fleet = state.fleet(request)
        decision = policy.decide(request, fleet)
        equals = frozenset(place for place in range(workers) if _equal(decision, fleet, place))
        compared.append(Compared(number, chosen, int(decision.ranked[0]), equals, decision.reason))
        observe = getattr(policy, "observe", None)
        if observe is not None:
            observe(
                LifecycleEvent(
                    LifecycleEventKind.RESERVED,
                    request,
                    WorkerId(str(chosen)),
                    float(number),
                    None,
                    fleet.workers[chosen],
                )
            )
        state.cached[chosen].update(request.block_hashes)
        state.running[chosen] += step.hold
    return compared


def ours(name: str, params: dict[str, object]) -> Policy:
    """Return the rule called `name`."""
    return build_policy(PolicySpec(name, params), Random(0))


class _State:
    """The workers' loads and caches. The caches are large enough to keep everything."""

    def __init__(self, workers: int, knowledge: Knowledge) -> None:
        self.running = [0] * workers
        self.cached: list[set[int]] = [set() for _ in range(workers)]
        self._knowledge = knowledge

    def request(self, number: int, prompt: str) -> RequestView:
        units, block = self._knowledge.cut(prompt), self._knowledge.block_units
        hashes, chained = [], 0
        for end in range(block, len(units) + 1, block):
            chained = xxh3_64_intdigest(repr(units[end - block : end]).encode(), chained)
            hashes.append(chained)
        return RequestView(str(number), "m", len(units), block, hashes)

    def fleet(self, request: RequestView) -> FleetView:
        return FleetView(0.0, tuple(self._view(place, request) for place in range(len(self.running))))

    def _view(self, place: int, request: RequestView) -> WorkerView:
        usable = max(0, request.prompt_tokens - 1) // request.block_tokens
        found = 0
        while found < usable and request.block_hashes[found] in self.cached[place]:
            found += 1
        cached = found * request.block_tokens
        return WorkerView(
            id=WorkerId(str(place)),
            residency=Residency.EXACT,
            cached_tokens=cached,
            uncached_tokens=request.prompt_tokens - cached,
            queued_tokens=0,  # the next request is sent after the first token of this one
            running_requests=self.running[place],
            kv_tokens=0,
            kv_capacity_tokens=0,
            queue_wait_s=0.0,
            prefill_s=0.0,
            utilisation=0.0,
        )


def _equal(decision: Decision, fleet: FleetView, place: int) -> bool:
    """Return whether the rule prefers its choice to this worker only by fleet order or by taking turns."""
    worker, chosen = WorkerId(str(place)), decision.ranked[0]
    if decision.costs:
        costs = dict(zip(decision.ranked, decision.costs, strict=True))
        return costs[worker] == costs[chosen]
    criterion = "match" if decision.reason.startswith("longest match") else "requests"
    return decision.terms[worker][criterion] == decision.terms[chosen][criterion]
