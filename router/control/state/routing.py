"""The further policies and the routes of one process, from the desired state."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from router.config.model import Config, PolicyConfig, RouteConfig, TenantConfig
from router.control.state.desired_state import LiveSettings
from router.placement.named_policies import named_policies
from router.placement.policies.policy_runner import PolicyRunner
from router.placement.policies.shadow import RouteShadows
from router.placement.policies.traffic_routes import DEFAULT
from router.security.tenancy import quotas_of

Failed = Callable[[str, str, bool], None]


class Routing(NamedTuple):
    """Policies by name, and routes. `shadowed` is the policy in use, if a route shadows it."""

    policies: Mapping[str, PolicyConfig]
    routes: tuple[RouteConfig, ...]
    shadowed: PolicyConfig | None


class BuiltRouting(NamedTuple):
    """The same, ready to be used by one process."""

    named: dict[str, PolicyRunner]
    shadows: dict[str, RouteShadows]
    routes: tuple[RouteConfig, ...]


def routing_of(settings: LiveSettings | Config) -> Routing:
    shadowed = any(DEFAULT in route.shadow for route in settings.routes)
    return Routing(dict(settings.policies), settings.routes, settings.policy if shadowed else None)


class ProcessShare(NamedTuple):
    """One of several processes: its seeds, and its share of the limits of routes and of the quotas of tenants.

    Each process has its own seeds. With one seed, all processes would draw the same workers at the same time.
    """

    process: int = 0
    processes: int = 1

    def seeded(self, policy: PolicyConfig) -> PolicyConfig:
        return replace(policy, seed=policy.seed + self.process)

    def of(self, config: Config) -> Config:
        """Return the settings with this process's share of the limits and quotas."""
        tenants = self.tenants(config.tenants, config.limits.max_body_bytes)
        return replace(config, routes=self.routes(config.routes), tenants=tenants)

    def routes(self, routes: Sequence[RouteConfig]) -> tuple[RouteConfig, ...]:
        """Return the routes, each with this process's share of the limit and of the queue."""
        return tuple([self._route(route) for route in routes])

    def tenants(self, tenants: Mapping[str, TenantConfig], max_body_bytes: int) -> dict[str, TenantConfig]:
        """Return the tenants, each with this process's share of its quotas. See `quotas_of`."""
        return dict(tenants) if self.processes == 1 else quotas_of(tenants, self.processes, max_body_bytes)

    def built(self, routing: Routing, policy: PolicyConfig, failed: Failed) -> BuiltRouting:
        """Build the policies and the shadow policies. `policy` is the one in use.

        Raises:
            PolicyError: a policy cannot be built.
        """
        policies = {name: self.seeded(each) for name, each in routing.policies.items()}
        named, shadows = named_policies(self.seeded(policy), policies, routing.routes, failed)
        return BuiltRouting(named, shadows, self.routes(routing.routes))

    def _route(self, route: RouteConfig) -> RouteConfig:
        limit = route.max_requests
        at_once, more = divmod(limit, self.processes)
        queued = route.max_queued_requests
        return replace(
            route,
            max_requests=max(min(1, limit), at_once + (self.process < more)),
            max_queued_requests=None if queued is None else math.ceil(queued / self.processes),
        )
