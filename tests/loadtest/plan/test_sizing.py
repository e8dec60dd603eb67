from dataclasses import replace

import pytest

from loadtest.lab.cell import Slo
from loadtest.lab.measures import Figures, Measures, Pressure
from loadtest.lab.models import Models
from loadtest.lab.store import Result
from loadtest.plan.sizing import limit
from loadtest.plan.traffic import Piece
from loadtest.plan.trials import FleetShape, Goal, Trials
from loadtest.report.verdict import Answer, verdict
from router.placement.admission.classes import RequestClass
from tests.loadtest.plan.conftest import ALONE, CHATS, SHARED, UPLOADS, kind

SLACK = Slo(ttft_ms=1_000.0)


def tried(trials, shape, piece, seeds):
    return trials.several({"it": shape}, piece, seeds)["it"]


@pytest.mark.parametrize(
    ("trace", "ttft_ms", "kv_tokens"),
    [(SHARED, 500.0, 30_000), (CHATS, 1_000.0, 100_000), (ALONE, 700.0, 60_000)],
    ids=["shared", "chats", "alone"],
)
def test_the_size_is_that_of_brute_force(planner, trace, ttft_ms, kv_tokens):
    trials, sizing, piece = planner(trace, slo=Slo(ttft_ms=ttft_ms), kv_tokens=kv_tokens)
    (size,) = sizing.sizes([kind()])
    each = [tried(trials, FleetShape("llama-3.1-8b-a100", "lpwl", count), piece, 2) for count in range(1, 7)]
    holding = [one.shape.workers for one in each if one.holds]
    assert holding and holding[0] > 1, "the case has a threshold"
    assert holding == list(range(holding[0], 7)), "more workers never hold less"
    assert (size.workers, size.met) == (holding[0], True)
    assert size.one_lost is not None and not size.one_lost.holds


def test_a_verdict_is_that_on_all_calls_of_all_seeds(planner):
    trials, _, piece = planner(SHARED)
    trial = tried(trials, FleetShape("llama-3.1-8b-a100", "lpwl", 6), piece, 2)
    calls = sum(one.all.calls for one in trial.measures)
    good = sum(round(one.all.goodput_share * one.all.calls) for one in trial.measures)
    assert trial.verdict == verdict(calls - good, calls, 0.8)


def test_a_hopeless_fleet_is_not_simulated_to_the_end(planner):
    trials, _, piece = planner(SHARED)
    trial = tried(trials, FleetShape("llama-3.1-8b-a100", "lpwl", 1), piece, 5)
    assert trial.verdict.answer is Answer.NOT_MET
    assert len(trial.measures) < 5


@pytest.mark.parametrize(
    ("late", "answer", "seeds"),
    [
        ([0] * 5, Answer.MET, 2),
        ([50] * 5, Answer.UNDECIDED, 5),
        ([40] * 5, Answer.MET, 4),
        ([80] * 5, Answer.NOT_MET, 2),
        ([300] + [0] * 4, Answer.NOT_MET, 1),
    ],
)
def test_a_verdict_comes_early_if_it_stays_with_all_other_seeds_just_at_the_goal(late, answer, seeds):
    nothing = dict.fromkeys(Figures.__struct_fields__, 0)
    of_seed = [Figures(**nothing | {"calls": 1_000, "late_first_tokens": one}) for one in late]

    def run(cells):
        return [Result("", "", {}, Measures(of_seed[cell.seed], {}, 0, 0, 0, 0, 0)) for cell in cells]

    trials = Trials(run, Goal(SLACK, 0.95), Models(), jobs=1)
    trial = tried(trials, FleetShape("llama-3.1-8b-a100", "lpwl", 1), Piece(ALONE, 0.0, 15.0, 5.0, 300, 20.0, 15.0), 5)
    assert (trial.verdict.answer, len(trial.measures)) == (answer, seeds)


def test_the_size_grows_with_the_rate_and_with_a_stricter_goal(planner):
    def workers(slo=SLACK, **given):
        return planner(ALONE, slo, seeds=1, kv_tokens=200_000, **given)[1].sizes([kind(most=12)])[0].workers

    by_rate = [workers(growth=growth) for growth in (0.5, 1.0, 2.0)]
    assert by_rate == sorted(by_rate) and by_rate[0] < by_rate[-1]
    by_limit = [workers(slo=Slo(ttft_ms=limit)) for limit in (5_000.0, 1_000.0, 650.0)]
    assert by_limit == sorted(by_limit) and by_limit[0] < by_limit[-1]
    by_share = [workers(share=share) for share in (0.5, 0.8, 0.9)]
    assert by_share == sorted(by_share)


