from types import SimpleNamespace

import msgspec
import pytest

from backends.engine.profile import load_profile
from backends.worker import ServedModel
from loadtest.sim.worker import WorkerSpec
from policies.wrappers.prefill_lanes import STREAM_WEIGHT
from router.config.model import DiagnosisConfig
from router.diagnosis.checks import worker_roles
from router.diagnosis.in_force import InForce
from router.diagnosis.measured import Measured, WorkerMeasured, WorkMeasured, over_processes
from router.diagnosis.measurements import Measurements
from router.diagnosis.split import Split
from router.diagnosis.split_plan import PoolMember, members, plans
from router.placement.decision_log.decisions import HandoverLeg
from router.placement.fleet.health import WorkerState
from router.placement.handover.links import LinkSpeed
from router.placement.learning.speed import Speed, attention
from tests.support.simulated_conversations import Shape, conversations

LINK = LinkSpeed(1e-5, 0.01)
WORK = WorkMeasured(
    prefills=600,
    timed=300,
    prompt_tokens=600 * 8_000,
    prefill_s=150.0,
    prefill_square_s2=120.0,
    waits=100,
    wait_s=40.0,
    answers=600,
    gaps=600 * 200,
    seen_gaps=600 * 200,
    decode_s=600 * 200 * 0.04,
    context_gaps=600 * 200 * 8_000.0,
    learned_gaps=600 * 200,
    step_gaps_s=600 * 200 * 1e-7,
)


def member(number, role="mixed", **fields):
    fields = {"models": ("m",), "ready": True, "ranks": 1, "kv_tokens": 400_000, **fields}
    return PoolMember(f"h:{number}", role, **fields)


def fleet(prefill, decode, mixed=0):
    roles = ["prefill"] * prefill + ["decode"] * decode + ["mixed"] * mixed
    return [member(number, role) for number, role in enumerate(roles)]


def measured(works, seconds=300.0):
    found = Measured(seconds=seconds)
    for name, work in works.items():
        found.workers[name] = WorkerMeasured(work=work, reports=10, kv_usage=4.0, running=60)
    return found


def planned(workers, works=None, link=LINK):
    return plans(measured({"h:1": WORK} if works is None else works), workers, 50, link)


def test_the_load_is_that_of_the_period():
    (one,) = planned(fleet(0, 4))
    load = one.load
    assert (load.prefills_per_s, load.answers_per_s, load.gaps) == (2, 2, 200)
    assert (load.prefill_s, load.moved_s) == (0.5, pytest.approx(0.09))
    assert (load.step_token_s, load.context_tokens, load.kv_tokens) == (pytest.approx(1e-7), 8_000, 400_000)
    assert one.models == ("m",) and one.now == Split(0, 4, 0)


def test_a_handover_takes_what_links_have_taken():
    (one,) = planned(fleet(0, 4), link=LinkSpeed(5e-5, 0.02))
    assert one.load.moved_s == pytest.approx(0.02 + 8_000 * 5e-5)


def test_the_model_gives_the_measured_gaps_under_the_present_split():
    (one,) = planned(fleet(0, 4))
    busy = (2 * 0.5 + 1e-7 * 8_000 * 2 * 200) / 4
    assert one.load.gap_s == pytest.approx(0.04 * (1 - busy))


@pytest.mark.parametrize(("wait_s", "burst"), [(0.0, 0.25), (1e6, 4.0), (-5.0, 0.25)])
def test_the_factor_of_bursts_is_bounded(wait_s, burst):
    busy = msgspec.structs.replace(WORK, prefill_s=500.0, prefill_square_s2=2_000.0, wait_s=wait_s)
    (one,) = planned(fleet(0, 4), {"h:1": busy})
    assert one.load.burst == pytest.approx(burst, rel=0.3)
    (unseen,) = planned(fleet(0, 4), {"h:1": msgspec.structs.replace(busy, waits=0)})
    assert unseen.load.burst == 1.0


def test_each_pool_has_its_price_and_its_measures():
    (one,) = planned(fleet(1, 3), {"h:0": WORK, "h:2": WORK})
    prefill, decode, mixed = one.pools
    assert [pool.ready for pool in one.pools] == [1, 3, 0]
    assert prefill.price_s >= 0.0 and decode.price_s > 0.0 and mixed.price_s >= 0.0
    assert (prefill.kv_occupancy, prefill.running) == (0.4, 6.0)
    assert (prefill.utilisation, decode.utilisation) == (pytest.approx(1.0), pytest.approx(1 / 3))
    assert decode.gap_s == pytest.approx(0.04)
    assert mixed.gap_s is None


