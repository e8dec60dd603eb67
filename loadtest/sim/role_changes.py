"""Changes of workers' roles on virtual time: the gateway's own planner, from its measurements to the desired state."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from loadtest.sim.virtual_time import VirtualTime
from router.config.model import Config, HandoverConfig, WorkerConfig
from router.control.control import Control
from router.control.desired_state import DesiredState
from router.control.role_flips import RoleFlips
from router.control.role_planner import RolePlanner
from router.control.running_gateway import describe
from router.control.start import Sources
from router.diagnosis.measurements import Measurements
from router.diagnosis.split_plan import FleetPlan, looks_back_s, members, plan
from router.placement.dispatcher import Dispatcher
from router.placement.fleet import Fleet


class RoleChanges:
    """Measures the traffic of a dispatcher, and changes roles of the workers that are in its fleet, as `handover` says.

    Call `look` often: it looks at the plan as often as the gateway does, and a look takes no virtual time.
    """

    def __init__(self, time: VirtualTime, fleet: Fleet, dispatcher: Dispatcher, handover: HandoverConfig) -> None:
        workers = tuple(
            WorkerConfig(url=f"http://{one.id}", role=one.role, labels=dict(one.labels)) for one in fleet.endpoints
        )
        config = Config(workers=workers, handover=handover)
        self._time = time
        self._fleet = fleet
        self._dispatcher = dispatcher
        self._config = config
        self._measurements = Measurements(config.diagnosis, longest_s=looks_back_s(config.handover))
        dispatcher.traffic = self._measurements
        fleet.on_load.append(self._measurements.load_reported)
        sources = Sources(config, lambda: config)
        control = Control(sources, sources.initial(), self._apply)
        flips = RoleFlips(config.handover, control, self._in_flight)
        self._planner = RolePlanner(config.handover, self._plan, flips, lambda: time.now_s)
        self._flips = flips
        self._next_s = time.now_s + self._planner.pause_s

    @property
    def changed(self) -> int:
        return self._flips.state().counts["changed"]

    def look(self) -> None:
        """Make a plan, and change a role if one is due, unless the last look was a moment ago."""
        if self._time.now_s >= self._next_s:
            asyncio.run(self._planner.look())
            self._next_s = self._time.now_s + self._planner.pause_s

    async def _plan(self) -> FleetPlan:
        now_s, handover = self._time.now_s, self._config.handover
        workers = members(self._fleet.endpoints, self._dispatcher.views(now_s), handover.connector)
        measured = self._measurements.measured(now_s, looks_back_s(handover))
        link = self._dispatcher.link_speed(now_s)
        return plan(measured, workers, handover, self._config.diagnosis.min_requests, link)

    async def _in_flight(self) -> Mapping[str, int]:
        return {
            endpoint.id: sum(
                self._dispatcher.worker_load(candidate).reserved().running_requests for candidate in endpoint.candidates
            )
            for endpoint in self._fleet.endpoints
        }

    async def _apply(self, desired: DesiredState) -> None:
        for name, worker in desired.effective.workers.items():
            describe(self._fleet, name, worker)
