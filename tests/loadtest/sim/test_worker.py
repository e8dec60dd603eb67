from array import array

import pytest

from backends.engine.engine import FinishReason, RequestRefused
from loadtest.sim.virtual_time import VirtualTime
from loadtest.sim.worker import EngineWorker


@pytest.fixture
def time():
    return VirtualTime()


@pytest.fixture
def worker(time, spec):
    return EngineWorker(time, "w", spec, seed=0, response_s=0.1)


def test_tokens_arrive_after_their_step_and_the_way_back(time, worker):
    seen = []
    state = worker.submit(
        "r", array("I", range(5)), array("I", [7, 8, 9]), lambda n, end: seen.append((time.now_s, n, end))
    )
    time.run()
    # 10 + 5 ms of prefill, then two decode steps of 2 ms; 100 ms on the way.
    assert [(round(at_s, 6), tokens, end) for at_s, tokens, end in seen] == [
        (0.115, 1, None),
        (0.117, 2, None),
        (0.119, 3, FinishReason.LENGTH),
    ]
    assert list(state.tokens) == [0, 1, 2, 3, 4, 7, 8, 9], "it answered what it was given to answer"


def test_cache_events_leave_at_the_end_of_their_step(time, worker):
    seen = []
    worker.on_events.append(lambda events: seen.append((round(time.now_s, 6), [len(event.hashes) for event in events])))
    worker.submit("r", array("I", range(9)), array("I", [7]), lambda tokens, end: None)
    time.run()
    assert seen == [(0.019, [2])]


def test_nothing_is_heard_of_an_aborted_request(time, worker):
    seen = []
    worker.submit("r", array("I", range(5)), array("I", [7] * 20), lambda tokens, end: seen.append(tokens))
    time.at(0.020, worker.abort, "r")
    time.run()
    assert seen == [], "not even of the token that was on its way"
    assert worker.statistics()["finished_abort"] == 1
    assert worker.load().running == 0


def test_a_request_that_can_never_run_is_refused(worker):
    with pytest.raises(RequestRefused):
        worker.submit("r", array("I", range(100)), array("I", [7]), lambda tokens, end: None)


def test_load_counts_what_runs_and_waits(time, worker):
    for name in "ab":
        worker.submit(name, array("I", range(20)), array("I", [7] * 4), lambda tokens, end: None)
    load = worker.load()
    assert (load.running, load.waiting) == (1, 1), "the second came while the first one's step was under way"
    assert load.kv_usage == pytest.approx(5 / 8)
