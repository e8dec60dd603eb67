import pytest

from router.config.model import HealthConfig
from router.placement.fleet.health import AVOID_S, Health, WorkerState


@pytest.fixture
def ready():
    health = Health(HealthConfig())
    health.probe_succeeded(0.0)
    assert health.condition is WorkerState.READY
    return health


def test_starting_until_a_probe_succeeds():
    health = Health(HealthConfig())
    for second in range(9):
        health.probe_failed("connection refused", second)
        assert health.condition is WorkerState.STARTING
    assert "connection refused" in health.reason
    health.probe_succeeded(10.0)
    assert health.condition is WorkerState.READY


def test_probe_failures_eject_in_a_row_only(ready):
    for second, good in enumerate([False, False, True, False, False]):
        ready.probe_succeeded(second) if good else ready.probe_failed("late", second)
    assert ready.condition is WorkerState.READY
    ready.probe_failed("late", 5.0)
    assert ready.condition is WorkerState.UNHEALTHY
    assert "3 probes in a row failed: late" in ready.reason


def test_a_worker_found_by_a_probe_gets_its_trial_at_once(ready):
    for second in range(3):
        ready.probe_failed("refused", second)
    ready.probe_succeeded(60.0)
    assert ready.condition is WorkerState.HALF_OPEN
    ready.traffic_succeeded(trial=True, complete=False)
    assert ready.condition is WorkerState.READY


def test_traffic_failures_eject_in_a_row_only(ready):
    for good in [False, False, True, False, False]:
        ready.traffic_succeeded(trial=False, complete=True) if good else ready.traffic_failed("reset", 1.0, trial=False)
    assert ready.condition is WorkerState.READY
    ready.traffic_failed("reset", 1.0, trial=False)
    assert ready.condition is WorkerState.UNHEALTHY


def test_streams_that_start_and_break_off_eject_too(ready):
    for _ in range(3):
        ready.traffic_succeeded(trial=False, complete=False)
        ready.traffic_failed("died in mid-stream", 1.0, trial=False)
    assert ready.condition is WorkerState.UNHEALTHY


def test_ejected_by_traffic_waits_before_its_trial(ready):
    for _ in range(3):
        ready.traffic_failed("reset", 10.0, trial=False)
    ready.probe_succeeded(10.5)
    assert ready.condition is WorkerState.UNHEALTHY
    ready.probe_succeeded(11.0)
    assert ready.condition is WorkerState.HALF_OPEN


def test_only_the_trial_counts_while_half_open_and_failed_trials_wait_longer(ready):
    for _ in range(3):
        ready.traffic_failed("reset", 0.0, trial=False)
    now_s = 0.0
    waits = []
    for _ in range(9):
        began = now_s
        while ready.condition is WorkerState.UNHEALTHY:
            now_s += 0.5
            ready.probe_succeeded(now_s)
        waits.append(now_s - began)
        ready.traffic_failed("an old one", now_s, trial=False)
        ready.traffic_succeeded(trial=False, complete=True)
        assert ready.condition is WorkerState.HALF_OPEN
        ready.traffic_failed("the trial", now_s, trial=True)
        assert ready.condition is WorkerState.UNHEALTHY
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    ready.probe_failed("gone", now_s)  # it went down, so earlier trials no longer count
    ready.probe_succeeded(now_s + 0.5)
    assert ready.condition is WorkerState.HALF_OPEN


def test_half_open_is_left_by_failing_probes_too(ready):
    for second in range(3):
        ready.probe_failed("refused", second)
    ready.probe_succeeded(4.0)
    for second in range(5, 8):
        ready.probe_failed("refused", second)
    assert ready.condition is WorkerState.UNHEALTHY


def test_pressure_never_ejects(ready):
    for _ in range(99):
        ready.avoid(1.0, None)
    assert ready.condition is WorkerState.READY
    assert ready.avoid_until_s == 1.0 + AVOID_S
    ready.avoid(1.0, 5.0)
    assert ready.refused_until_s == 6.0
    ready.avoid(1.0, 3_600.0)
    assert ready.refused_until_s == 31.0
