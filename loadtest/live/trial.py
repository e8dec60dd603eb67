"""One rule's run on real processes: empty caches, a new gateway, the seed's plan, and the lab's measures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import uvloop

from loadtest.fleet.ports import free_ports
from loadtest.lab.aggregate import Asked, Played, aggregate
from loadtest.lab.cell import Cell
from loadtest.lab.measures import Measures
from loadtest.lab.policies import parse_policy
from loadtest.live.modelled import asked
from loadtest.live.player import Answered, Player
from loadtest.live.wording import Wording
from loadtest.peers.contenders import Contender, Site
from loadtest.peers.figures import Usage
from loadtest.peers.launch import running_router
from loadtest.peers.reading import Reading, lags
from loadtest.peers.workers import Worker, empty_caches
from loadtest.report.summary import percentile
from loadtest.sim.outcome import Outcome
from loadtest.workload.plan import Plan


@dataclass(frozen=True, slots=True)
class Stage:
    """What all rules share: the fleet, its model, and the folder of the gateway's log."""

    workers: tuple[Worker, ...]
    model: str
    wording: Wording
    logs: Path

    def site(self) -> Site:
        """Return the environment of one more gateway."""
        port = free_ports(2)
        return Site(port, port + 1, self.workers, self.model, self.logs)


@dataclass(frozen=True, slots=True)
class Machine:
    """Load of the machine during a run: shares of all CPU time, and times per call.

    `busy_share` was used by any process, `own_share` by this run. `client_lag_p99_ms` is the load generator's delay.
    """

    busy_share: float
    own_share: float
    router_cpu_ms: float
    workers_cpu_ms: float
    client_cpu_ms: float
    client_lag_p99_ms: float


@dataclass(frozen=True, slots=True)
class Trial:
    """Results of one run."""

    measures: Measures
    machine: Machine
    errors: tuple[str, ...]


def run_trial(stage: Stage, cell: Cell, progress: Callable[[], None]) -> Trial:
    """Play a cell on real processes.

    Raises:
        StartError: the gateway did not start, or a worker did not empty its cache.
    """
    empty_caches(stage.workers, stage.model)
    site, found = stage.site(), asked(cell)
    log = stage.logs / f"seed-{cell.seed}-{cell.policy.replace(':', '-')}.log"
    with running_router(gateway_of(cell.policy), site, log) as router:
        before = Reading.take(stage.workers, router.pid)
        answered, lags_s = uvloop.run(_play(stage, site, found.plan, found.length_s, progress))
        usage = Reading.take(stage.workers, router.pid).since(before, percentile(lags_s, 0.99))
    measures = measured(cell, [one.outcome for one in answered], found.asked, found.length_s)
    return Trial(measures, machine(usage, len(answered)), tuple(one.error for one in answered if one.error is not None))


def gateway_of(policy: str) -> Contender:
    """Return Warmroute with a policy, given by the lab's name for it."""
    spec = parse_policy(policy)
    flags = [word for key, value in spec.params.items() for word in ("--policy-param", f"{key}={_said(value)}")]
    for name, given in (("hold", spec.hold), ("lanes", spec.lanes)):
        if given is not None:
            flags += ["--set", f"policy.{name}={_said(given)}"]
    return Contender(f"warmroute:{policy}", "warmroute", spec.rule, tuple(flags))


def _said(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


async def _play(
    stage: Stage, site: Site, plan: Plan, until_s: float, progress: Callable[[], None]
) -> tuple[list[Answered], list[float]]:
    async with lags() as lags_s:
        return await Player(site.url, stage.model, stage.wording).play(plan, until_s, progress), lags_s


def measured(cell: Cell, outcomes: Sequence[Outcome], known: dict[str, Asked], length_s: float) -> Measures:
    """Return the lab's measures of calls after the warm-up. Executed tokens are derived from the answers."""
    warm_s = length_s * cell.setting.models.warm_up_s / cell.setting.window_s
    kept = sorted((one for one in outcomes if one.sent_s >= warm_s), key=lambda one: (one.sent_s, one.id))
    computed = Counter[str]()
    for one in kept:
        computed[one.worker] += one.prompt_tokens - (one.cached_tokens or 0)
    idle = [0] * (cell.setting.fleet.workers - len(computed))
    return aggregate(
        Played(
            outcomes=kept,
            asked=known,
            regrets_s={},
            executed_tokens=[*computed.values(), *idle],
            preemptions=[],
            from_s=warm_s,
            until_s=length_s,
            virtual_s=max((one.ended_s for one in outcomes), default=0.0),
        ),
        cell.setting.slo,
    )


def machine(usage: Usage, calls: int) -> Machine:
    """Return the machine's load during a run of `calls` calls."""
    workers_cpu_s = sum(worker.cpu_s for worker in usage.workers)
    own_cpu_s = usage.router_cpu_s + usage.client_cpu_s + workers_cpu_s
    return Machine(
        busy_share=usage.busy_cpu_s / usage.machine_cpu_s,
        own_share=own_cpu_s / usage.machine_cpu_s,
        router_cpu_ms=usage.router_cpu_s * 1e3 / max(1, calls),
        workers_cpu_ms=workers_cpu_s * 1e3 / max(1, calls),
        client_cpu_ms=usage.client_cpu_s * 1e3 / max(1, calls),
        client_lag_p99_ms=usage.client_lag_p99_s * 1e3,
    )
