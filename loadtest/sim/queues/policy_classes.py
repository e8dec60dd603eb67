"""Dynamo's policy-class queues: exact weighted deficit round robin over uncached prompt tokens.

Source: ai-dynamo/dynamo 1.6, docs/router (policy classes, deficit round robin). A class queues only when every worker
is over its busy threshold of active prefill tokens. Cost is max(1, raw - cached tokens), frozen at enqueue. A visit
dispatches the head while the deficit covers it, else adds one quantum and goes on to the next class; an empty class
loses its deficit. If a round makes no progress, all get the least number of quanta with which one head can go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, inf

from loadtest.sim.gateway import HeldCall, SimulatedGateway
from loadtest.sim.queues.waiting import WaitingCalls
from router.placement.admission.classes import Claim, RequestClass
from router.placement.decision_log.decisions import DecisionRecord

QUANTUM_TOKENS = 1_024
"""The quantum of a class with share 1; others in proportion, and at least a sixteenth."""
BUSY_TOKENS = 1_536
"""Dynamo's own test threshold per worker."""


class PolicyClasses(WaitingCalls):
    def __init__(self, gateway: SimulatedGateway, classes: Sequence[RequestClass], claims: Mapping[str, Claim]) -> None:
        super().__init__(gateway, claims)
        self._quanta = {one.name: max(1.0 / 16, one.share) * QUANTUM_TOKENS for one in classes}
        self._lines: dict[str, dict[HeldCall, float]] = {one.name: {} for one in classes}
        self._deficits = dict.fromkeys(self._lines, 0.0)
        self._ring = list(self._lines)

    def entered(self, call: HeldCall) -> bool:
        seen = self.gateway.core.dispatcher.survey(call.request, self.time.now_s)
        tokens = float(seen.fleet.uncached_tokens.min()) if isinstance(seen, DecisionRecord) else 1.0
        self._lines[self.claim(call).of.name][call] = max(1.0, tokens)
        return True

    def left(self, call: HeldCall) -> None:
        name = self.claim(call).of.name
        self._deficits[name] -= self._lines[name].pop(call)
        if not self._lines[name]:
            self._deficits[name] = 0.0

    def longest_s(self, call: HeldCall) -> float:
        return inf

    def next(self) -> HeldCall | None:
        loads = self.gateway.core.loads
        if all(loads.of(one).reserved().queued_tokens > BUSY_TOKENS for one in self.candidates()):
            return None
        for _ in range(2):
            for _ in self._ring:
                name = self._ring[0]
                head = self._affordable(name)
                if head is not None:
                    return head
                if self._lines[name]:
                    self._deficits[name] += self._quanta[name]
                    head = self._affordable(name)
                    if head is not None:
                        return head
                self._ring.append(self._ring.pop(0))
            self._grant()
        return None

    def _affordable(self, name: str) -> HeldCall | None:
        head = next(iter(self._lines[name].items()), None)
        return head[0] if head is not None and self._deficits[name] >= head[1] else None

    def _grant(self) -> None:
        heads = {name: next(iter(line.values())) for name, line in self._lines.items() if line}
        rounds = min(ceil((tokens - self._deficits[name]) / self._quanta[name]) for name, tokens in heads.items())
        for name in heads:
            self._deficits[name] += max(0, rounds) * self._quanta[name]