@pytest.fixture
def prompts():
    """The work of long prompts, for which one prefill worker is too few."""
    gaps = 2_400 * 500
    return WorkMeasured(
        prefills=2_400,
        timed=2_400,
        prompt_tokens=2_400 * 4_000,
        prefill_s=1_200.0,
        prefill_square_s2=960.0,
        answers=2_400,
        gaps=gaps,
        seen_gaps=gaps,
        decode_s=gaps * 0.04,
        context_gaps=gaps * 4_250.0,
        learned_gaps=gaps,
        step_gaps_s=gaps * 1e-8,
    )


def test_a_better_split_is_recommended_and_its_gain_shown(prompts):
    (one,) = planned(fleet(1, 7), {"h:1": prompts})
    assert one.recommended.prefill > 1
    assert sum(one.recommended) == 8
    assert one.recommended_delay_s < one.delay_s


def test_prefills_without_a_learned_speed_count_like_the_others():
    (half,) = planned(fleet(0, 4))
    (all_timed,) = planned(
        fleet(0, 4),
        {"h:1": msgspec.structs.replace(WORK, timed=600, prefill_s=300.0, prefill_square_s2=240.0)},
    )
    assert half.delay_s == pytest.approx(all_timed.delay_s)


@pytest.mark.parametrize(
    ("workers", "work", "needs"),
    [
        (fleet(0, 2), msgspec.structs.replace(WORK, prefills=49), "50 prefills"),
        (fleet(0, 2), msgspec.structs.replace(WORK, timed=0), "there were 0 of 600"),
        (fleet(0, 2), msgspec.structs.replace(WORK, seen_gaps=0), "streamed answer"),
        (fleet(2, 0), WORK, "whole requests"),
        ([member(1, ready=False)], WORK, "whole requests"),
    ],
)
def test_with_too_little_known_there_is_no_price_and_the_plan_says_what_it_needs(workers, work, needs):
    (one,) = planned(workers, {"h:1": work})
    assert needs in one.needs
    assert (one.recommended, one.delay_s, one.load) == (None, None, None)
    assert {pool.price_s for pool in one.pools} == {None}


def test_workers_of_different_models_have_plans_of_their_own():
    found = planned([member(1), member(2), member(3, models=("other",)), member(4, models=("other",))])
    assert [one.models for one in found] == [("m",), ("other",)]
    assert found[0].needs is None
    assert "there were 0" in found[1].needs


def test_ranks_are_engines_of_one_worker():
    one = member(1, ranks=2)
    (found,) = planned([one], {"h:1#0": WORK, "h:1#1": WORK})
    assert found.pools[2].utilisation == pytest.approx(1.0)
    assert found.load.prefills_per_s == 4.0


def test_a_plan_of_several_processes_adds_their_work():
    part = measured({"h:1": WORK})
    whole = over_processes([part, part])
    assert whole.workers["h:1"].work.prefills == 1_200
    (one,) = plans(whole, fleet(0, 4), 50, LINK)
    assert one.load.prefills_per_s == 4.0


def endpoint(name, role, state=WorkerState.READY, known=True, labels=None):
    models = (ServedModel("b"), ServedModel("a"), ServedModel("adapter", parent="a"))
    candidates = (
        SimpleNamespace(id=f"{name}#0", capacity_tokens=10),
        SimpleNamespace(id=f"{name}#1", capacity_tokens=30),
    )
    facts = SimpleNamespace(models=models)
    return SimpleNamespace(
        id=name,
        role=role,
        labels=labels or {},
        state=state,
        candidates=candidates,
        facts=facts,
        models_known=known,
    )


def test_members_are_workers_whose_models_are_known():
    endpoints = [endpoint("a:1", "decode", WorkerState.DRAINING), endpoint("b:1", "prefill", known=False)]
    found = members(endpoints, "nixl_pull")
    assert found == [PoolMember("a:1", "decode", ("a", "b"), False, 2, 40)]


