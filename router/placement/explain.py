"""The decision that a request would get now, with its reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from policies.view import Decision, FleetView, RequestView, WorkerId
from router.placement.decision_log.decisions import describe_candidates
from router.placement.fleet.fleet import Fleet
from router.placement.load.views import ViewBuilder
from router.placement.named_policies import NamedPolicies
from router.placement.request import Request
from router.placement.selection import Selection, Selector, exclusions, hold, select, trial_first
from router.placement.tickets import Queued, lacks_worker

Action = Literal["dispatch", "hold", "queue", "reject"]


class Asked(NamedTuple):
    """Who decides for a request: its route, and the policy with its rule. `counted`: its tokens were counted."""

    route: str
    policy: str
    rule: str
    counted: bool


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer to `Explainer.explain`. `choice` is None if the request would be queued or rejected (`reason`).

    `lacks_worker`: no worker of the model can take the request now, so that one of a fallback may.
    """

    request: RequestView
    asked: Asked
    choice: WorkerId | None
    action: Action
    hold_s: float
    reason: str
    fleet: FleetView | None
    decision: Decision | None
    excluded: Mapping[WorkerId, str]
    lacks_worker: bool = False

    def to_builtins(self) -> dict[str, object]:
        """Return the explanation for the admin API, candidates best first."""
        candidates: list[dict[str, object]] = []
        if self.fleet is not None and self.decision is not None:
            candidates = describe_candidates(self.fleet, self.decision)
        return {
            "request_id": self.request.id,
            "model": self.request.model,
            "prompt_tokens": self.request.prompt_tokens,
            "prompt_tokens_exact": self.asked.counted,
            "route": self.asked.route,
            "policy": self.asked.policy,
            "rule": self.asked.rule,
            "choice": self.choice,
            "action": self.action,
            "hold_s": self.hold_s,
            "reason": self.reason,
            "candidates": candidates,
            "excluded": dict(self.excluded),
        }


class Explainer:
    """Asks the policies as the dispatcher does, and changes no state."""

    def __init__(self, fleet: Fleet, selector: Selector, policies: NamedPolicies, view_builder: ViewBuilder) -> None:
        self._fleet = fleet
        self._selector = selector
        self._policies = policies
        self._view_builder = view_builder

    def explain(self, request: Request, now_s: float) -> Explanation:
        allowed = select(self._fleet, request, (), now_s)
        selection = self._selector.below_limit(allowed)
        excluded = exclusions(self._fleet, request, allowed)
        if isinstance(allowed, Selection):
            why = f"its requests have reached limits.max_requests_per_worker ({self._selector.limit})"
            below = selection.candidates if isinstance(selection, Selection) else ()
            excluded |= {candidate.id: why for candidate in allowed.candidates if candidate not in below}
        runner = self._policies.of(request.policy)
        asked = Asked(request.route, runner.name, runner.rule, request.counted)
        if not isinstance(selection, Selection):
            seen, lacks = self._view_builder.request_view(request, now_s), lacks_worker(selection)
            if isinstance(selection, Queued):
                return Explanation(seen, asked, None, "queue", 0.0, selection.reason, None, None, excluded, lacks)
            reason = selection.error.message
            return Explanation(seen, asked, None, "reject", 0.0, reason, None, None, excluded, lacks)
        view, fleet, _ = self._view_builder.build(request, selection.candidates, now_s)
        decision = trial_first(runner.explain(view, fleet), selection.trial)
        held = hold(request, selection.candidates, decision, now_s)
        action: Action = "dispatch" if held is None else "hold"
        hold_s = 0.0 if held is None else held.until_s - now_s
        return Explanation(view, asked, decision.ranked[0], action, hold_s, decision.reason, fleet, decision, excluded)
