"""Bring one process to the desired state, as a whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from router.config.model import PolicyConfig
from router.control.change import NotAppliedError
from router.control.running_gateway import RunningGateway
from router.control.state.desired_state import DesiredState, LiveSettings
from router.control.state.routing import routing_of

Step = Callable[[], object]


class Reconciler:
    """Compare the running process with the desired state, and change what differs.

    It looks at the process and not at earlier states, so that the same call corrects whatever the process has become.
    A second call with the same state changes nothing.
    """

    def __init__(self, running: RunningGateway) -> None:
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
