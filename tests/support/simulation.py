"""A run: a fleet, a gateway and sessions, from the first call to the last token."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from loadtest.sim.clients import Clients
from loadtest.sim.gateway import KV_EVENT_S, SimulatedGateway
from loadtest.sim.handover import HandoverSetting
from loadtest.sim.outcome import Outcome
from loadtest.sim.sessions import Session
from loadtest.sim.virtual_time import VirtualTime
from loadtest.sim.worker import EngineWorker, WorkerSpec
from policies.registry import build_policy
from policies.spec import PolicySpec
from router.placement.fleet.residency_source import ResidencySource
from router.residency.residency_map import ResidencyMap

MakeResidency = Callable[[VirtualTime], ResidencySource]
"""Makes the source of the knowledge which worker holds which blocks; some sources need the time."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings of a run. `seed` seeds the engines' jitter and the policy."""

    workers: tuple[WorkerSpec, ...]
    policy: PolicySpec = field(default_factory=PolicySpec)
    make_residency: MakeResidency = lambda time: ResidencyMap()
    publishes_events: bool = True
    kv_event_s: float = KV_EVENT_S
    request_s: float = 0.0005
    response_s: float = 0.0005
    handover: HandoverSetting | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """The result: one outcome per call, in order of their ends, and each worker's statistics."""

    outcomes: tuple[Outcome, ...]
    workers: tuple[dict[str, int | float], ...]


def simulate(setting: Setting, sessions: Iterable[Session]) -> Run:
    """Play `sessions` to their end. Equal arguments give equal runs."""
    time = VirtualTime()
    workers = [
        EngineWorker(time, f"worker-{number}", spec, setting.seed + number, setting.response_s)
        for number, spec in enumerate(setting.workers)
    ]
    gateway = SimulatedGateway(
        time,
        workers,
        setting.make_residency(time),
        build_policy(setting.policy, random.Random(setting.seed)),
        setting.policy,
        kv_event_s=setting.kv_event_s,
        publishes_events=setting.publishes_events,
        handover=setting.handover,
        network=None if setting.handover is None else setting.handover.network(time),
    )
    clients = Clients(time, gateway, setting.request_s)
    for session in sessions:
        clients.play(session)
    time.run()
    return Run(tuple(clients.outcomes), tuple(worker.statistics() for worker in workers))
