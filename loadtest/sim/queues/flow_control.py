"""llm-d's flow control: strict priority bands before one saturation gate.

Source: llm-d-router, pkg/epp/flowcontrol/controller/internal/processor.go and the plug-ins utilization-detector,
round-robin-fairness-policy and fcfs-ordering-policy, at commit ebab687 of 2026-08. The first band whose ceiling the
saturation has reached stops the whole cycle. Saturation is the mean over the pods of max(waiting / 5, KV usage / 0.8)
from gauges scraped every 50 ms; a cycle of 1 ms dispatches one request. A request waits for at most 60 s, and a band
holds 5,000.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loadtest.sim.gateway import HeldCall, SimulatedGateway
from loadtest.sim.queues.waiting import TICK_S, WaitingCalls
from router.placement.admission.classes import Claim, RequestClass

SCRAPE_S = 0.05
TTL_S = 60.0
BAND_REQUESTS = 5_000


class FlowControl(WaitingCalls):
    """Classes are bands, the first one the highest; tenants are flows."""

    def __init__(self, gateway: SimulatedGateway, classes: Sequence[RequestClass], claims: Mapping[str, Claim]) -> None:
        super().__init__(gateway, claims)
        self._bands: dict[str, dict[str, dict[HeldCall, None]]] = {one.name: {} for one in classes}
        self._scraped_s = -SCRAPE_S
        self._saturation = 0.0
        self._cycle_s = -TICK_S

    def entered(self, call: HeldCall) -> bool:
        claim = self.claim(call)
        band = self._bands[claim.of.name]
        if sum(map(len, band.values())) >= BAND_REQUESTS:
            return False
        band.setdefault(claim.tenant, {})[call] = None
        return True

    def left(self, call: HeldCall) -> None:
        claim = self.claim(call)
        band = self._bands[claim.of.name]
        flow = band.pop(claim.tenant)
        del flow[call]
        if flow:
            band[claim.tenant] = flow  # last: its turn is over

    def longest_s(self, call: HeldCall) -> float:
        return TTL_S

    def next(self) -> HeldCall | None:
        if self.time.now_s < self._cycle_s + TICK_S or self._saturated() >= 1.0:
            return None
        self._cycle_s = self.time.now_s
        for band in self._bands.values():
            for flow in band.values():
                return next(iter(flow))
        return None

    def _saturated(self) -> float:
        if self.time.now_s >= self._scraped_s + SCRAPE_S:
            self._scraped_s = self.time.now_s
            loads = [worker.load() for worker in self.gateway.workers]
            self._saturation = sum(max(one.waiting / 5, one.kv_usage / 0.8) for one in loads) / len(loads)
        return self._saturation
