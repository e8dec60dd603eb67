"""One contender's run on real processes: empty caches, a new router, the seed's plan, and the lab's measures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop

from loadtest.compare.contenders import Contender, Site, Worker, running_router
from loadtest.compare.modelled import asked
from loadtest.compare.player import play
from loadtest.compare.workers import empty_caches
from loadtest.fleet.cpu import tree_cpu_s
from loadtest.fleet.ports import free_ports
from loadtest.lab.aggregate import Asked, Played, aggregate
from loadtest.lab.cell import Cell
from loadtest.lab.measures import Measures
from loadtest.report.summary import percentile
from loadtest.sim.outcome import Outcome
from loadtest.workload.plan import Call, Plan, Session
from loadtest.workload.text import Text
from loadtest.workload.wording import Wording

WARM_UP_CALLS = 16


@dataclass(frozen=True, slots=True)
class Stage:
    """What all contenders share: the fleet, its model, the other routers' environment, and the folder of the logs."""

    workers: tuple[Worker, ...]
    model: str
    wording: Wording
    environment: Path
    logs: Path

    def site(self) -> Site:
        port = free_ports(2)
        return Site(port, port + 1, self.workers, self.model, self.environment)


@dataclass(frozen=True, slots=True)
class Usage:
    """The router's milliseconds of CPU per call, and the load generator's delay."""

    router_cpu_ms: float
    client_lag_p99_ms: float


@dataclass(frozen=True, slots=True)
class Trial:
    measures: Measures
    usage: Usage
    errors: tuple[str, ...]


def run_trial(stage: Stage, contender: Contender, cell: Cell, progress: Callable[[], None]) -> Trial:
    """Play a cell through a contender.

    Raises:
        StartError: the router did not start, or a worker did not empty its cache.
    """
    empty_caches(stage.workers, stage.model)
    site, found = stage.site(), asked(cell)
    log = stage.logs / f"seed-{cell.seed}-{contender.name.replace(':', '-').split()[0]}.log"
    with running_router(contender, site, log) as router:
        uvloop.run(play(site.url, stage.model, stage.wording, warm_up(), 60.0, lambda: None))
        before_s = tree_cpu_s(router.pid)
        played = uvloop.run(play(site.url, stage.model, stage.wording, found.plan, found.length_s, progress))
        router_s = tree_cpu_s(router.pid) - before_s
    usage = Usage(router_s * 1e3 / max(1, len(played.outcomes)), percentile(played.lags_s, 0.99) * 1e3)
    measures = measured(cell, played.outcomes, found.asked, found.length_s)
    return Trial(measures, usage, tuple(played.errors))


def warm_up() -> Plan:
    """Return short calls that do not count: a router that has just started is not in its normal state."""
    text, answer = 1 << 61, 1 << 61 | 1 << 60
    calls = [Call(Text.of([(text | number, 500)]), (answer | number, 8)) for number in range(WARM_UP_CALLS)]
    return Plan.of("warm-up", [Session(f"warm-up-{at}", 0.1 * at, (call,)) for at, call in enumerate(calls)], 60.0)


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
            executed_tokens=[*computed.values(), *idle],
            preemptions=[],
            from_s=warm_s,
            until_s=length_s,
            virtual_s=max((one.ended_s for one in outcomes), default=0.0),
        ),
        cell.setting.slo,
    )
