"""Bring one process to the desired state, as a whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from policies.view import Policy
from router.config.model import ModelConfig, PolicyConfig, TenantConfig, WorkerConfig
from router.control.desired_state import DesiredState, LiveLimits, LiveSettings
from router.control.routing import BuiltRouting, Routing, routing_of

Step = Callable[[], object]


class NotAppliedError(Exception):
    """The process cannot be brought to the state and stays as it was. The message says why."""


class Running(Protocol):
    """The running parts of one process. Every call takes effect at once, between two events of the event loop."""

    @property
    def workers(self) -> Mapping[str, WorkerConfig]:
        """The workers by id as they are now, with `maintenance` as in the fleet."""

    @property
    def policy(self) -> PolicyConfig: ...

    @property
    def routing(self) -> Routing:
        """The further policies and the routes in use."""

    def build_routing(self, routing: Routing, policy: PolicyConfig) -> BuiltRouting:
        """Build further policies and shadow policies without using them. `policy` is the one that will be in use.

        Raises:
            PolicyError: one cannot be built.
        """

    def use_routing(self, routing: Routing, built: BuiltRouting) -> None:
        """Use other policies and routes from the next request on."""

    @property
    def models(self) -> Mapping[str, ModelConfig]: ...

    def use_models(self, models: Mapping[str, ModelConfig]) -> None:
        """Use other names, service levels and files of models from the next request on."""

    @property
    def tenants(self) -> Mapping[str, TenantConfig]: ...

    @property
    def limits(self) -> LiveLimits: ...

    def use_callers(self, tenants: Mapping[str, TenantConfig], limits: LiveLimits) -> None: ...

    def build_policy(self, policy: PolicyConfig) -> Policy:
        """Build a policy without using it.

        Raises:
            PolicyError: it cannot be built.
        """

    def add_worker(self, worker: WorkerConfig) -> None:
        """Add a worker that is not in the fleet."""

    def remove_worker(self, name: str) -> None: ...

    def change_worker(self, worker: WorkerConfig) -> None:
        """Change the settings of a worker of the fleet. Its requests continue."""

    def use_policy(self, policy: PolicyConfig, built: Policy) -> None: ...


class Reconciler:
    """Compare the running process with the desired state, and change what differs.

    It looks at the process and not at earlier states, so that the same call corrects whatever the process has become.
    A second call with the same state changes nothing.
    """

    def __init__(self, running: Running) -> None:
        self._running = running
        self.version = 0
        """The version of the state that the process was last brought to; 0 before the first."""

    def reconcile(self, desired: DesiredState) -> int:
        """Bring the process to `desired`; return the number of changes. It is one step of the event loop.

        Raises:
            NotAppliedError: a part cannot be built or changed. The process is as before.
        """
        running = self._running
        policies, routes, _ = running.routing
        before = LiveSettings(
            workers=dict(running.workers),
            policy=running.policy,
            policies=dict(policies),
            routes=routes,
            models=dict(running.models),
            tenants=dict(running.tenants),
            limits=running.limits,
        )
        try:
            steps = list(self._steps(desired.effective))
        except Exception as error:  # a third party's policy may raise anything
            raise NotAppliedError(str(error)) from error
        try:
            for step in steps:
                step()
        except Exception as error:
            self._return_to(before)
            raise NotAppliedError(f"{type(error).__name__}: {error}") from error
        self.version = desired.version
        return len(steps)

    def _return_to(self, before: LiveSettings) -> None:
        for step in self._steps(before):
            step()

    def _steps(self, desired: LiveSettings) -> Iterator[Step]:
        """Yield the changes. What can fail is done before the first step runs.

        New workers come before old ones leave, so that requests which move find them.
        """
        if desired.policy != self._running.policy:
            yield self._policy_step(desired.policy)
        if routing_of(desired) != self._running.routing:
            yield self._routing_step(desired)
        if desired.models != self._running.models:
            yield lambda: self._running.use_models(desired.models)
        if (desired.tenants, desired.limits) != (self._running.tenants, self._running.limits):
            yield lambda: self._running.use_callers(desired.tenants, desired.limits)
        now = self._running.workers
        for name, worker in desired.workers.items():
            if name not in now:
                yield lambda worker=worker: self._running.add_worker(worker)  # type: ignore[misc]
            elif worker != now[name]:
                yield lambda worker=worker: self._running.change_worker(worker)  # type: ignore[misc]
        for name in now.keys() - desired.workers.keys():
            yield lambda name=name: self._running.remove_worker(name)  # type: ignore[misc]

    def _routing_step(self, desired: LiveSettings) -> Step:
        routing = routing_of(desired)
        built = self._running.build_routing(routing, desired.policy)
        return lambda: self._running.use_routing(routing, built)

    def _policy_step(self, policy: PolicyConfig) -> Step:
        built = self._running.build_policy(policy)
        return lambda: self._running.use_policy(policy, built)
