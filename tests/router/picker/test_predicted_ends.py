"""When load is released without an answer, on a clock of the test's own."""

import pytest

from backends.worker import LoadReport
from router.picker import predicted_ends
from router.picker.predicted_ends import ARRIVES_S, PredictedEnds

LONGEST_S = 100.0


class Clock:
    def __init__(self):
        self.now_s = 0.0
        self._timers = []

    def time(self):
        return self.now_s

    def call_later(self, after_s, call):
        timer = Timer(self.now_s + after_s, call)
        self._timers.append(timer)
        return timer

    def pass_to(self, now_s):
        while due := sorted((one for one in self._timers if one.at_s <= now_s), key=lambda one: one.at_s):
            self._timers.remove(due[0])
            self.now_s = due[0].at_s
            if not due[0].over:
                due[0].call()
        self.now_s = now_s


class Timer:
    def __init__(self, at_s, call):
        self.at_s, self.call, self.over = at_s, call, False

    def cancel(self):
        self.over = True


class Worker:
    live = True


class FleetOfNone:
    def __init__(self):
        self.on_load = []


class Kept:
    def __init__(self, clock):
        self._clock = clock
        self.released_s = None

    def release(self):
        self.released_s = self.released_s if self.released_s is not None else self._clock.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def ends(clock):
    return PredictedEnds(None, FleetOfNone(), clock, LONGEST_S)


def keep(ends, clock, worker, *after_s):
    kept = [Kept(clock) for _ in after_s]
    for one, seconds in zip(kept, after_s, strict=True):
        ends.keep(one, worker, seconds)
    return kept


def report(ends, clock, worker, running, waiting=0):
    ends.reported(worker, LoadReport(0, running, waiting, 0.0), clock.now_s)


def test_without_reports_the_prediction_decides(ends, clock):
    late, early = keep(ends, clock, Worker(), 5.0, 1.0)
    clock.pass_to(4.0)
    assert early.released_s == pytest.approx(1.0, abs=0.15) and late.released_s is None
    clock.pass_to(6.0)
    assert late.released_s == pytest.approx(5.0, abs=0.15) and not len(ends)


def test_a_report_with_fewer_requests_ends_those_that_are_due_first(ends, clock):
    worker = Worker()
    a, b, c = keep(ends, clock, worker, 30.0, 10.0, 20.0)
    clock.pass_to(ARRIVES_S)
    report(ends, clock, worker, 1, waiting=1)
    assert (a.released_s, b.released_s, c.released_s) == (None, ARRIVES_S, None)
    report(ends, clock, worker, 0)
    assert a.released_s == c.released_s == ARRIVES_S


def test_a_request_on_its_way_is_not_missed_in_a_report(ends, clock):
    worker = Worker()
    (young,) = keep(ends, clock, worker, 30.0)
    clock.pass_to(ARRIVES_S - 0.1)
    report(ends, clock, worker, 0)
    assert young.released_s is None


def test_an_overdue_request_ends_with_the_first_report_that_does_not_count_it(ends, clock):
    worker = Worker()
    report(ends, clock, worker, 0)
    short, long = keep(ends, clock, worker, 0.7, 30.0)
    clock.pass_to(0.6)
    report(ends, clock, worker, 2)
    clock.pass_to(1.6)
    assert short.released_s is None, "the last report, from before its end, counts it"
    report(ends, clock, worker, 1)
    assert (short.released_s, long.released_s) == (1.6, None)


def test_a_request_that_has_just_been_placed_does_not_end_an_overdue_one(ends, clock):
    worker = Worker()
    (overdue,) = keep(ends, clock, worker, 0.7)
    report(ends, clock, worker, 1)
    clock.pass_to(1.5)
    keep(ends, clock, worker, 30.0)
    report(ends, clock, worker, 1)
    assert overdue.released_s is None, "the other one may still be on its way"


def test_a_worker_that_reports_them_keeps_overdue_requests_up_to_the_longest_time(ends, clock):
    worker = Worker()
    (kept,) = keep(ends, clock, worker, 1.0)
    for second in range(1, int(LONGEST_S)):
        clock.pass_to(second)
        report(ends, clock, worker, 1)
    assert kept.released_s is None
    clock.pass_to(LONGEST_S + 5)
    assert kept.released_s == pytest.approx(LONGEST_S, abs=5.0)


def test_a_worker_that_falls_silent_is_not_believed(ends, clock):
    worker = Worker()
    (kept,) = keep(ends, clock, worker, 1.0)
    report(ends, clock, worker, 1)
    clock.pass_to(10.0)
    assert 1.0 < kept.released_s < 8.0


def test_a_worker_that_has_left_releases_what_is_due(ends, clock):
    worker = Worker()
    (kept,) = keep(ends, clock, worker, 1.0)
    report(ends, clock, worker, 1)
    worker.live = False
    clock.pass_to(2.0)
    assert kept.released_s is not None


def test_what_is_kept_is_bounded(ends, clock, monkeypatch):
    monkeypatch.setattr(predicted_ends, "MOST", 2)
    monkeypatch.setattr(predicted_ends, "_SLACK", 0)
    a, b, c = keep(ends, clock, Worker(), 3.0, 1.0, 2.0)
    assert (a.released_s, b.released_s, c.released_s) == (None, 0.0, None)
    for _ in range(50):
        (one,) = keep(ends, clock, worker := Worker(), 50.0)
        clock.pass_to(clock.now_s + ARRIVES_S)
        report(ends, clock, worker, 0)
    assert len(ends._due) <= 5 and one.released_s is not None


def test_closing_releases_everything(ends, clock):
    kept = keep(ends, clock, Worker(), 3.0, 1.0)
    ends.close()
    assert [one.released_s for one in kept] == [0.0, 0.0] and not len(ends)
