"""Looks at the plan of the workers' roles again and again, for the metrics and for changes of roles."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator

from msgspec.structs import replace

from router.config.model import HandoverConfig
from router.control.role_flips import RoleFlips
from router.diagnosis.split_plan import FleetPlan
from router.telemetry.exposition import Reading

log = logging.getLogger("warmroute.control")

LOOK_S = 15.0
"""Time between two plans."""
DRAIN_LOOK_S = 1.0
"""The same while a worker drains for its next role."""


class RolePlanner:
    """Makes a plan every `LOOK_S`, where workers hand KV cache over. `latest` is the last one, for the metrics."""

    def __init__(
        self,
        config: HandoverConfig,
        make_plan: Callable[[], Awaitable[FleetPlan | None]],
        flips: RoleFlips,
        now_s: Callable[[], float],
    ) -> None:
        self._config = config
        self._make_plan = make_plan
        self._flips = flips
        self._now_s = now_s
        self._task: asyncio.Task[None] | None = None
        self.latest: FleetPlan | None = None

    def start(self) -> None:
        """Begin. Without a connector, no more is done than to undrain workers that an earlier process left drained."""
        self._task = asyncio.create_task(self._run(), name="role planner")

    async def aclose(self) -> None:
        """End. A worker that drains for its next role takes requests again."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            await self._flips.end()

    async def _run(self) -> None:
        await asyncio.sleep(LOOK_S)
        await self._step(None)
        while self._config.connector is not None:
            await self.look()
            await asyncio.sleep(self.pause_s)

    @property
    def pause_s(self) -> float:
        """The time until the next look."""
        return DRAIN_LOOK_S if self._flips.draining else LOOK_S

    def shown(self, plan: FleetPlan) -> FleetPlan:
        return plan if self._config.connector is None else replace(plan, flips=self._flips.state())

    async def look(self) -> None:
        """Make one plan, and change a role if one is due.

        A failure is logged, and the next look is as usual. A drain goes on without a plan.
        """
        plan = None
        try:
            plan = self.latest = await self._make_plan()
        except Exception as error:
            log.error("no plan of the workers' roles", extra={"reason": str(error)}, exc_info=error)
        await self._step(plan)

    async def _step(self, plan: FleetPlan | None) -> None:
        try:
            await self._flips.step(plan, self._now_s())
        except Exception as error:
            log.error("no change of a worker's role", extra={"reason": str(error)}, exc_info=error)

    def readings(self) -> Iterator[Reading]:
        """Yield the prices of the roles and the recommended split, as the last plan has them, and changes of roles."""
        if self._config.connector is not None:
            for outcome, count in self._flips.state().counts.items():
                yield "warmroute_role_changes", (outcome,), count
        for one in () if self.latest is None else self.latest.plans:
            models = ",".join(one.models)
            for pool in one.pools:
                if pool.price_s is not None:
                    yield "warmroute_role_price_ratio", (models, pool.role), pool.price_s
                if one.recommended is not None:
                    number = getattr(one.recommended, pool.role)
                    yield "warmroute_recommended_replicas", (models, pool.role), number
