"""The decision core: the parts of placement of one process, put together once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from policies.spec import PolicySpec
from policies.view import Policy
from router.config.model import HandoverConfig, RetriesConfig
from router.metrics.registry import Registry
from router.placement.decision_log.decisions import DecisionLog
from router.placement.decision_log.recorder import Recorder
from router.placement.decision_log.what_if import WhatIfs
from router.placement.defer import Defer
from router.placement.dispatcher import Dispatcher
from router.placement.explain import Explainer
from router.placement.fleet.fleet import Fleet
from router.placement.fleet.residency_source import ResidencySource
from router.placement.handover.planner import HandoverPlanner
from router.placement.learning.output_length import OutputLengths
from router.placement.load.fleet_load import WorkerLoads
from router.placement.load.shared_load import SharedLedger
from router.placement.load.views import ViewBuilder
from router.placement.metrics import PlacementMetrics
from router.placement.named_policies import NamedPolicies
from router.placement.placer import Placer
from router.placement.policies.policy_runner import Failed, PolicyRunner
from router.placement.policies.shadow import RouteShadows
from router.placement.retry_budget import RetryBudget
from router.placement.selection import Selector
from router.placement.ticket_life import Tickets, TrafficObserver
from router.placement.tickets import new_counts


class DecisionCore:
    """Builds the parts and gives them side by side. The gateway and the simulator take from it what they need.

    `dispatcher` places requests, `tickets` follows them to their ends, and `planner` plans requests that workers share.
    `ledger` is shared with other processes, and `traffic` measures the requests.
    """

    def __init__(
        self,
        fleet: Fleet,
        residency: ResidencySource,
        policy: Policy,
        *,
        spec: PolicySpec,
        decisions_kept: int = 1_000,
        registry: Registry | None = None,
        policy_failed: Failed | None = None,
        retries: RetriesConfig | None = None,
        max_requests_per_worker: int = 0,
        ledger: SharedLedger | None = None,
        named: Mapping[str, PolicyRunner] | None = None,
        shadows: Mapping[str, RouteShadows] | None = None,
        handover: HandoverConfig | None = None,
        traffic: TrafficObserver | None = None,
    ) -> None:
        metrics, handover = PlacementMetrics(registry or Registry()), handover or HandoverConfig()
        self._fleet = fleet
        self._counts = new_counts()
        self.policies = NamedPolicies(PolicyRunner(policy, spec, policy_failed), named or {}, shadows or {})
        self.loads = WorkerLoads(ledger, kv_moves=handover.connector is not None or handover.pulls is not None)
        output_lengths = OutputLengths()
        self.log = DecisionLog(decisions_kept)
        self.what_ifs = WhatIfs(self.log)
        budget = RetryBudget(retries, metrics.retries_refused, self._counts)
        selector = Selector(fleet, self.loads, max_requests_per_worker)
        self._views = ViewBuilder(self.loads, residency, output_lengths)
        self.tickets = Tickets(
            fleet,
            residency,
            self.loads,
            self.policies,
            metrics,
            output_lengths,
            self._counts,
            traffic,
        )
        self._placer = Placer(self.tickets, self.loads, self.policies, self._views, self.log, metrics, self._counts)
        self.dispatcher = Dispatcher(fleet, selector, self._placer, self.tickets, budget, metrics, self._counts)
        self.planner = HandoverPlanner(
            handover, fleet, residency, selector, self._placer, self.tickets, self.loads, self.policies, budget
        )
        self.explainer = Explainer(fleet, selector, self.policies, self._views)
        fleet.on_load.append(self.loads.load_reported)

    def record(self, recorder: Recorder) -> None:
        """Record what policies see and choose."""
        self.policies.recorder = recorder
        recorder.later = self._placer.later
        self._views.running_share = recorder.listening(self.loads.running_share)

    def defer_notes_with(self, later: Defer) -> None:
        """Take the notes of placements with `later`: the log of decisions, metrics, and the measured traffic."""
        self._placer.later = later
        if self.policies.recorder is not None:
            self.policies.recorder.later = later

    def statistics(self) -> dict[str, Any]:
        return {
            **self._counts,
            **self.tickets.statistics(),
            **self.policies.default.statistics(),
            **self.policies.statistics(),
            "workers": self.loads.statistics(self._fleet.candidates),
        }
