"""Bring one process to the desired state, as a whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

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
        before = self._running.settings
        try:
            steps = list(self._steps(desired.effective))
        except Exception as error:  # a third party's policy may raise anything
            raise NotAppliedError(str(error)) from error
        try:
            for step in steps:
                step()
        except Exception as error:
            for step in self._steps(before):
                step()
            raise NotAppliedError(f"{type(error).__name__}: {error}") from error
        self.version = desired.version
        return len(steps)

    def _steps(self, desired: LiveSettings) -> Iterator[Step]:
        """Yield the changes. What can fail is done before the first step runs.

        New workers come before old ones leave, so that requests which move find them.
        """
        running, now, routing = self._running, self._running.settings, routing_of(desired)
        if desired.policy != now.policy:
            yield partial(running.use_policy, desired.policy, running.build_policy(desired.policy))
        if routing != routing_of(now):
            yield partial(running.use_routing, routing, running.build_routing(routing, desired.policy))
        if desired.models != now.models:
            yield partial(running.use_models, desired.models)
        if (desired.tenants, desired.limits) != (now.tenants, now.limits):
            yield partial(running.use_callers, desired.tenants, desired.limits)
        for name, worker in desired.workers.items():
            if name not in now.workers:
                yield partial(running.add_worker, worker)
            elif worker != now.workers[name]:
                yield partial(running.change_worker, worker)
        for name in now.workers.keys() - desired.workers.keys():
            yield partial(running.remove_worker, name)