def test_the_cached_share_changes_with_the_count_and_rules_differ(planner):
    trials, sizing, piece = planner(SHARED)
    warm, blind = sizing.sizes([kind("marginal_cost"), kind("round_robin")])
    assert warm.workers < blind.workers
    shares = {
        policy: [
            tried(trials, FleetShape("llama-3.1-8b-a100", policy, count), piece, 1).mean(lambda one: one.all.hit_share)
            for count in (2, 6)
        ]
        for policy in ("marginal_cost", "round_robin")
    }
    assert shares["marginal_cost"][1] > shares["marginal_cost"][0] + 0.02, "each worker keeps fewer groups"
    assert shares["marginal_cost"][1] > shares["round_robin"][1] + 0.02


def test_none_holds(planner):
    (size,) = planner(SHARED, slo=Slo(ttft_ms=1.0))[1].sizes([kind(most=2)])
    assert not size.met and size.workers == 2 and size.one_lost is None
    assert size.limit == "KV cache"


def test_slower_steps_need_more_workers(planner):
    _, sizing, _ = planner(ALONE, SLACK, kv_tokens=200_000)
    (size,) = sizing.sizes([kind()])
    peak, wrong = sizing.around(size, (0.8, 1.2))
    assert peak == [], "a generator has no peak hour"
    assert wrong[0.8] <= size.workers <= wrong[1.2]
    assert wrong[0.8] < wrong[1.2]


def test_a_split_has_workers_of_both_roles(planner):
    _, sizing, _ = planner(ALONE, slo=Slo(ttft_ms=1_000.0, tpot_ms=60.0), share=0.8, kv_tokens=200_000)
    (size,) = sizing.sizes([kind(roles="split")])
    assert size.met and size.fleet.shape.prefill_workers in range(1, size.workers)
    assert size.fleet.mean(lambda one: one.all.handed_over_share) > 0.0


def test_the_limit_is_what_calls_missed_or_waited_for(planner):
    trials, _, piece = planner(ALONE, kv_tokens=200_000)
    late = tried(trials, FleetShape("llama-3.1-8b-a100", "lpwl", 1), piece, 1)
    assert limit(late) == "prefill"
    (measures,) = late.measures
    for waiting, name in (({"kv": 3, "prefill": 2}, "KV cache"), ({"batch": 1}, "batch"), ({}, "prefill")):
        assert limit(replace(late, measures=(replaced(measures, pressure=Pressure(waiting=waiting)),))) == name
    slow = replaced(measures, all=replaced(measures.all, late_first_tokens=1, slow_answers=2))
    assert limit(replace(late, measures=(slow,))) == "decode"
    good = replaced(measures, all=replaced(measures.all, late_first_tokens=0, slow_answers=0, late_ends=0))
    assert limit(replace(late, measures=(good,))) is None


def replaced(struct, **changes):
    return type(struct)(**{name: getattr(struct, name) for name in struct.__struct_fields__} | changes)


def test_each_class_has_to_meet_its_own_service_level(planner):
    chat, rest = RequestClass("chat", 1.0, 0.5, ttft_s=0.5), RequestClass("default", 0.0)
    alike = planner(UPLOADS, kv_tokens=200_000)[1].sizes([kind(most=8)])[0]
    _, sizing, piece = planner(UPLOADS, Slo(), kv_tokens=200_000, classes=(chat, rest))
    (size,) = sizing.sizes([kind(most=8)])
    assert size.met and size.workers < alike.workers, "uploads may wait"
    assert set(size.fleet.classes) == {"chat", "default"}
    assert size.fleet.verdict.total == sum(one.total for one in size.fleet.classes.values())
    assert size.fleet.reached == 1 - size.fleet.classes["chat"].late / size.fleet.classes["chat"].total < 1.0
    strict = planner(UPLOADS, Slo(ttft_ms=900.0), kv_tokens=200_000, classes=(chat, rest))[0]
    late = tried(strict, size.fleet.shape, piece, 2)
    assert late.classes["default"].late > 0, "a class without a service level has that of all calls"
