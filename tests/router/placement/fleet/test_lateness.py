"""Probes that time out: which ones count, and which workers stay in use in spite of them."""

from dataclasses import replace

import pytest

from backends.worker import Endpoint, LoadReport, ServedModel
from router.config.model import HealthConfig
from router.placement.fleet import traffic
from router.placement.fleet.fleet import Fleet, WorkerState
from router.placement.fleet.lateness import LateVerdict, probe_late
from router.placement.fleet.roles import PREFILL

COUNTED, PROGRESS, NOBODY, NEEDED = LateVerdict
READY, UNHEALTHY = WorkerState.READY, WorkerState.UNHEALTHY
TIMEOUT_S = 2.0


def kept(its):
    """Return since when workers are kept in spite of their time-outs."""
    return [one.health.kept_since_s for one in its.fleet.endpoints if one.health.kept_since_s is not None]


class Workers:
    """A fleet of workers h:1, h:2 and so on, at a time that its tests move."""

    def __init__(self, residency, facts, count, connector=None, **settings):
        self.config = HealthConfig(**settings)
        self.fleet = Fleet(self.config, residency, connector=connector)
        self.facts = facts
        self.now_s = 0.0
        for port in range(1, count + 1):
            self.fleet.add(Endpoint("http", "h", port), 0.0)
            self.fleet.probe_succeeded(f"h:{port}", facts(), 0.0)

    def __getitem__(self, port):
        return self.fleet.get(f"h:{port}")

    def late(self, *ports, answer=()):
        """Let one probe of each of `ports` time out while those in `answer` answer theirs; return the verdicts."""
        began_s, self.now_s = self.now_s, self.now_s + TIMEOUT_S
        for port in answer:
            self.fleet.probe_succeeded(f"h:{port}", self[port].facts, self.now_s)
        return [probe_late(self.fleet, self.config, self[port], "late", began_s, self.now_s) for port in ports]

    def refuse(self, port):
        for _ in range(self.config.failure_threshold):
            self.fleet.probe_failed(f"h:{port}", "refused", self.now_s)

    @property
    def states(self):
        return [one.state for one in self.fleet.endpoints]


@pytest.fixture
def workers(shadow_residency, facts):
    return lambda count, **settings: Workers(shadow_residency, facts, count, **settings)


def test_a_worker_that_does_nothing_is_ejected_by_three_time_outs(workers):
    its = workers(2)
    assert [its.late(1, answer=[2]) for _ in range(3)] == [[COUNTED]] * 3
    assert its.states == [UNHEALTHY, READY]
    assert its[1].health.silent_since_s == 0.0
    assert "3 probes in a row failed: late" in its[1].reason


def test_progress_since_the_probe_began_excuses_it_and_those_before(workers):
    its = workers(2)
    for _ in range(5):
        its.late(1, answer=[2])
        its.late(1, answer=[2])
        its[1].evidence.progressed(its.now_s + 0.1)
        assert its.late(1, answer=[2]) == [PROGRESS]
    assert its.states == [READY, READY]
    its[1].evidence.progressed(its.now_s - 0.1)  # before the next probe begins
    assert its.late(1, answer=[2]) == [COUNTED]


@pytest.mark.parametrize("figure", ["generation_tokens", "prompt_tokens", "running", "kv_usage"])
def test_a_figure_of_its_metrics_that_moves_is_progress(workers, figure):
    its = workers(2)
    load = LoadReport(0, 1, 0, 0.5, generation_tokens=1, prompt_tokens=1)
    for number in range(6):
        its.fleet.load_reported("h:1", replace(load, **{figure: number}), its.now_s + 1.0)
        its.late(1, answer=[2])
    assert its[1].state is READY
    assert [its.late(1, answer=[2]) for _ in range(3)] == [[COUNTED]] * 3  # the figures stand still
    assert its[1].state is UNHEALTHY


def test_progress_excuses_no_refusal(workers):
    its = workers(2)
    for _ in range(3):
        its[1].evidence.progressed(its.now_s)
        its.fleet.probe_failed("h:1", "refused", its.now_s)
    assert its[1].state is UNHEALTHY
    assert its[1].health.silent_since_s is None


def test_one_refusal_among_time_outs_is_evidence(workers):
    its = workers(1)
    its.late(1)
    its.fleet.probe_failed("h:1", "refused", its.now_s)
    its.late(1)
    assert its[1].state is UNHEALTHY
    assert its[1].health.silent_since_s is None


def test_time_outs_of_all_workers_at_once_count_for_nobody(workers):
    its = workers(4)
    for _ in range(2):
        its.late(1, 2, 3, 4)  # the last answers may still be in the window
    for _ in range(9):
        assert its.late(1, 2, 3, 4) == [NOBODY] * 4
    assert its.states == [READY] * 4
    assert kept(its) == []


def test_a_refusal_elsewhere_shows_that_the_network_works(workers):
    its = workers(4)
    for _ in range(6):
        its[2].evidence.refused(its.now_s + 1.0)
        its.late(1)
    assert its[1].state is UNHEALTHY


@pytest.mark.parametrize(("count", "out"), [(1, 0), (2, 1), (3, 1), (4, 2), (5, 2), (8, 4)])
def test_time_outs_alone_leave_half_of_the_workers(workers, count, out):
    its = workers(count + 1)
    its.fleet.drain(f"h:{count + 1}")  # it answers, and takes no requests
    for _ in range(9):
        its.late(*range(1, count + 1), answer=[count + 1])
    assert its.states.count(UNHEALTHY) == out
    assert its.states.count(READY) == count - out
    assert len(kept(its)) == count - out


def test_refusals_eject_any_number(workers):
    its = workers(3)
    for port in (1, 2, 3):
        its.refuse(port)
    assert its.states == [UNHEALTHY] * 3


