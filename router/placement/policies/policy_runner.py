"""Run the policy safely: a policy that raises or gives an invalid answer must not fail a request."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any, TypeAlias

from policies.ranking import by_keys, queued_tokens, running_requests
from policies.spec import PolicySpec
from policies.view import Decision, FleetView, LifecycleEvent, Policy, RequestView
from policies.weights import weighted

Failed: TypeAlias = Callable[[str, str, bool], None]
"""Called for each failure with the policy's name, the problem, and whether it is the first since the adoption."""


class PolicyRunner:
    """The policy in force. A change takes effect between two decisions.

    A new policy also receives later events of requests that the old one placed. So policies must accept events of
    unknown reservations, as after a restart. `failed` is called for each failure with the policy's name, the problem,
    and whether it is the first one since the policy was adopted.
    """

    def __init__(
        self,
        policy: Policy,
        spec: PolicySpec,
        failed: Failed | None = None,
        *,
        called: str | None = None,
        seed: int = 0,
    ) -> None:
        self._failed = failed
        self._seed = seed
        self._called = called
        """The policy's name in `policies`; None for the one in `policy`, which goes by the name of its rule."""
        self.decisions = 0
        self.fallbacks = 0
        self.observe_errors = 0
        self.last_error: str | None = None
        self.adopt(policy, spec)

    def adopt(self, policy: Policy, spec: PolicySpec) -> None:
        self.policy = policy
        self.spec = spec
        self.rule = spec.rule
        self.name = spec.rule if self._called is None else self._called
        self._sound = True
        self._observe: Callable[[LifecycleEvent], None] | None = getattr(policy, "observe", None)
        self.observes = self._observe is not None

    @property
    def settings(self) -> tuple[PolicySpec, int]:
        """What a named policy was made from: its spec and its seed."""
        return self.spec, self._seed

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        """Return the policy's ranking. If the policy fails, rank by least tokens, with the failure as the reason."""
        self.decisions += 1
        fleet = weighted(fleet)
        answer = _ask(self.policy, request, fleet)
        if isinstance(answer, Decision):
            return answer
        self.fallbacks += 1
        self._fail(answer)
        return self._fallback(fleet, answer)

    def explain(self, request: RequestView, fleet: FleetView) -> Decision:
        """Return the decision that `decide` would return.

        A copy of the policy decides, so that not even its random source advances. If a third party's policy cannot be
        copied, the policy itself decides: the `Policy` protocol forbids `decide` to change state.
        """
        try:
            policy = deepcopy(self.policy)
        except Exception:  # a third party's code may raise anything
            policy = self.policy
        fleet = weighted(fleet)
        answer = _ask(policy, request, fleet)
        return answer if isinstance(answer, Decision) else self._fallback(fleet, answer)

    def _fallback(self, fleet: FleetView, problem: str) -> Decision:
        return least_tokens(fleet, f"fell back to least tokens: policy {self.name} failed: {problem}")

    def observe(self, event: LifecycleEvent) -> None:
        if self._observe is None:
            return
        try:
            self._observe(event)
        except Exception as error:  # a third party's code may raise anything
            self.observe_errors += 1
            self._fail(f"observe raised {error!r}")

    def shown(self) -> dict[str, Any]:
        shows = getattr(self.policy, "statistics", None)
        try:
            return {} if shows is None else dict(shows())
        except Exception as error:  # a third party's code may raise anything
            self._fail(f"statistics raised {error!r}")
            return {}

    def _fail(self, problem: str) -> None:
        self.last_error = problem
        first, self._sound = self._sound, False
        if self._failed is not None:
            self._failed(self.name, problem, first)

    def statistics(self) -> dict[str, Any]:
        return {
            "policy": self.name,
            "rule": self.rule,
            "params": dict(self.spec.params),
            "decisions": self.decisions,
            "fallbacks": self.fallbacks,
            "observe_errors": self.observe_errors,
            "last_error": self.last_error,
        }


def _ask(policy: Policy, request: RequestView, fleet: FleetView) -> Decision | str:
    try:
        decision = policy.decide(request, fleet)
        first = decision.ranked[0]
        if fleet.row_of(first) is None:
            return f"it chose {first!r}, which is not a candidate"
        if not decision.hold_s >= 0.0:
            return f"it would hold the request for {decision.hold_s!r} s"
        return decision
    except Exception as error:  # a third party's code may raise anything
        return f"it raised {error!r}"


def least_tokens(fleet: FleetView, reason: str) -> Decision:
    """Rank by fewest queued tokens, then by fewest requests: the fallback."""
    return by_keys(fleet, (queued_tokens, running_requests), reason, {})
