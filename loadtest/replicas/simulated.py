"""Cases in virtual time: several gateways over one modelled fleet."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from loadtest.approximate.workloads import Workload, workloads
from loadtest.replicas.cases import Case, Played, Share, cases, share
from loadtest.replicas.virtual_exchange import VirtualExchange
from loadtest.sim.clients import Clients
from loadtest.sim.dealt import Dealt
from loadtest.sim.gateway import Delays, SimulatedGateway
from loadtest.sim.outcome import Ending, Outcome
from loadtest.sim.sessions import Session
from loadtest.sim.virtual_time import VirtualTime
from loadtest.sim.worker import EngineWorker
from policies.registry import build_policy
from policies.spec import PolicySpec
from router.placement.shared_load import SharedLedger
from router.residency.residency_map import ResidencyMap

COUNTS = (1, 2, 4, 8)
WORKLOADS = ("shared-prompts", "long-tail")


@dataclass(frozen=True, slots=True)
class Task:
    """One run; another process may do it."""

    workload: str
    case: Case
    seed: int

    def run(self) -> Share:
        """Play it."""
        (workload,) = chosen([self.workload])
        return play(workload, self.case, self.seed)


def chosen(names: Sequence[str]) -> list[Workload]:
    """Return the workloads with these names."""
    return [workload for workload in workloads(None) if workload.name in names]


def simulate(
    names: Sequence[str], counts: Sequence[int], seeds: int, jobs: int, progress: Callable[[], None]
) -> dict[str, list[Played]]:
    """Play each workload in each case with `seeds` seeds. `progress` is called after each run."""
    listed = cases(counts)
    tasks = [Task(name, case, seed) for name in names for case in listed for seed in range(seeds)]
    found: dict[tuple[str, Case], list[Share]] = {(name, case): [] for name in names for case in listed}
    with ProcessPoolExecutor(jobs) as pool:
        for task, result in zip(tasks, pool.map(Task.run, tasks), strict=True):
            found[task.workload, task.case].append(result)
            progress()
    return {name: [Played(case, tuple(found[name, case])) for case in listed] for name in names}


def play(workload: Workload, case: Case, seed: int) -> Share:
    """Play one run. Equal arguments give equal figures."""
    time, delays = VirtualTime(), Delays()
    workers = [
        EngineWorker(time, f"worker-{number}", spec, seed + number, delays.response_s)
        for number, spec in enumerate(workload.workers)
    ]
    sessions = list(workload.sessions(seed))
    stage = _Stage(time, workers, sessions)
    residencies = [ResidencyMap() for _ in range(case.gateways)]
    with _ledgers(stage, case, residencies) as ledgers:
        known = zip(residencies, ledgers, strict=True)
        gateways = [stage.gateway(*each, case.events, seed + number) for number, each in enumerate(known)]
        outcomes = stage.play(gateways, delays)
    return _figures(outcomes, [worker.name for worker in workers])


class _Stage:
    """The modelled fleet and the clients of a run."""

    def __init__(self, time: VirtualTime, workers: Sequence[EngineWorker], sessions: Sequence[Session]) -> None:
        self.time = time
        self._workers = workers
        self._sessions = sessions
        self._calls = sum(len(session.calls) for session in sessions)
        self._outcomes: list[Outcome] = []

    def more(self) -> bool:
        """Whether a call has not ended."""
        return len(self._outcomes) < self._calls

    def gateway(
        self, residency: ResidencyMap, ledger: SharedLedger | None, events: bool, seed: int
    ) -> SimulatedGateway:
        return SimulatedGateway(
            self.time,
            self._workers,
            residency,
            build_policy(PolicySpec(), random.Random(seed)),
            PolicySpec(),
            delays=Delays(),
            publishes_events=events,
            ledger=ledger,
            more=self.more,
            seed=seed,
        )

    def play(self, gateways: Sequence[SimulatedGateway], delays: Delays) -> list[Outcome]:
        """Play the sessions to their end."""
        clients = Clients(self.time, Dealt(gateways), self._workers, delays.request_s)
        self._outcomes = clients.outcomes
        for session in self._sessions:
            clients.play(session)
        self.time.run()
        return self._outcomes


@contextmanager
def _ledgers(stage: _Stage, case: Case, residencies: Sequence[ResidencyMap]) -> Iterator[Sequence[SharedLedger | None]]:
    """Yield each gateway's ledger; None without Redis."""
    if not case.redis:
        yield [None] * case.gateways
        return
    with VirtualExchange(stage.time, residencies, stage.more) as exchange:
        yield [replica.ledger for replica in exchange.replicas]
        malformed = exchange.statistics()["malformed"]
        assert not malformed, f"{malformed} messages could not be read"


def _figures(outcomes: Sequence[Outcome], workers: Sequence[str]) -> Share:
    done = [outcome for outcome in outcomes if outcome.ending is Ending.FINISHED]
    calls = [(one.worker, one.prompt_tokens, one.cached_tokens or 0) for one in done]
    return share(
        calls, workers, [one.ttft_s for one in done if one.ttft_s is not None], failed=len(outcomes) - len(done)
    )
