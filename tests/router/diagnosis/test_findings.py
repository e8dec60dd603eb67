"""Each finding on a fleet that has that trouble and no other, and none on healthy fleets."""

from dataclasses import replace

import pytest

from backends.engine.profile import load_profile
from loadtest.sim.worker import WorkerSpec
from policies.spec import PolicySpec
from router.config.model import DiagnosisConfig
from router.diagnosis.diagnose import diagnose
from router.diagnosis.finding import Pressure
from router.diagnosis.in_force import InForce
from router.diagnosis.measured import Moved
from tests.support.simulated_conversations import Shape, conversations

pytestmark = pytest.mark.source_only
"""The rig puts its own functions in place of the dispatcher's, which compiled classes do not allow."""

PROFILE = load_profile("llama-3.1-8b-h100")
CHATS = Shape(
    sessions=60,
    starts_per_s=1.5,
    prefixes=60,
    prefix_tokens=(500, 3_000),
    turns=(3, 6),
    pause_s=2.0,
    answer_tokens=(40, 200),
)
ROUND_ROBIN = PolicySpec("round_robin")


def uploads(number, per_s, seed=1):
    shape = Shape(number, per_s, number, (14_000, 16_000), turns=(1, 1), answer_tokens=(10, 20))
    return [replace(one, id=f"upload-{one.id}") for one in conversations(shape, seed)]


def pressures(diagnosis):
    return [finding.check for finding in diagnosis.findings]


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [0, 1])
def test_a_healthy_fleet_has_no_finding_in_ten_minutes(simulated, seed):
    shape = replace(CHATS, sessions=300, starts_per_s=0.5, prefixes=12)
    fleet = simulated((WorkerSpec(PROFILE),) * 4, conversations(shape, seed))
    assert fleet.time.now_s > 500
    assert pressures(fleet.diagnosis) == []
    assert {one.check for one in fleet.diagnosis.unsure} <= {Pressure.PHASE_INTERFERENCE}
    assert fleet.diagnosis.requests > 1_000


def test_long_prompts_with_time_to_spare_are_no_finding(simulated):
    fleet = simulated((WorkerSpec(PROFILE),) * 4, uploads(80, 1.0))
    assert pressures(fleet.diagnosis) == []


def test_too_many_long_prompts_are_prefill_queueing(simulated):
    shape = Shape(120, 4.0, 120, (12_000, 30_000), turns=(1, 1), answer_tokens=(1, 3))
    fleet = simulated((WorkerSpec(PROFILE),) * 2, conversations(shape, 1))
    (finding,) = fleet.diagnosis.findings
    assert finding.check is Pressure.PREFILL_QUEUEING
    by_length, lengths = finding.evidence
    assert [row[0] for row in by_length.rows] == ["8,193 to 16,384", "16,385 to 32,768"]
    ttft_s, wait_s = by_length.rows[1][4:]
    assert ttft_s > wait_s > 0.5 * ttft_s
    assert sum(row[1] for row in lengths.rows) == 120


def test_too_many_streams_a_worker_are_decode_scheduling(simulated):
    shape = Shape(150, 8.0, 1, (1_500, 1_500), turns=(1, 1), answer_tokens=(150, 250))
    fleet = simulated((WorkerSpec(PROFILE, speed=0.12),) * 2, conversations(shape, 0))
    (finding,) = fleet.diagnosis.findings
    assert finding.check is Pressure.DECODE_SCHEDULING
    for _, p50, p95, p99, beside, running in finding.evidence[0].rows:
        assert p50 < p95 < p99 and p95 > 0.1
        assert beside is None and running > 20


def test_few_streams_a_worker_are_no_finding(simulated):
    shape = Shape(150, 1.0, 1, (1_500, 1_500), turns=(1, 1), answer_tokens=(150, 250))
    fleet = simulated((WorkerSpec(PROFILE, speed=0.12),) * 2, conversations(shape, 0))
    assert pressures(fleet.diagnosis) == []


def test_a_small_cache_is_kv_capacity(simulated):
    shape = Shape(60, 0.7, 60, (2_000, 3_000), turns=(4, 5), pause_s=6.0, answer_tokens=(100, 250))
    fleet = simulated((WorkerSpec(PROFILE, num_blocks=700),) * 2, conversations(shape, 0))
    (finding,) = fleet.diagnosis.findings
    assert finding.check is Pressure.KV_CAPACITY
    for _, kv_use, preemptions, evicted, utilisation in finding.evidence[0].rows:
        assert 0 < kv_use < 1 and preemptions >= 0 and evicted > 0.3 and utilisation < 0.2
    assert pressures(simulated((WorkerSpec(PROFILE),) * 2, conversations(shape, 0)).diagnosis) == []


def test_uploads_beside_chats_are_phase_interference(simulated):
    shape = Shape(40, 1.0, 4, (500, 1_000), turns=(3, 4), pause_s=1.0, answer_tokens=(200, 300))
    load = [*conversations(shape, 0), *uploads(30, 0.4)]
    fleet = simulated((WorkerSpec(PROFILE),) * 2, load, PolicySpec("marginal_cost", hold=False, lanes=False))
    (finding,) = fleet.diagnosis.findings
    assert finding.check is Pressure.PHASE_INTERFERENCE
    alone, beside = finding.evidence[0].rows
    assert beside[-1] > 0.1 > alone[-1]
    assert pressures(simulated((WorkerSpec(PROFILE),) * 2, load[:40]).diagnosis) == []


def test_sessions_that_change_workers_are_prefix_reuse(simulated):
    fleet = simulated((WorkerSpec(PROFILE),) * 4, conversations(CHATS, 0), ROUND_ROBIN)
    (finding,) = fleet.diagnosis.findings
    assert finding.check is Pressure.PREFIX_REUSE
    turns, moves = finding.evidence
    assert [row[0] for row in turns.rows] == ["1", "2", "3", "4", "5", "6"]
    assert all(row[3] < 0.7 for row in turns.rows[1:3])
    assert dict(map(tuple, moves.rows))["elsewhere: the policy preferred another worker to the cached prompt"] > 50
    assert pressures(simulated((WorkerSpec(PROFILE),) * 4, conversations(CHATS, 0)).diagnosis) == []


def test_without_kv_events_and_views_moves_are_not_known(simulated):
    fleet = simulated((WorkerSpec(PROFILE),) * 2, conversations(CHATS, 0)[:5], ROUND_ROBIN, events=False)
    assert set(fleet.measured.moved) <= {Moved.COST, Moved.CACHE_LOST, Moved.NOT_KNOWN}
    assert sum(fleet.measured.moved.values()) > 5


def test_an_idle_gateway_is_unsure_of_all_but_roles(simulated):
    diagnosis = simulated((WorkerSpec(PROFILE),), []).diagnosis
    assert pressures(diagnosis) == [] and diagnosis.requests == 0
    assert {one.check for one in diagnosis.unsure} == set(Pressure) - {Pressure.WORKER_ROLES}


def test_thresholds_decide(simulated):
    sessions = conversations(CHATS, 0)
    fleet = simulated((WorkerSpec(PROFILE),) * 4, sessions, gap_s=0.005)
    assert pressures(fleet.diagnosis) == [Pressure.DECODE_SCHEDULING]
    cautious = DiagnosisConfig(gap_s=1.0)
    assert pressures(diagnose(fleet.measured, cautious, InForce())) == []
