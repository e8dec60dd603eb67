"""One run of a cell: a fleet, its router and clients on virtual time, from the first call to the last token."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from backends.engine.profile import Profile, load_profile
from loadtest.lab.aggregate import Played, aggregate
from loadtest.lab.cell import Cell, slos_of
from loadtest.lab.gauges import Gauges
from loadtest.lab.measures import Measures
from loadtest.lab.models import NETWORK_S, TIMEOUT_S, TOKENISE_S
from loadtest.lab.policies import parse_policy
from loadtest.lab.sources import Drawn, drawn
from loadtest.sim.clients import Clients
from loadtest.sim.gateway import SimulatedGateway
from loadtest.sim.queues.admission import AdmissionCalls
from loadtest.sim.sessions import sessions_of
from loadtest.sim.virtual_time import VirtualTime
from loadtest.sim.worker import EngineWorker, WorkerSpec
from loadtest.workload.plan import Plan
from policies.registry import build_policy
from router.placement.admission.classes import Claim, RequestClass
from router.residency.residency_map import ResidencyMap


class RuleFailed(Exception):
    """A rule raised or gave an invalid answer, so the fallback rule decided, as in the gateway."""


def run_cell(cell: Cell) -> Measures:
    """Run a cell. Equal cells give equal measures.

    Raises:
        RuleFailed: the rule did not decide every call itself.
    """
    models = cell.setting.models
    found = drawn(cell.trace, cell.seed, cell.setting.window_s, cell.rate, models.block_tokens)
    claims = claims_of(cell.setting.classes, found.plan) if cell.setting.classes else {}
    if claims:
        found = found.by_class({name: claim.of.name for name, claim in claims.items()})
    stage = Stage(cell, profile_of(cell, found), found.length_s, claims)
    stage.play(found.plan)
    stage.check()
    return aggregate(stage.played(found), cell.setting.slo, slos_of(cell.setting.classes))


def profile_of(cell: Cell, found: Drawn) -> Profile:
    """Return the fleet's profile with the models' sizes."""
    models = cell.setting.models
    profile = load_profile(cell.setting.fleet.profile)
    return replace(
        slowed(profile, models.step_time),
        block_size=models.block_tokens or found.plan.block_tokens,
        kv_tokens=models.kv_tokens or profile.kv_tokens,
        max_num_batched_tokens=models.chunk_tokens or profile.max_num_batched_tokens,
        max_num_seqs=models.max_num_seqs or profile.max_num_seqs,
    )


def slowed(profile: Profile, factor: float) -> Profile:
    return replace(profile, prefill=profile.prefill.scaled(factor), decode=profile.decode.scaled(factor))


def speeds(cell: Cell) -> list[float]:
    """Return each worker's factor on the profile's speed, from the seed alone: every rule gets the same fleet."""
    rng, spread = random.Random(f"speeds {cell.seed}"), cell.setting.models.speed_spread
    return [1.0 + rng.uniform(-spread, spread) for _ in range(cell.setting.fleet.workers)]


def claims_of(classes: Sequence[RequestClass], plan: Plan) -> dict[str, Claim]:
    """Return the claim of each session: its first call's kind is the name of its class, or it has the default one."""
    named = {one.name: Claim(one) for one in classes}
    default = named.get("default", Claim(classes[0]))
    return {session.id: named.get(session.calls[0].kind, default) for session in plan.sessions}


@dataclass(frozen=True, slots=True)
class _Counts:
    executed_tokens: list[int]
    preemptions: list[int]


class Stage:
    """A cell's fleet, router and clients on virtual time."""

    def __init__(
        self, cell: Cell, profile: Profile, length_s: float, claims: Mapping[str, Claim] = MappingProxyType({})
    ) -> None:
        models = cell.setting.models
        self._time = VirtualTime()
        self._length_s = length_s
        self._warm_s = length_s * models.warm_up_s / cell.setting.window_s
        self._workers = [
            EngineWorker(
                self._time,
                f"worker-{number}",
                WorkerSpec(profile, speed=speed, jitter=models.jitter, async_scheduling=models.async_scheduling),
                cell.seed * 1_000 + number,
                NETWORK_S,
            )
            for number, speed in enumerate(speeds(cell))
        ]
        self._gateway = self._routed(cell, claims)
        self._clients = Clients(
            self._time,
            self._gateway,
            NETWORK_S,
            arrival_s=TOKENISE_S + NETWORK_S,
            until_s=length_s,
        )
        self._gauges = Gauges(self._time, self._workers, length_s)
        self._before = _Counts([0] * len(self._workers), [0] * len(self._workers))

    def _routed(self, cell: Cell, claims: Mapping[str, Claim]) -> SimulatedGateway:
        handover, classes = cell.setting.handover, cell.setting.classes
        spec = parse_policy(cell.policy)
        return SimulatedGateway(
            self._time,
            self._workers,
            ResidencyMap(),
            build_policy(spec, random.Random(f"policy {cell.seed} 0")),
            spec,
            handover=handover,
            network=None if handover is None else handover.network(self._time),
            more=self._more,
            queue=(lambda gateway: AdmissionCalls(gateway, classes, claims, cell.seed)) if classes else None,
        )

    def _more(self) -> bool:
        return self._time.now_s < self._length_s or self._clients.waiting

    def play(self, plan: Plan) -> None:
        """Run the sessions to the last token."""
        for session in sessions_of(plan, TIMEOUT_S):
            self._clients.play(session)
        self._time.at(self._warm_s, self._warm)
        self._time.run()

    def check(self) -> None:
        """Check that the rule has decided every call.

        Raises:
            RuleFailed: it has not.
        """
        figures = self._gateway.statistics()
        if figures["last_error"] is not None:
            raise RuleFailed(f"policy {figures['policy']} failed: {figures['last_error']}; correct it, or leave it out")

    def _warm(self) -> None:
        self._before = self._counts()
        self._gauges.read()

    def _counts(self) -> _Counts:
        figures = [worker.statistics() for worker in self._workers]
        return _Counts([int(one["prefill_tokens"]) for one in figures], [int(one["preemptions"]) for one in figures])

    def played(self, found: Drawn) -> Played:
        """Return the measured part of the run."""
        after, outcomes = self._counts(), self._clients.outcomes
        measured = sorted((one for one in outcomes if one.sent_s >= self._warm_s), key=lambda one: (one.sent_s, one.id))
        return Played(
            outcomes=measured,
            asked=found.asked,
            executed_tokens=_less(after.executed_tokens, self._before.executed_tokens),
            preemptions=_less(after.preemptions, self._before.preemptions),
            from_s=self._warm_s,
            until_s=self._length_s,
            virtual_s=max((one.ended_s for one in outcomes), default=0.0),
            pressure=self._gauges.pressure(),
        )


def _less(after: Sequence[int], before: Sequence[int]) -> list[int]:
    return [now - then for now, then in zip(after, before, strict=True)]
