"""Changes of workers' roles by the planner: when one is due, and the drain and change of one worker."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from router.config.model import HandoverConfig
from router.config.problems import ConfigError
from router.control.change import Change, HandedOverError
from router.control.control import Control
from router.control.desired_state import LiveSettings
from router.control.edits import Edit, WorkerUnknownError, change_worker, set_maintenance
from router.control.reconciler import NotAppliedError
from router.control.revisions import Revision, Source
from router.control.sharing import OvertakenError
from router.control.state_file import NotSavedError
from router.diagnosis.split_plan import FleetPlan, FlipState, PlannedPool, SplitPlan, looks_back_s
from router.placement.endpoints import DECODE, PREFILL
from router.placement.handover_roles import connects

log = logging.getLogger("warmroute.control")

LEAST_GAIN_S = 0.01
"""Seconds of delay per second that a change must save in any case. The margin is a share, and a share of nothing is
nothing."""
SOURCE: Final[Source] = "planner"
_REFUSED = (ConfigError, HandedOverError, NotAppliedError, NotSavedError, OvertakenError, WorkerUnknownError)
Models = tuple[str, ...]


class RoleChange(NamedTuple):
    """A change of one worker of the role `from_role` to `to_role`. It saves `gain_s` per second."""

    models: Models
    from_role: str
    to_role: str
    gain_s: float

    def __str__(self) -> str:
        change = f"{', '.join(self.models)}: one {self.from_role} worker as {self.to_role} worker"
        return f"{change} would save {self.gain_s:.3g} s of delay per second"


class Hysteresis:
    """Says which change has been right for `flip_after_s` without a break."""

    def __init__(self, config: HandoverConfig) -> None:
        self._config = config
        self._since_s: dict[tuple[Models, str], float] = {}

    def due(self, plan: FleetPlan, now_s: float) -> list[tuple[RoleChange, float]]:
        """Return the changes that are right now, with the time in seconds for which they have been."""
        right = [one for split in plan.plans if (one := wanted(split, self._config.flip_margin)) is not None]
        keys = [(one.models, one.to_role) for one in right]
        self._since_s = {key: self._since_s.get(key, now_s) for key in keys}
        return [(one, now_s - self._since_s[key]) for one, key in zip(right, keys, strict=True)]

    def forget(self) -> None:
        self._since_s.clear()


def wanted(plan: SplitPlan, margin: float) -> RoleChange | None:
    """Return the change of one worker that a plan asks for; None if it saves too little or takes the last of a role."""
    recommended, now_s, then_s = plan.recommended, plan.delay_s, plan.first_step_delay_s
    if recommended is None or now_s is None or then_s is None or recommended.mixed != plan.now.mixed:
        return None
    more = recommended.prefill - plan.now.prefill
    from_role, to_role = (DECODE, PREFILL) if more > 0 else (PREFILL, DECODE)
    if not more or getattr(plan.now, from_role) < 2 or now_s - then_s < max(margin * now_s, LEAST_GAIN_S):
        return None
    return RoleChange(plan.models, from_role, to_role, now_s - then_s)


@dataclass(frozen=True, slots=True)
class _Draining:
    worker: str
    due: RoleChange
    since_s: float


class RoleFlips:
    """Changes one role at a time, step by step: `step` is called with each plan, and more often while `draining`.

    A plan takes its load as that of the present split. So after a drain no change is looked for until the load of
    earlier has left the window.
    `in_flight` returns the requests at each worker, or None while that is not known.
    """

    def __init__(
        self,
        config: HandoverConfig,
        control: Control,
        in_flight: Callable[[], Awaitable[Mapping[str, int] | None]],
    ) -> None:
        self._config = config
        self._control = control
        self._in_flight = in_flight
        self._hysteresis = Hysteresis(config)
        self._draining: _Draining | None = None
        self._due: list[str] = []
        self._began = False
        self._known_from_s = 0.0
        """When the load of a plan is no longer that of the split before the last drain."""
        self._counts: Counter[str] = Counter(dict.fromkeys(("advised", "changed", "given_up", "interrupted"), 0))

    @property
    def draining(self) -> bool:
        return self._draining is not None

    def state(self) -> FlipState:
        now = self._draining
        return FlipState(
            self._config.flip_roles,
            None if now is None else now.worker,
            None if now is None else now.due.to_role,
            list(self._due),
            dict(self._counts),
        )

    async def step(self, plan: FleetPlan | None, now_s: float) -> None:
        """Continue the change that is in progress, or begin one that has been right for long enough."""
        if not self._began:
            await self._undrain_left_behind()
        self._began = True
        if self._draining is not None:
            await self._continue(self._draining, now_s)
            self._known_from_s = now_s + looks_back_s(self._config)
        elif plan is not None and self._config.flip_roles != "off" and now_s >= self._known_from_s:
            await self._consider(plan, now_s)

    async def end(self) -> None:
        """Let a worker that drains take requests again, because the gateway stops."""
        if self._draining is not None:
            await self._give_up(self._draining, "the gateway stops")

    # the decision

    async def _consider(self, plan: FleetPlan, now_s: float) -> None:
        after_s, found = self._config.flip_after_s, self._hysteresis.due(plan, now_s)
        self._due = [f"{one}; so for {held_s:.0f} s of {after_s:.0f} s" for one, held_s in found]
        ripe = [one for one, held_s in found if held_s >= after_s]
        if not ripe:
            return
        best = max(ripe, key=lambda one: one.gain_s)
        if self._config.flip_roles == "on":
            await self._begin(best, plan, now_s)
            return
        self._hysteresis.forget()
        self._counts["advised"] += 1
        log.warning("the load asks for another role of a worker", extra={"advice": str(best)})

    async def _begin(self, due: RoleChange, plan: FleetPlan, now_s: float) -> None:
        """Drain the worker of the role that has the fewest requests. It is tried again if that is not possible now."""
        running = await self._in_flight()
        pool = _pool_of(plan, due)
        if running is None or pool is None:
            return
        movable = self._movable(pool.workers, due.from_role)
        worker = min(movable, key=lambda name: (running.get(name, 0), name), default=None)
        if worker is None:
            return
        what = f"drained worker {worker}, which is to be a {due.to_role} worker: {due}"
        if await self._make(set_maintenance(worker, True), what):
            self._draining = _Draining(worker, due, now_s)
            self._hysteresis.forget()

    def _movable(self, workers: Collection[str], role: str) -> Iterable[str]:
        """Yield the workers of `role` that take requests and have the connector."""
        known, connector = self._control.state.settings.workers, self._config.connector
        for name in workers:
            one = known.get(name)
            if one is None or one.maintenance or one.role != role:
                continue
            if connects(one.role, one.labels, connector):
                yield name

    # the drain

    async def _continue(self, now: _Draining, now_s: float) -> None:
        worker = self._control.state.settings.workers.get(now.worker)
        if worker is None or not worker.maintenance or worker.role != now.due.from_role:
            self._end("interrupted", "somebody else changed the worker", now)
            return
        running = await self._in_flight()
        if running is not None and not running.get(now.worker, 0):
            what = f"changed worker {now.worker} from {now.due.from_role} to {now.due.to_role}: {now.due}"
            if await self._make(change_worker(now.worker, {"role": now.due.to_role, "maintenance": False}), what):
                self._end("changed", "", now)
                return
        if now_s - now.since_s >= self._config.flip_drain_s:
            await self._give_up(now, f"not done within {self._config.flip_drain_s:g} s")

    async def _give_up(self, now: _Draining, why: str) -> None:
        what = f"undrained worker {now.worker}, which stays a {now.due.from_role} worker: {why}"
        await self._make(set_maintenance(now.worker, False), what)
        self._end("given_up", why, now)

    def _end(self, outcome: str, why: str, now: _Draining) -> None:
        self._draining = None
        self._counts[outcome] += 1
        self._due = []
        fields = {"worker": now.worker, "to_role": now.due.to_role, "outcome": outcome, "reason": why}
        log.info("the change of a worker's role has ended", extra=fields)

    async def _undrain_left_behind(self) -> None:
        """Let workers take requests again that an earlier process drained for a change that it did not finish."""
        control = self._control
        for worker in left_behind(control.history.revisions, control.state.settings):
            await self._make(
                set_maintenance(worker, False), f"undrained worker {worker}, whose change was not finished"
            )

    async def _make(self, edit: Edit, what: str) -> bool:
        """Change the desired state. Return False if that was refused."""
        try:
            await self._control.make(Change(edit, what, SOURCE))
        except _REFUSED as error:
            log.warning("a change of the planner was refused", extra={"change": what, "reason": str(error)})
            return False
        return True


def left_behind(revisions: Iterable[Revision], settings: LiveSettings) -> list[str]:
    """Return the workers in maintenance whose maintenance the planner set last."""
    last: dict[str, str] = {}
    for revision in revisions:
        for one in revision.differences:
            if one.path[0] == "workers" and one.path[2:] == ("maintenance",):
                last[str(one.path[1])] = revision.source
    return [name for name, worker in settings.workers.items() if worker.maintenance and last.get(name) == SOURCE]


def _pool_of(plan: FleetPlan, due: RoleChange) -> PlannedPool | None:
    pools = (pool for split in plan.plans if split.models == due.models for pool in split.pools)
    return next((pool for pool in pools if pool.role == due.from_role), None)
