import pytest

from loadtest.load.seen import Kind, Seen
from loadtest.soak.faults import Fault, FaultLog, Window
from loadtest.soak.judgement import needs_attempts, unexplained

WORKERS = ("a:1", "b:2")


def log(*windows):
    return FaultLog([Window(*window) for window in windows])


def seen(kind, code="", worker="a:1", began_s=10.0, ended_s=12.0):
    return Seen(began_s, kind, ended_s=ended_s, code=code, worker=worker)


DIED = seen(Kind.ERROR_EVENT, "worker_died_in_stream")


@pytest.mark.parametrize("kind", [Kind.COMPLETE, Kind.LEFT])
def test_complete_and_abandoned_answers_need_no_fault(kind):
    assert unexplained(seen(kind), [], log(), WORKERS) is None


@pytest.mark.parametrize("kind", [Kind.BROKEN, Kind.UNANSWERED])
def test_errors_without_a_matching_fault_are_unexplained(kind):
    killed = log((Fault.KILL, "a:1", 0.0))
    assert unexplained(seen(kind), [], killed, WORKERS) is not None


def test_a_broken_answer_needs_a_fault_that_breaks_answers_on_its_worker_at_its_time():
    assert unexplained(DIED, [], log((Fault.KILL, "a:1", 11.0)), WORKERS) is None
    assert unexplained(DIED, [], log((Fault.KILL, "a:1", 5.0, 10.5)), WORKERS) is None
    for other in ((Fault.KILL, "b:2", 11.0), (Fault.KILL, "a:1", 5.0, 9.0), (Fault.KILL, "a:1", 13.0)):
        assert "a:1 had none of kill" in unexplained(DIED, [], log(other), WORKERS)
    for harmless in (Fault.PAUSE, Fault.DRAIN, Fault.LOST_EVENTS):
        assert unexplained(DIED, [], log((harmless, "a:1", 11.0)), WORKERS) is not None


def test_a_stall_excuses_a_stalled_stream_only():
    paused = log((Fault.PAUSE, "a:1", 11.0))
    assert unexplained(seen(Kind.ERROR_EVENT, "stream_idle_timeout"), [], paused, WORKERS) is None
    assert unexplained(seen(Kind.CUT), [], paused, WORKERS) is None
    assert unexplained(DIED, [], paused, WORKERS) is not None


def test_an_answer_behind_comments_is_its_last_attempts():
    told = seen(Kind.ERROR_EVENT, "worker_died_in_stream", worker="")
    attempts = [{"worker": "b:2"}, {"worker": "a:1"}]
    assert needs_attempts(told) and not needs_attempts(DIED)
    assert unexplained(told, attempts, log((Fault.KILL, "b:2", 11.0)), WORKERS) is None
    assert unexplained(told, attempts, log((Fault.KILL, "a:1", 11.0)), WORKERS) is not None


def test_an_error_before_the_answer_is_excused_only_if_nobody_who_was_tried_was_well():
    refused = seen(Kind.REFUSED, "worker_failed", worker="")
    both = log((Fault.KILL, "a:1", 11.0), (Fault.PAUSE, "b:2", 11.0))
    tried = [{"worker": "a:1"}, {"worker": "b:2"}]
    assert unexplained(refused, tried, both, WORKERS) is None
    assert "b:2 failed it" in unexplained(refused, tried, log((Fault.KILL, "a:1", 11.0)), WORKERS)
    none = seen(Kind.REFUSED, "no_worker_available", worker="")
    assert unexplained(none, [], both, WORKERS) is None
    assert "b:2 could have taken it" in unexplained(none, [], log((Fault.KILL, "a:1", 11.0)), WORKERS)


def test_an_error_without_a_documented_code_has_no_excuse():
    killed = log((Fault.KILL, "a:1", 0.0), (Fault.KILL, "b:2", 0.0))
    assert unexplained(seen(Kind.REFUSED, "internal_error"), [], killed, WORKERS) is not None


def test_a_request_whose_workers_all_died_is_excused_only_if_faults_killed_them():
    refused = seen(Kind.REFUSED, "request_crashes_workers", worker="")
    tried = [{"worker": "b:2"}, {"worker": "a:1"}]
    assert needs_attempts(refused)
    assert unexplained(refused, tried, log((Fault.KILL, "a:1", 11.0), (Fault.KILL, "b:2", 11.5)), WORKERS) is None
    paused = log((Fault.KILL, "a:1", 11.0), (Fault.PAUSE, "b:2", 11.0))
    assert "b:2 failed it" in unexplained(refused, tried, paused, WORKERS)
