"""Overall figures and the two halves, against scores worked out by hand."""

import msgspec
import pytest

from loadtest.tournament.overall import halves, overall, sustainable


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
    found = {one.policy: one for one in overall(scores, scores.workloads)}
    assert list(found) == ["ours", "a", "b"]
    ours, a = found["ours"], found["a"]
    assert ours.goodput.mean == pytest.approx((0.5 * 1.95 + 0.9 * 1.86 + 1.05 * 1.54) / 6)
    assert a.goodput.mean == pytest.approx((0.5 * 1.93 + 0.9 * 1.7 + 1.05 * 1.3) / 6)
    assert ours.sustained.mean == pytest.approx(((0.9 + 0.15 * 0.06 / 0.12) + 0.9) / 2)
    assert a.sustained.mean == pytest.approx(((0.5 + 0.4 * 0.08 / 0.18) + 0.9) / 2)
    assert ours.goodput.best and a.goodput.worse


def test_times_are_ratios_to_the_best_and_matches_below_saturation_are_counted(scores):
    ours = overall(scores, scores.workloads)[0]
    assert ours.times["ttft_mean_ms"] == pytest.approx((1.1 * 1.01) ** (1 / 6))
    assert ours.times["ttft_p99_ms"] == pytest.approx(1.04 ** (1 / 6))
    assert (ours.held, ours.played) == (11, 12)
    assert ours.worst == pytest.approx(0.1)
    assert ours.worst_at == "first calls, load 1.05, TTFT mean, ms"


def test_a_rule_that_answers_nothing_has_no_time_to_compare(scores):
    nothing = {"ttft_mean_ms": [0.0] * 3, "ttft_p99_ms": [0.0] * 3}
    first = scores.workloads[0]
    rows = [msgspec.structs.replace(row, values=row.values | nothing) for row in first.rows]
    changed = msgspec.structs.replace(scores, workloads=[msgspec.structs.replace(first, rows=rows)])
    assert overall(changed, changed.workloads)[0].times["ttft_mean_ms"] == 1.0


def test_each_half_has_a_ranking_of_its_own(scores):
    found = halves(scores)
    assert found is not None and found.names == ("A", "B")
    assert [one.policy for one in found.tables[0]] == ["ours", "a", "b"]
    assert [one.policy for one in found.tables[1]] == ["ours", "a", "b"], "equal goodput: as they are named"
    assert found.swaps == 0 and found.place(1, "b") == 3
    assert found.of(0, "a").goodput.mean == pytest.approx((0.5 * 0.98 + 0.9 * 0.8 + 1.05 * 0.6) / 3)


def test_swaps_between_the_halves_are_counted(scores):
    better = {"goodput_per_s": [7.25] * 3}
    second = scores.workloads[1]
    rows = [
        msgspec.structs.replace(row, values=row.values | better) if row.policy == "b" else row for row in second.rows
    ]
    changed = [scores.workloads[0], msgspec.structs.replace(second, rows=rows)]
    found = halves(msgspec.structs.replace(scores, workloads=changed))
    assert found is not None
    assert found.place(1, "b") == 1 and found.swaps == 2


def test_one_half_alone_is_no_check(scores):
    assert halves(msgspec.structs.replace(scores, workloads=scores.workloads[:1])) is None
