from dataclasses import replace

import msgspec
import pytest

from loadtest.tournament.ranking import losses, matches, overall, sustainable
from tests.loadtest.tournament.conftest import changed_rows


def test_every_workload_load_and_measure_is_a_match_with_its_best_first(scores):
    found = list(matches(scores))
    assert len(found) == 2 * 3 * 3
    firsts = {(one.workload.name, one.load, one.measure.name): one.first.policy for one in found}
    assert firsts["first", 0.5, "ttft_mean_ms"] == "ours"
    assert firsts["first", 1.05, "ttft_mean_ms"] == "a"
    assert firsts["second", 0.5, "ttft_mean_ms"] == "b"
    assert firsts["second", 0.9, "ttft_p99_ms"] == "b"
    assert firsts["second", 0.9, "goodput_per_s"] == "ours", "equal means: the rule judged is named first"
    busy = next(
        one for one in found if (one.workload.name, one.load, one.measure.name) == ("first", 0.9, "ttft_p99_ms")
    )
    assert [one.policy for one in busy.standings] == ["ours", "b", "a"]


def test_losses_are_the_matches_neither_won_nor_held_the_worst_first(scores):
    found = losses(scores)
    assert [(one.match.workload.name, one.match.load, one.match.measure.name) for one in found] == [
        ("first", 1.05, "ttft_mean_ms"),
        ("second", 0.9, "ttft_p99_ms"),
    ]
    assert [one.ours.difference for one in found] == pytest.approx([0.1, 0.04])
    assert [one.heavy for one in found] == [True, False]
    assert [one.why for one in found] == ["worse", "worse"]


def test_an_undecided_match_is_listed_as_a_loss(scores):
    noisy = {"ttft_mean_ms": [90.0, 110.0, 106.0]}
    changed = changed_rows(scores, 1, "ours", noisy, load=0.5)
    changed = changed_rows(changed, 1, "b", {"ttft_mean_ms": [100.0] * 3}, load=0.5)
    changed = msgspec.structs.replace(changed, workloads=changed.workloads[1:])
    (found,) = (one for one in losses(changed) if one.match.load == 0.5)
    assert found.ours.difference == pytest.approx(0.02)
    assert found.why == "undecided, and not shown to be within 2 %" and not found.heavy
    alone = replace(found, ours=replace(found.ours, not_inferior=None, worse=None))
    assert alone.why == "one seed decides nothing"


@pytest.mark.parametrize(
    ("shares", "load"),
    [
        ([0.95, 0.94, 0.93], 1.05),
        ([0.95, 0.9, 0.9], 1.05),
        ([1.0, 0.8, 0.7], 0.7),
        ([0.95, 0.95, 0.85], 0.975),
        ([0.95, 0.85, 0.95], 0.7),
        ([0.89, 0.95, 0.95], 0.0),
    ],
)
def test_a_load_is_sustained_up_to_where_the_share_first_falls_below_nine_tenths(shares, load):
    assert sustainable((0.5, 0.9, 1.05), shares) == pytest.approx(load)


def test_goodput_and_sustained_load_are_means_over_workloads(scores):
    found = {one.policy: one for one in overall(scores)}
    assert list(found) == ["ours", "a", "b"]
    ours, a = found["ours"], found["a"]
    assert ours.goodput.mean == pytest.approx((0.5 * 1.95 + 0.9 * 1.86 + 1.05 * 1.54) / 6)
    assert a.goodput.mean == pytest.approx((0.5 * 1.93 + 0.9 * 1.7 + 1.05 * 1.3) / 6)
    assert ours.sustained.mean == pytest.approx(((0.9 + 0.15 * 0.06 / 0.12) + 0.9) / 2)
    assert a.sustained.mean == pytest.approx(((0.5 + 0.4 * 0.08 / 0.18) + 0.9) / 2)
    assert ours.goodput.best and a.goodput.worse


def test_times_are_ratios_to_the_best_and_matches_below_saturation_are_counted(scores):
    ours = overall(scores)[0]
    assert ours.times["ttft_mean_ms"] == pytest.approx((1.1 * 1.01) ** (1 / 6))
    assert ours.times["ttft_p99_ms"] == pytest.approx(1.04 ** (1 / 6))
    assert (ours.held, ours.played) == (11, 12)
    assert ours.worst == pytest.approx(0.1)
    assert ours.worst_at == "first calls, load 1.05, TTFT mean, ms"


def test_a_rule_that_answers_nothing_has_no_time_to_compare(scores):
    nothing = {"ttft_mean_ms": [0.0] * 3}
    scores = msgspec.structs.replace(scores, workloads=scores.workloads[:1])
    for policy in scores.policies:
        scores = changed_rows(scores, 0, policy, nothing)
    assert overall(scores)[0].times["ttft_mean_ms"] == 1.0
