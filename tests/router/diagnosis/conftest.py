"""Simulated fleets, each with one trouble or none, whose gateway measures its traffic in virtual time."""

import random

import pytest

from loadtest.sim.clients import Clients
from loadtest.sim.gateway import SimulatedGateway
from loadtest.sim.virtual_time import VirtualTime
from loadtest.sim.worker import EngineWorker
from policies.registry import build_policy
from policies.spec import PolicySpec
from router.config.model import DiagnosisConfig
from router.diagnosis.diagnose import diagnose
from router.diagnosis.in_force import InForce
from router.diagnosis.measurements import Measurements
from router.residency.residency_map import ResidencyMap

BATCH_READS = 32


class _Gaps:
    """Passes the gaps between tokens to the dispatcher in batches, as `router.gateway.flow.answer.relay.Relay` does."""

    def __init__(self, gateway):
        self._time, self._dispatcher = gateway.time, gateway.core
        self._progress, self._finished = gateway.core.tickets.progress, gateway.core.tickets.finished
        self._seen = {}
        gateway.core.tickets.progress, gateway.core.tickets.finished = self.progress, self.finished

    def progress(self, ticket, tokens):
        now_s = self._time.now_s
        last_s, gaps_s = self._seen.get(ticket.id, (None, []))
        if last_s is not None:
            gaps_s.append(now_s - last_s)
        if len(gaps_s) == BATCH_READS:
            self._progress(ticket, tokens, gaps_s, now_s)
            gaps_s = []
        self._seen[ticket.id] = (now_s, gaps_s)

    def finished(self, ticket, usage, now_s, **more):
        last_s, gaps_s = self._seen.pop(ticket.id, (now_s, []))
        self._progress(ticket, usage.completion_tokens or 0, gaps_s, last_s)
        self._finished(ticket, usage, now_s, **more)


class Simulated:
    def __init__(self, specs, sessions, policy, thresholds, *, events=True):
        self.thresholds = thresholds
        self.time = VirtualTime()
        workers = [
            EngineWorker(self.time, f"worker-{number}", spec, number, 0.0005, every_step=True)
            for number, spec in enumerate(specs)
        ]
        gateway = SimulatedGateway(
            self.time,
            workers,
            ResidencyMap(),
            build_policy(policy, random.Random(0)),
            policy,
            publishes_events=events,
        )
        self.measurements = Measurements(window_s=3_600.0)
        gateway.core.tickets.traffic = self.measurements
        gateway.fleet.on_load.append(self.measurements.load_reported)
        _Gaps(gateway)
        clients = Clients(self.time, gateway, 0.0005)
        for session in sessions:
            clients.play(session)
        self.time.run()

    @property
    def measured(self):
        return self.measurements.measured(self.time.now_s)

    @property
    def diagnosis(self):
        return diagnose(self.measured, self.thresholds, InForce())


@pytest.fixture
def simulated():
    def make(specs, sessions, policy=None, *, events=True, **thresholds):
        policy = policy or PolicySpec("marginal_cost", {}, hold=True, lanes=True)
        return Simulated(specs, sessions, policy, DiagnosisConfig(**thresholds), events=events)

    return make
