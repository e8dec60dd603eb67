"""With load of several processes, a decision sees the same numbers in arrays as in the views of single workers."""

import os
import random

import msgspec
import pytest

from backends.worker import Endpoint, RankCache, ServedModel, WorkerFacts
from policies.view import FleetView
from router.config.model import HealthConfig
from router.placement.fleet.fleet import Fleet
from router.placement.learning.decode_step_time import Output
from router.placement.load.fleet_load import ARRAYS_FROM, WorkerLoads
from router.placement.load.running import LoadReservation
from router.process.shared_memory.ledger import Ledger, make_table
from router.residency.residency_map import ResidencyMap
from router.residency.slot_groups import nothing_known

WORKERS, PROCESSES = ARRAYS_FROM, 3
FACTS = WorkerFacts(models=(ServedModel("m"),), caches={0: RankCache(16, 60, True)})


@pytest.fixture
def candidates():
    fleet = Fleet(HealthConfig(), ResidencyMap())
    for port in range(1, WORKERS + 1):
        fleet.add(Endpoint("http", "h", port), 0.0)
        fleet.probe_succeeded(f"h:{port}", FACTS, 0.0)
    return fleet.candidate_sets.of("m").ready


@pytest.fixture
def processes():
    table = make_table(PROCESSES)
    ledgers = [Ledger(table, PROCESSES, number) for number in range(PROCESSES)]
    yield [WorkerLoads(ledger) for ledger in ledgers]
    for ledger in ledgers:
        ledger.close()
    os.close(table)


def taught(loads, candidate, rng, now_s):
    load = loads.of(candidate)
    for _ in range(9):
        tokens = rng.randrange(100, 2_000)
        situation = load.situation(tokens, tokens + rng.randrange(900), now_s)
        loads.observe(load, situation, 0.01 + tokens * 2e-4 * rng.uniform(0.9, 1.1), now_s)


@pytest.mark.parametrize("seed", range(5))
def test_arrays_and_views_agree_on_the_load_of_all_processes(candidates, processes, seed):
    rng = random.Random(seed)
    now_s, open_ = 100.0, []
    for loads in processes:
        for candidate in candidates[: WORKERS // 2]:
            taught(loads, candidate, rng, now_s)
    for _ in range(600):
        now_s = now_s + rng.random()
        loads = rng.choice(processes)
        if open_ and rng.random() < 0.6:
            load, reservation = open_.pop(rng.randrange(len(open_)))
            if rng.random() < 0.5 and load.account.prefilled(reservation, now_s):
                load.account.progressed(reservation, rng.randrange(1, 90))
                open_.append((load, reservation))
            else:
                load.account.release(reservation, now_s)
            continue
        load = loads.of(rng.choice(candidates))
        tokens = rng.randrange(1, 900)
        shared = tuple(range(rng.randrange(4)))
        reservation = LoadReservation(tokens, tokens + 64, now_s, hashes=shared, block_tokens=16)
        load.reserve(reservation, now_s)
        open_.append((load, reservation))
    for loads in processes:
        rows = loads.rows(candidates)
        assert rows is not None
        arguments = 500, now_s, Output(200.0, 150.0), 3.0
        columns = loads.columns(rows, nothing_known(WORKERS), *arguments)
        found = FleetView(now_s, None, rows.roster, columns).workers
        wanted = loads.views(candidates, None, *arguments)
        for one, other in zip(found, wanted, strict=True):
            assert msgspec.structs.asdict(one) == {
                name: pytest.approx(value, rel=1e-9) if isinstance(value, float) else value
                for name, value in msgspec.structs.asdict(other).items()
            }
        assert len({view.running_requests for view in wanted}) > 1 and max(view.kv_wait_s for view in wanted) > 0.0