def test_workers_that_refuse_count_as_gone(workers):
    its = workers(4)
    its.refuse(1)
    its.refuse(2)
    for _ in range(9):
        verdicts = its.late(3, answer=[4])
    assert verdicts == [NEEDED] and its.states == [UNHEALTHY, UNHEALTHY, READY, READY]
    assert "stays in use because too few others are left" in its[3].reason


def test_a_kept_worker_is_avoided_while_another_answers(workers):
    its = workers(4)
    its.refuse(1)
    its.refuse(2)
    for _ in range(3):
        its.late(3, answer=[4])
    assert its[3].health.avoid_until_s > its.now_s >= its[4].health.avoid_until_s
    assert its.fleet.pressure_until_s >= its[3].health.avoid_until_s


def test_a_kept_worker_is_let_go_once_enough_others_are_back(workers):
    its = workers(4)
    its.refuse(1)
    its.refuse(2)
    for _ in range(3):
        its.late(3, answer=[4])
    assert its.late(3, answer=[1, 2, 4]) == [COUNTED]
    assert its[3].state is UNHEALTHY and kept(its) == []


@pytest.mark.parametrize("how", ["answer", "progress"])
def test_a_sign_of_life_ends_the_panic(workers, how):
    its = workers(1)
    its.fleet.add(Endpoint("http", "h", 2), 0.0)
    for _ in range(4):
        its[2].evidence.refused(its.now_s)
        its.late(1)
    assert min(kept(its)) == 6.0
    if how == "answer":
        its.fleet.probe_succeeded("h:1", its.facts(), its.now_s)
    else:
        its[1].evidence.progressed(its.now_s)
        its.late(1)
    assert kept(its) == [] and its[1].state is READY


def test_each_model_is_counted_by_itself(workers):
    its = workers(4)
    for port in (3, 4):
        its.fleet.probe_succeeded(f"h:{port}", replace(its.facts(), models=(ServedModel("other"),)), 0.0)
    its.refuse(1)
    for _ in range(3):
        its.late(2, 3, answer=[4])
    assert its.states == [UNHEALTHY, READY, UNHEALTHY, READY]
    assert kept(its)


def test_a_worker_of_two_models_is_kept_for_either(workers):
    its = workers(4)
    both = (ServedModel("m"), ServedModel("rare"))
    its.fleet.probe_succeeded("h:1", replace(its.facts(), models=both), 0.0)
    for _ in range(4):
        its.late(1, answer=[2, 3, 4])
    assert its[1].state is READY


def test_prefill_workers_are_counted_by_themselves(workers):
    its = workers(3, connector="nixl")
    for port in (1, 2):
        its.fleet.describe(f"h:{port}", {}, 1.0, None, PREFILL)
    its.refuse(1)
    assert its.fleet.needed(its[2]) and its.fleet.needed(its[3])


@pytest.mark.parametrize("state", ["starting", "unhealthy"])
def test_a_worker_out_of_use_only_learns_the_reason(workers, state):
    its = workers(1)
    if state == "starting":
        its.fleet.add(Endpoint("http", "h", 2), 0.0)
    else:
        its = workers(2)
        its.refuse(2)
    its[2].evidence.progressed(99.0)
    assert its.late(2, answer=[1]) == [COUNTED]
    assert "late" in its[2].reason and its[2].state.value == state and its[2].health.probed


def test_requests_without_an_event_in_time_eject_a_worker_that_does_nothing_else(workers):
    its = workers(2)
    for number in range(3):
        traffic.late(its.fleet, its[1], "no first event in time", float(number), number + 1.0, trial=False)
    assert its.states == [UNHEALTHY, READY]
    for number in range(9):  # the other one is needed
        traffic.late(its.fleet, its[2], "no first event in time", float(number), number + 1.0, trial=False)
    assert its[2].state is READY and its[2].health.avoid_until_s > 9.0


def test_requests_without_an_event_in_time_do_not_count_while_the_worker_works(workers):
    its = workers(2)
    for number in range(9):
        its[1].evidence.progressed(number + 0.5)
        traffic.late(its.fleet, its[1], "no first event in time", float(number), number + 1.0, trial=False)
    assert its[1].state is READY


def test_a_late_trial_of_a_worker_that_is_needed_is_given_up(workers):
    its = workers(1)
    its.refuse(1)
    its.fleet.probe_succeeded("h:1", its.facts(), 1.0)
    its[1].health.trial_running = True
    traffic.late(its.fleet, its[1], "no first event in time", 1.0, 2.0, trial=True)
    assert its[1].state is WorkerState.HALF_OPEN and not its[1].health.trial_running


def test_a_silent_worker_is_dead_until_it_gives_a_sign(workers):
    its = workers(2)
    assert not its.fleet.dead(its[1], its.now_s)
    for _ in range(3):
        its.late(1, answer=[2])
    assert its.fleet.dead(its[1], its.now_s)
    its.fleet.load_reported("h:1", LoadReport(0, 1, 0, 0.5), its.now_s)
    assert its.fleet.lost(its[1]) and not its.fleet.dead(its[1], its.now_s)


def test_a_worker_whose_server_answered_between_the_time_outs_may_still_answer(workers):
    its = workers(2)
    for _ in range(3):
        its.fleet.load_reported("h:1", LoadReport(0, 1, 0, 0.5), its.now_s + 1.0)
        its.late(1, answer=[2])
    assert its.fleet.lost(its[1]) and not its.fleet.dead(its[1], its.now_s)


def test_a_worker_that_refused_is_dead(workers):
    its = workers(2)
    its[1].evidence.progressed(99.0)
    its.refuse(1)
    assert its.fleet.dead(its[1], its.now_s)
