"""The policies of one process: the default one, further ones by name, and the shadow policies of routes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from policies.registry import build_policy
from policies.view import Decision, FleetView, LifecycleEvent, RequestView
from router.config.model import PolicyConfig, RouteConfig
from router.placement.decision_log.recorder import Recorder
from router.placement.policies.chosen_policy import spec_of
from router.placement.policies.policy_runner import Failed, PolicyRunner
from router.placement.policies.shadow import RouteShadows, Sample, ShadowBudget
from router.placement.policies.traffic_routes import DEFAULT


class NamedPolicies:
    """Every policy sees every lifecycle event, because all of them share the workers."""

    __slots__ = ("_all", "_budget", "_runners", "_shadows", "default", "recorder")

    def __init__(
        self,
        default: PolicyRunner,
        named: Mapping[str, PolicyRunner],
        shadows: Mapping[str, RouteShadows],
    ) -> None:
        self.default = default
        self.recorder: Recorder | None = None
        self._all = {DEFAULT: default, **named}
        self._runners = dict(named)
        self._shadows = {route: found for route, found in shadows.items() if found.names}
        self._budget = ShadowBudget()

    def adopt(self, named: Mapping[str, PolicyRunner], shadows: Mapping[str, RouteShadows]) -> None:
        """Use other policies from the next decision on. One that is the same as before stays, with its state."""
        before = self._runners
        self._runners = {
            name: before[name] if name in before and before[name].settings == runner.settings else runner
            for name, runner in named.items()
        }
        self._all = {DEFAULT: self.default, **self._runners}
        kept = self._shadows
        self._shadows = {
            route: kept[route] if route in kept and kept[route].settings == found.settings else found
            for route, found in shadows.items()
            if found.names
        }

    def of(self, name: str) -> PolicyRunner:
        return self._runners.get(name, self.default)

    def decide(self, name: str, request: RequestView, fleet: FleetView) -> Decision:
        """Return the decision of the policy called `name`, or of the default one. A decision log records it."""
        runner, recorder = self._runners.get(name, self.default), self.recorder
        if recorder is None:
            return runner.decide(request, fleet)
        recorder.before(fleet.now_s, self._all)
        decision = runner.decide(request, fleet)
        recorder.decided(name if name in self._runners else DEFAULT, request, fleet, decision)
        return decision

    @property
    def observes(self) -> bool:
        return self.default.observes or bool(self._runners) or bool(self._shadows) or self.recorder is not None

    def observe(self, event: LifecycleEvent) -> None:
        if self.recorder is not None:
            self.recorder.observed(event)
        self.default.observe(event)
        for runner in self._runners.values():
            runner.observe(event)
        for shadows in self._shadows.values():
            shadows.observe(event)

    def shadow(self, route: str, request: RequestView, fleet: FleetView, decision: Decision) -> Sample | None:
        """Let the shadow policies of `route` decide. Return None if it has none, or they do not see this request."""
        shadows = self._shadows.get(route)
        if shadows is None or not self._budget.take(len(shadows.names), fleet.now_s):
            return None
        return shadows.decide(request, fleet, decision)

    def shadows_of(self, route: str) -> RouteShadows | None:
        return self._shadows.get(route)

    def statistics(self) -> dict[str, Any]:
        return {
            "policies": {name: runner.statistics() for name, runner in self._runners.items()},
            "shadow_skipped": self._budget.skipped,
            "recorded": None if self.recorder is None else self.recorder.statistics(),
        }


def named_policies(
    policy: PolicyConfig, policies: Mapping[str, PolicyConfig], routes: Sequence[RouteConfig], failed: Failed
) -> tuple[dict[str, PolicyRunner], dict[str, RouteShadows]]:
    """Build the further policies by name, and the shadow policies by route. `policy` is the default one.

    A shadow policy is an object of its own: a policy that decides draws from its random source.

    Raises:
        PolicyError: one cannot be built.
    """
    named = {name: _runner(name, each, failed) for name, each in policies.items()}
    known = {DEFAULT: policy, **policies}
    shadows = {route.name: _shadows(route, known, failed) for route in routes if route.shadow}
    return named, shadows


def _runner(name: str, policy: PolicyConfig, failed: Failed) -> PolicyRunner:
    spec = spec_of(policy)
    built = build_policy(spec, Random(f"{policy.seed} {name}"))
    return PolicyRunner(built, spec, failed, called=name, seed=policy.seed)


def _shadows(route: RouteConfig, known: Mapping[str, PolicyConfig], failed: Failed) -> RouteShadows:
    runners = [_runner(name, known.get(name) or PolicyConfig(rule=name), failed) for name in route.shadow]
    return RouteShadows(runners)
