"""smg's priority scheduler: reserved slots by class, counted in requests.

Source: lightseekorg/smg 1.13, model_gateway/src/middleware/scheduler. A class holds max(floor, ceil(share x capacity))
slots back from lower ones; system and interactive have floors 32 and 128 and shares 0 and 0.25, default and bulk none
and 0.10 and 0. A queue is bounded (64, 256, 512, 1,024) and waits for at most 30, 30, 60 or 300 s. A request that has
waited for 5, 5, 30 or 120 s ignores reservations. A request of a lower class that has not sent its first byte may be
preempted; that is left out, because a preempted request is answered with 503.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from loadtest.sim.gateway import HeldCall, SimulatedGateway
from loadtest.sim.queues.waiting import WaitingCalls
from router.placement.admission.classes import Claim, RequestClass
from router.placement.tickets import Ticket


@dataclass(frozen=True, slots=True)
class SlotClass:
    floor: int
    share: float
    queue: int
    timeout_s: float
    starvation_s: float


INTERACTIVE = SlotClass(128, 0.25, 256, 30.0, 5.0)
DEFAULT = SlotClass(0, 0.10, 512, 60.0, 30.0)
BULK = SlotClass(0, 0.0, 1_024, 300.0, 120.0)
SLOTS_PER_WORKER = 256
"""The capacity in requests: vLLM's max_num_seqs."""


class PrioritySlots(WaitingCalls):
    """The first class is interactive, those with a share are default, and those without are bulk."""

    def __init__(self, gateway: SimulatedGateway, classes: Sequence[RequestClass], claims: Mapping[str, Claim]) -> None:
        super().__init__(gateway, claims)
        self._kinds = {
            one.name: INTERACTIVE if not place else DEFAULT if one.share else BULK for place, one in enumerate(classes)
        }
        self._lines: dict[str, dict[HeldCall, None]] = {one.name: {} for one in classes}
        self._running: dict[int, str] = {}

    def entered(self, call: HeldCall) -> bool:
        name = self.claim(call).of.name
        if len(self._lines[name]) >= self._kinds[name].queue:
            return False
        self._lines[name][call] = None
        return True

    def left(self, call: HeldCall) -> None:
        del self._lines[self.claim(call).of.name][call]

    def longest_s(self, call: HeldCall) -> float:
        return self._kinds[self.claim(call).of.name].timeout_s

    def dispatched(self, call: HeldCall, ticket: Ticket) -> None:
        self._running[ticket.id] = self.claim(call).of.name

    def ended(self, ticket: Ticket) -> None:
        if ticket.ended:
            self._running.pop(ticket.id, None)
        super().ended(ticket)

    def next(self) -> HeldCall | None:
        free = SLOTS_PER_WORKER * len(self.candidates()) - len(self._running)
        if free <= 0:
            return None
        heads = {name: next(iter(line)) for name, line in self._lines.items() if line}
        for name, head in reversed(heads.items()):
            if self.time.now_s - self.calls[head] >= self._kinds[name].starvation_s:
                return head
        held_back = 0
        for name, kind in self._kinds.items():
            if name in heads and free > held_back:
                return heads[name]
            running = sum(1 for one in self._running.values() if one == name)
            capacity = SLOTS_PER_WORKER * len(self.candidates())
            held_back += max(0, max(kind.floor, ceil(kind.share * capacity)) - running)
        return None
