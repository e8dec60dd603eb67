from types import SimpleNamespace

import pytest

from backends.worker import LoadReport
from policies.view import Residency, WorkerView
from router.placement.fleet.health import WorkerState
from router.placement.fleet.scaling import WINDOW_S, Attainment, needed


def role(count, *, kv=0, busy=0.0, wait_s=0.0, reported=None, states=WorkerState.READY, role="mixed", first=0):
    names = [f"{role}:{first + number}" for number in range(count)]
    load = None if reported is None else LoadReport(0, 1, 0, reported, None, None)
    workers = [
        SimpleNamespace(role=role, state=states, candidates=(SimpleNamespace(id=name, load=load),)) for name in names
    ]
    views = [WorkerView(name, Residency.EXACT, 0, 1, 0, 1, kv, 1_000, wait_s, 0.1, busy, True) for name in names]
    return workers, views


def found(*groups, attained=None):
    workers, views = ([each for group in groups for each in group[part]] for part in (0, 1))
    return needed(workers, views, attained or {})


@pytest.mark.parametrize(
    ("measures", "desired"),
    [
        ({}, 1),
        ({"kv": 800}, 4),
        ({"kv": 600}, 3),
        ({"kv": 900}, 5),
        ({"reported": 0.9, "kv": 100}, 5),
        ({"busy": 0.7}, 4),
        ({"busy": 0.95}, 6),
        ({"wait_s": 1.2}, 5),
        ({"wait_s": 60.0}, 8),
        ({"busy": 0.35, "kv": 800}, 4),
        ({"kv": 801}, 4),
    ],
)
def test_the_largest_ratio_to_a_target_counts_and_at_most_doubles(measures, desired):
    assert found(role(4, **measures))["mixed"].desired == desired


def test_missed_service_levels_count_while_there_is_load_and_not_without():
    assert found(role(4, busy=0.5), attained={"mixed": 0.6})["mixed"].desired == 7
    assert found(role(4, busy=0.5), attained={"mixed": 0.0})["mixed"].desired == 8
    assert found(role(4, busy=0.1), attained={"mixed": 0.6})["mixed"].desired == 1
    assert found(role(4, busy=0.5), attained={"mixed": None})["mixed"].desired == 3


def test_roles_are_counted_apart_and_workers_in_maintenance_not_at_all():
    drained = role(3, kv=999, states=WorkerState.DRAINING, first=10)
    both = found(role(2, kv=800), drained, role(2, busy=0.95, role="prefill"))
    assert {name: (each.ready, each.desired) for name, each in both.items()} == {"mixed": (2, 2), "prefill": (2, 3)}


def test_workers_that_are_not_ready_are_not_measured():
    half = found(role(2, kv=800), role(2, kv=0, states=WorkerState.UNHEALTHY, first=10))["mixed"]
    assert (half.ready, half.kv_occupancy, half.desired) == (2, 0.8, 2)
    none = found(role(3, states=WorkerState.STARTING))["mixed"]
    assert (none.ready, none.desired) == (0, 3)


def test_attainment_is_that_of_about_a_minute():
    attainment = Attainment()
    for number in range(4):
        attainment.judged("mixed", True, number * 0.001)
    assert attainment.share("mixed", 0.01) is None, "too few"
    for number in range(20):
        attainment.judged("mixed", number % 2 == 0, 0.01)
    assert attainment.share("mixed", 0.01) == pytest.approx(14 / 24, abs=0.01)
    for _ in range(40):
        attainment.judged("mixed", False, 3 * WINDOW_S)
    assert attainment.statistics(3 * WINDOW_S)["mixed"] < 0.05
    assert attainment.share("mixed", 20 * WINDOW_S) is None
    assert attainment.share("unheard", 0.0) is None
