"""What a gateway has once, however many processes it has: sources of workers, its place in the fleet, traffic and
diagnosis.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from typing import Protocol

import msgspec

from router.config.model import Config
from router.control.control import Control
from router.diagnosis.diagnose import Diagnosis
from router.diagnosis.diagnoser import Diagnoser, Inputs
from router.diagnosis.facts import Facts
from router.diagnosis.in_force import in_force
from router.diagnosis.measured import Measured
from router.discovery.discovery import Discovery
from router.metrics.instruments import Reading
from router.replicas.replica import Replica
from router.telemetry.history import TrafficHistory
from router.telemetry.snapshot import Snapshot

INTERVAL_S = 10.0
"""Time between two looks at the metrics, for the traffic's history and for the diagnosis."""

log = logging.getLogger("warmroute.diagnosis")


class ProcessKnows(msgspec.Struct, frozen=True):
    """What one process, or all of them, have for a diagnosis beside the metrics."""

    measured: Measured
    facts: Facts


class Processes(Protocol):
    """The one process of a gateway, or all of them."""

    async def metrics(self) -> Snapshot: ...

    async def known(self) -> ProcessKnows | None:
        """Return what was measured in the last `diagnosis.window_s`, and what is known of the workers; None if no
        process answers.
        """


class ControlPlane:
    """`start` runs the sources of workers, and looks at the metrics every `INTERVAL_S`.

    One of several processes has a control plane, too, without `discovery` and `replica`. It is not started, because
    the supervisor's speaks for all.
    """

    def __init__(
        self,
        config: Config,
        control: Control,
        discovery: Discovery | None,
        replica: Replica | None,
    ) -> None:
        self.config = config
        self.control = control
        self.discovery = discovery
        self.replica = replica
        self.traffic = TrafficHistory()
        self._diagnoser = Diagnoser()
        self._looking: asyncio.Task[None] | None = None

    def start(self, processes: Processes) -> None:
        """Begin to find workers, and to look at the metrics of `processes`."""
        if self.discovery is not None:
            self.discovery.start()
        self._looking = asyncio.create_task(self._look(processes), name="diagnosis")

    async def aclose(self) -> None:
        if self.discovery is not None:
            await self.discovery.aclose()
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        self.control.reloads.close()

    async def _look(self, processes: Processes) -> None:
        while True:
            try:
                metrics = await processes.metrics()
                self.traffic.observe(metrics)
                await self._diagnose(processes, metrics)
            except Exception:  # the next look tries again
                log.exception("the diagnosis failed")
            await asyncio.sleep(INTERVAL_S)

    async def diagnosis(self, processes: Processes) -> Diagnosis | None:
        """Return what hurts; None if no process answers."""
        return await self._diagnose(processes, await processes.metrics())

    async def _diagnose(self, processes: Processes, metrics: Snapshot) -> Diagnosis | None:
        known = await processes.known()
        return None if known is None else self._diagnoser.diagnosis(self._inputs(metrics, known))

    def _inputs(self, metrics: Snapshot, known: ProcessKnows) -> Inputs:
        facts = msgspec.structs.replace(known.facts, reasons={**known.facts.reasons, **self._reasons()})
        force = in_force(self.config, self.control.state.settings.policy, facts)
        return Inputs(metrics, known.measured, facts, force, self.config.diagnosis)

    def _reasons(self) -> Mapping[str, str]:
        reasons = {} if self.control.saving.unsaved is None else {"state": self.control.saving.unsaved}
        if self.replica is not None:
            said = {"redis": self.replica.line.problem, "replicas": "; ".join(self.replica.apart())}
            reasons |= {about: why for about, why in said.items() if why}
        for name, state in {} if self.discovery is None else self.discovery.statistics().items():
            if state["failing_since"] is not None:
                reasons[f"source {name}"] = str(state["error"])
        return reasons

    def readings(self) -> Iterator[Reading]:
        for part in (self.discovery, self.control, self.replica):
            if part is not None:
                yield from part.readings()
