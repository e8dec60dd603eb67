from dataclasses import replace

import pytest

from backends.worker import Endpoint, LoadReport
from router.config.model import HealthConfig
from router.placement.fleet.evidence import WorkerEvidence
from router.placement.fleet.fleet import EVIDENCE_S, Fleet

NEVER = float("-inf")
BUSY = LoadReport(0, 2, 1, 0.25, 100, 60, generation_tokens=500, prompt_tokens=900)


@pytest.fixture
def fleet(shadow_residency):
    return Fleet(HealthConfig(), shadow_residency)


def test_times_never_go_back():
    evidence = WorkerEvidence()
    for record in (evidence.generated, evidence.answered, evidence.refused, evidence.reset):
        record(5.0)
        record(3.0)
    assert (evidence.progress_s, evidence.generation_s, evidence.answered_s) == (5.0, 5.0, 5.0)
    assert (evidence.refused_s, evidence.reset_s) == (5.0, 5.0)


@pytest.mark.parametrize("figure", ["generation_tokens", "prompt_tokens"])
def test_a_token_counter_that_moves_is_generation(figure):
    evidence = WorkerEvidence()
    evidence.reported(BUSY, 1.0)
    assert (evidence.generation_s, evidence.progress_s, evidence.answered_s) == (NEVER, NEVER, 1.0)
    assert evidence.counts_tokens
    evidence.reported(replace(BUSY, **{figure: 1_000}), 2.0)
    assert (evidence.generation_s, evidence.progress_s) == (2.0, 2.0)


@pytest.mark.parametrize("figure", ["running", "waiting", "kv_usage", "prefix_queries", "preemptions"])
def test_another_figure_that_moves_is_progress(figure):
    evidence = WorkerEvidence()
    evidence.reported(BUSY, 1.0)
    evidence.reported(replace(BUSY, **{figure: 7}), 2.0)
    assert (evidence.generation_s, evidence.progress_s) == (NEVER, 2.0)


def test_figures_that_stand_still_are_an_answer_and_no_progress():
    evidence = WorkerEvidence()
    for second in range(9):
        evidence.reported(BUSY, float(second))
    assert (evidence.progress_s, evidence.answered_s) == (NEVER, 8.0)


def test_each_rank_is_compared_with_itself():
    evidence = WorkerEvidence()
    for second in range(4):
        evidence.reported(BUSY, float(second))
        evidence.reported(replace(BUSY, rank=1, running=9), float(second))
    assert evidence.progress_s == NEVER


def test_a_worker_without_counters_shows_no_generation():
    evidence = WorkerEvidence()
    evidence.reported(LoadReport(0, 1, 0, 0.1), 1.0)
    evidence.reported(LoadReport(0, 2, 0, 0.1), 2.0)
    assert (evidence.counts_tokens, evidence.generation_s, evidence.progress_s) == (False, NEVER, 2.0)


@pytest.mark.parametrize("sign", ["progressed", "generated", "answered"])
def test_a_sign_of_life_after_a_refusal_ends_it(sign):
    evidence = WorkerEvidence()
    getattr(evidence, sign)(1.0)
    evidence.refused(2.0)
    assert evidence.refuses
    getattr(evidence, sign)(3.0)
    assert not evidence.refuses


def test_the_fleet_asks_for_the_latest_reads_once_for_all(fleet):
    first, second = (fleet.add(Endpoint("http", "h", port), 0.0) for port in (1, 2))
    asked = []

    def gather():
        asked.append(None)
        first.evidence.progressed(8.0)
        second.evidence.progressed(9.0)

    fleet.on_evidence.append(gather)
    assert [fleet.evidence(one, 10.0).progress_s for one in (first, second)] == [8.0, 9.0]
    fleet.evidence(first, 10.0 + EVIDENCE_S / 2)
    assert len(asked) == 1
    fleet.evidence(first, 10.0 + 2 * EVIDENCE_S)
    assert len(asked) == 2


def test_probes_and_load_reports_are_noted(fleet, facts):
    joined = fleet.add(Endpoint("http", "h", 1), 0.0)
    fleet.probe_succeeded("h:1", facts(), 1.0)
    assert joined.evidence.answered_s == 1.0
    fleet.load_reported("h:1", BUSY, 2.0)
    fleet.load_reported("h:1", replace(BUSY, generation_tokens=501), 3.0)
    assert joined.evidence.generation_s == 3.0