@pytest.mark.parametrize(
    ("role", "label", "connector", "counted"),
    [
        ("prefill", None, "nixl_pull", ["prefill"]),
        ("decode", None, "nixl_pull", ["decode"]),
        ("mixed", None, "nixl_pull", ["mixed"]),
        ("prefill", "none", "nixl_pull", []),
        ("decode", "none", "nixl_pull", ["mixed"]),
        ("decode", "mooncake", "nixl_pull", ["mixed"]),
        ("mixed", "nixl_pull", "nixl_pull", ["decode"]),
        ("batch", "nixl_pull", "nixl_pull", ["decode"]),
        ("batch", None, "nixl_pull", ["mixed"]),
        ("prefill", None, None, ["mixed"]),
        ("prefill", "none", None, ["mixed"]),
        ("decode", "nixl_pull", None, ["mixed"]),
    ],
)
def test_a_worker_counts_as_what_placement_makes_of_its_role_and_its_label(role, label, connector, counted):
    one = endpoint("a:1", role, labels={} if label is None else {"kv_connector": label})
    assert [found.role for found in members([one], connector)] == counted


def checked(workers, works, link=(1e-5, 0.01)):
    return worker_roles(measured(works), DiagnosisConfig(), InForce(pool=workers, link=link))


def test_the_diagnosis_recommends_a_split_that_saves_a_tenth_of_the_delay(prompts):
    found = checked(fleet(1, 7), {"h:1": prompts})
    assert (found.check, found.severity) == ("worker_roles", "advice")
    assert "Workers of m: the added delay is" in found.detail and "prefill, " in found.detail
    (table,) = found.evidence
    assert [row[:2] for row in table.rows] == [["prefill", 1], ["decode", 7], ["mixed", 0]]
    best = [row[2] for row in table.rows]
    assert sum(best) == 8


def test_the_diagnosis_has_no_plan_without_a_connector_and_says_what_a_plan_needs(prompts):
    assert checked(fleet(1, 7), {"h:1": prompts}, link=None) is None
    assert checked([], {}) is None
    assert "50 prefills" in checked(fleet(1, 7), {}).needs


# what is counted of a request


def ticket(leg=None, speed=None, ttft_s=1.0, step_s=None, tokens=1_000, moved_tokens=0, prefill=None, waited_s=0.0):
    own = SimpleNamespace(uncached_tokens=600, attention=attention(600, 400))
    return SimpleNamespace(
        record=SimpleNamespace(leg=leg, ttft_s=ttft_s),
        load=SimpleNamespace(
            speed=speed,
            steps=SimpleNamespace(context_token_s=step_s),
            account=SimpleNamespace(shared=None),
            utilisation=SimpleNamespace(share=lambda *_: 0.5),
        ),
        reservation=own,
        candidate=SimpleNamespace(id="a:1"),
        view=SimpleNamespace(prompt_tokens=tokens, waited_s=waited_s),
        moved_tokens=moved_tokens,
        prefill=prefill,
        predicted_cached_tokens=None,
        turn=0,
        decode_s=lambda now_s: None if ttft_s is None else 2.0,
    )


def counted(*tickets, output_tokens=101):
    measurements = Measurements()
    for one in tickets:
        measurements.finished(one, None, output_tokens, 10.0)
    return measurements.measured(10.0)


def test_a_whole_request_counts_as_a_prefill_and_an_answer():
    speed = Speed(1e-3, 0.1, 0.0, 0.0, 0.0)
    work = counted(ticket(speed=speed, step_s=2e-7)).workers["a:1"].work
    assert (work.prefills, work.timed, work.prompt_tokens, work.handed_s) == (1, 1, 1_000, 0.0)
    assert (work.prefill_s, work.prefill_square_s2) == (pytest.approx(0.6), pytest.approx(0.36))
    assert (work.waits, work.wait_s) == (1, pytest.approx(0.3))
    assert (work.answers, work.gaps, work.seen_gaps, work.decode_s) == (1, 100, 100, 2.0)
    assert (work.context_gaps, work.learned_gaps) == (100 * 1_050.5, 100)
    assert work.step_gaps_s == pytest.approx(2e-5)


def test_what_is_not_seen_is_not_counted():
    work = counted(ticket(ttft_s=None)).workers["a:1"].work
    assert (work.prefills, work.timed, work.waits, work.answers, work.gaps, work.seen_gaps) == (1, 0, 0, 1, 100, 0)
    assert counted(ticket(), output_tokens=None).workers["a:1"].work.answers == 0


