"""One load through one queue."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random

import numpy as np

from backends.engine.profile import load_profile
from loadtest.admission.loads import SEQS, WORKERS, Load
from loadtest.sim.clients import Clients
from loadtest.sim.gateway import MakeQueue, SimulatedGateway
from loadtest.sim.outcome import Ending, Outcome
from loadtest.sim.queues.admission import AdmissionCalls
from loadtest.sim.queues.flow_control import FlowControl
from loadtest.sim.queues.policy_classes import PolicyClasses
from loadtest.sim.queues.priority_slots import PrioritySlots
from loadtest.sim.virtual_time import VirtualTime
from loadtest.sim.worker import EngineWorker, WorkerSpec
from policies.registry import build_policy
from policies.spec import PolicySpec
from router.placement.admission.classes import Claim
from router.residency.residency_map import ResidencyMap

PROFILE = "llama-3.1-8b-a100"
NETWORK_S = 0.0005
WARM_S = 30.0
"""Requests before are not measured: the speeds are not learned yet."""

QUEUES: Mapping[str, Callable[[Load, int], MakeQueue] | None] = {
    "none": None,
    "warmroute": lambda load, seed: (
        lambda gateway: AdmissionCalls(gateway, load.classes, load.claims, seed, load.spared)
    ),
    "llm-d": lambda load, seed: lambda gateway: FlowControl(gateway, load.classes, load.claims),
    "dynamo": lambda load, seed: lambda gateway: PolicyClasses(gateway, load.classes, load.claims),
    "smg": lambda load, seed: lambda gateway: PrioritySlots(gateway, load.classes, load.claims),
}
"""What can hold requests back, by name. Without any, all go to the workers at once, held by the policy alone."""


@dataclass(frozen=True, slots=True)
class Played:
    """The outcomes of a run, with their claims. `refused` are the spared sessions that would have been refused."""

    load: Load
    outcomes: list[Outcome]
    refused: frozenset[str]

    def of(self, wanted: Callable[[Claim], bool], from_s: float = WARM_S) -> list[Outcome]:
        claims = self.load.claims
        return [one for one in self.outcomes if one.sent_s >= from_s and wanted(claims[one.session])]

    def ttft_s(self, wanted: Callable[[Claim], bool], share: float, from_s: float = WARM_S) -> float:
        """Return a quantile of the times to first token; a refused request counts as infinite."""
        found = [np.inf if one.ttft_s is None else one.ttft_s for one in self.of(wanted, from_s)]
        return float(np.quantile(found, share, method="higher"))

    def cached_share(self) -> float:
        served = [one for one in self.outcomes if one.cached_tokens is not None]
        return sum(one.cached_tokens or 0 for one in served) / max(1, sum(one.prompt_tokens for one in served))


def play(load: Load, queue: str, seed: int) -> Played:
    """Play a load through a queue, to the last token of what was sent."""
    time = VirtualTime()
    profile = replace(load_profile(PROFILE), max_num_seqs=SEQS)
    specs = [WorkerSpec(profile, async_scheduling=True)] * WORKERS
    workers = [
        EngineWorker(time, f"worker-{number}", spec, seed * 1_000 + number, NETWORK_S)
        for number, spec in enumerate(specs)
    ]
    spec, make = PolicySpec("marginal_cost"), QUEUES[queue]
    clients: list[Clients] = []
    gateway = SimulatedGateway(
        time,
        workers,
        ResidencyMap(),
        build_policy(spec, Random(seed)),
        spec,
        more=lambda: time.now_s < load.until_s or clients[0].waiting,
        queue=None if make is None else make(load, seed),
    )
    clients.append(Clients(time, gateway, NETWORK_S, arrival_s=NETWORK_S))
    for session in load.sessions:
        clients[0].play(session)
    time.run()
    waits = gateway.queue
    refused = frozenset(waits.would_refuse) if isinstance(waits, AdmissionCalls) else frozenset()
    return Played(load, clients[0].outcomes, refused)


def finished(outcomes: list[Outcome]) -> list[Outcome]:
    return [one for one in outcomes if one.ending is Ending.FINISHED]
