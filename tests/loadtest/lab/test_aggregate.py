from dataclasses import replace

import pytest

from loadtest.lab.aggregate import Asked, Miss, Played, aggregate, miss
from loadtest.lab.cell import Slo
from loadtest.sim.outcome import Ending, Outcome

SLO = Slo(1_000.0, 100.0)
GOOD = Outcome("a/0", "a", Ending.FINISHED, "w0", 10.0, 11.5, 0.5, 100, 11, 40, 40)
SLOW = replace(GOOD, id="b/0", sent_s=12.0, ended_s=16.0, ttft_s=3.0, prompt_tokens=300, cached_tokens=0)
LEFT = replace(GOOD, id="c/0", sent_s=13.0, ended_s=14.0, ttft_s=None, ending=Ending.LEFT, output_tokens=0)
ASKED = {"a/0": Asked("chat", 80), "b/0": Asked("upload", 0), "c/0": Asked("chat", 60)}
PLAYED = Played((GOOD, SLOW, LEFT), ASKED, (300, 100), (1, 2), 10.0, 20.0, 16.0)


FOUND = aggregate(PLAYED, SLO)


def test_calls_are_counted_by_how_they_ended_and_misses_are_misses():
    every = FOUND.all
    assert (every.calls, every.answered, every.timed_out, every.rejected) == (3, 2, 1, 0)
    assert (every.goodput_share, every.goodput_per_s) == pytest.approx((1 / 3, 0.1))


def test_times_are_of_answers_and_a_client_that_left_counts_with_its_wait():
    every = FOUND.all
    assert (every.e2e_mean_ms, every.tpot_mean_ms) == pytest.approx((2750.0, 100.0))
    assert (every.ttft_mean_ms, every.ttft_p50_ms) == pytest.approx(((500.0 + 3_000.0 + 1_000.0) / 3, 1_000.0))


def test_a_rule_is_no_better_for_starving_the_calls_that_it_serves_worst():
    starved = [replace(GOOD, id=f"c/{n}", ending=Ending.LEFT, ttft_s=None, ended_s=310.0) for n in range(5)]
    served = [replace(one, ending=Ending.FINISHED, ttft_s=299.0, ended_s=309.5) for one in starved]
    asked = ASKED | {one.id: Asked("chat", 0) for one in starved}
    slow, starving = (
        aggregate(replace(PLAYED, outcomes=(GOOD, *calls), asked=asked), SLO).all for calls in (served, starved)
    )
    assert starving.ttft_mean_ms > slow.ttft_mean_ms
    assert starving.ttft_p99_ms > slow.ttft_p99_ms
    seen = aggregate(
        replace(PLAYED, outcomes=(replace(GOOD, ending=Ending.LEFT), replace(SLOW, ending=Ending.REJECTED))), SLO
    )
    assert seen.all.ttft_mean_ms == pytest.approx(500.0), (
        "a first token that came counts, and who was turned away does not"
    )


def test_tokens_of_caches_and_of_fleets():
    assert (FOUND.all.hit_share, FOUND.all.reuse_share) == pytest.approx((80 / 500, 80 / 140))
    assert (FOUND.amplification, FOUND.imbalance, FOUND.preemptions) == pytest.approx((400 / 360, 1.5, 3))
    assert FOUND.arrivals_per_s == pytest.approx(0.3)


def test_each_kind_of_call_has_measures_of_its_own():
    kinds = FOUND.kinds
    assert list(kinds) == ["chat", "upload"]
    assert (kinds["chat"].calls, kinds["chat"].ttft_mean_ms) == (2, pytest.approx(750.0))
    assert (kinds["upload"].goodput_share, kinds["upload"].reuse_share) == (0.0, 0.0)


def test_no_measured_calls_give_zeros():
    found = aggregate(replace(PLAYED, outcomes=(), executed_tokens=(0, 0)), SLO)
    assert (found.all.calls, found.imbalance, found.all.ttft_p50_ms) == (0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"ttft_s": 1.0}, None),
        ({"ttft_s": 1.001}, Miss.FIRST_TOKEN),
        ({"ended_s": 11.6}, Miss.TOKENS),
        ({"output_tokens": 1, "ended_s": 15.0}, None),
        ({"output_tokens": 1, "ended_s": 15.1}, Miss.END),
        ({"ending": Ending.REJECTED, "ttft_s": None}, Miss.FIRST_TOKEN),
        ({"ending": Ending.LEFT}, Miss.END),
    ],
    ids=str,
)
def test_a_call_meets_all_limits_or_misses_by_one_of_them(change, reason):
    assert miss(replace(GOOD, **change), replace(SLO, e2e_ms=5_000.0)) is reason


def test_misses_are_counted_once_each():
    every = aggregate(replace(PLAYED, outcomes=(GOOD, SLOW, LEFT, replace(GOOD, ending=Ending.LEFT))), SLO).all
    assert (every.late_first_tokens, every.slow_answers, every.late_ends) == (2, 0, 1)