def test_a_pull_spares_a_prefill_and_its_transfer_is_no_wait():
    found = counted(ticket(speed=Speed(1e-3, 0.1, 0.0, 0.0, 0.0), moved_tokens=400))
    work = found.workers["a:1"].work
    assert (work.prefills, work.timed, work.prefill_s) == (1, 1, pytest.approx(0.6))
    assert (work.waits, work.wait_s) == (0, 0.0)
    assert sum(one.ttft_s for one in found.prompts) == 1.0
    assert sum(one.wait_s for one in found.prompts) == 0.0


def test_a_handed_over_prompt_waits_where_it_is_computed():
    speed = Speed(1e-3, 0.1, 0.0, 0.0, 0.0)
    first, second = HandoverLeg("prefill", 2, "b:1"), HandoverLeg("decode", 2, "a:1")
    prefill = ticket(first, speed, ttft_s=0.9)
    found = counted(prefill, ticket(second, speed, ttft_s=2.0, moved_tokens=1_000, prefill=prefill))
    assert sum(one.ttft_s for one in found.prompts) == 2.0
    assert sum(one.wait_s for one in found.prompts) == pytest.approx(0.9 - 0.6 - 0.1)
    assert found.workers["a:1"].work.waits == 1


def test_a_request_whose_handover_fails_after_the_prefill_waits_once():
    """The plain run waited from the arrival on, the prefill before included."""
    speed = Speed(1e-3, 0.1, 0.0, 0.0, 0.0)
    prefill = ticket(HandoverLeg("prefill", 2, "b:1"), speed, ttft_s=0.9)
    found = counted(prefill, ticket(None, speed, ttft_s=0.8, waited_s=1.2))
    assert sum(one.ttft_s for one in found.prompts) == 2.0
    assert sum(one.wait_s for one in found.prompts) == pytest.approx(1.2 + 0.8 - 0.6 - 0.1)


def test_the_parts_of_a_handover_are_one_prefill_one_answer_and_one_request():
    speed = Speed(1e-3, 0.1, 0.0, 0.0, 0.0)
    first, second = HandoverLeg("prefill", 2, "b:1"), HandoverLeg("decode", 2, "a:1")
    found = counted(ticket(first, speed), ticket(second, speed))
    work = found.workers["a:1"].work
    assert (work.prefills, work.answers, work.handed_s) == (1, 1, pytest.approx(0.6))
    assert found.requests == sum(found.outputs) == 1


# a simulated fleet


PROFILE = load_profile("llama-3.1-8b-h100")


@pytest.fixture
def served(simulated):
    """Let so many workers serve 200 prompts of 4,000 tokens with answers of 200, and plan for what was measured."""

    def run(workers, rate):
        shape = Shape(200, rate, 200, (3_000, 5_000), turns=(1, 1), answer_tokens=(150, 250))
        measured = simulated((WorkerSpec(PROFILE),) * workers, conversations(shape, 0)).measured
        fleet = [msgspec.structs.replace(member(0), id=name) for name in measured.workers]
        (one,) = plans(measured, fleet, 50, LINK)
        return measured, one

    return run


def delay_of(measured, idle_gap_s):
    """The added delay per second that was measured: waits before the prefill, and a tenth of slower streaming."""
    works = [one.work for one in measured.workers.values()]
    waited_s = sum(one.wait_s for one in works)
    slower_s = sum(one.decode_s - one.seen_gaps * idle_gap_s for one in works)
    return (waited_s + STREAM_WEIGHT * slower_s) / measured.seconds


@pytest.mark.source_only
def test_the_load_is_found_and_the_price_is_what_one_more_worker_saves_in_a_simulation(served):
    (two, now), (three, _) = served(2, 14.0), served(3, 14.0)
    saved_s = delay_of(two, now.load.gap_s) - delay_of(three, now.load.gap_s)
    assert now.load.prefills_per_s == pytest.approx(200 / two.seconds)
    assert now.load.gaps == pytest.approx(199, rel=0.1)
    assert now.delay_s == pytest.approx(delay_of(two, now.load.gap_s), rel=0.15)
    assert now.pools[2].price_s == pytest.approx(saved_s, rel=0.35)
