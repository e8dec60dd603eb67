"""The numbers are those of MLPerf's rule, and of Wilson's interval as worked out by hand."""

import pytest

from loadtest.report.verdict import Answer, at_most, needed_total, verdict, wilson

LATE = (0, 1, 2, 5, 10, 20, 50, 100)
TABLES = {
    0.99: (459, 662, 838, 1_307, 2_010, 3_304, 6_898, 12_571),
    0.95: (90, 130, 165, 259, 398, 656, 1_372, 2_504),
    0.90: (44, 64, 81, 127, 197, 325, 681, 1_246),
}


@pytest.mark.parametrize(
    ("share", "late", "needed"), [(s, t, n) for s in TABLES for t, n in zip(LATE, TABLES[s], strict=True)]
)
def test_the_needed_total_is_the_table_of_the_rule(share, late, needed):
    assert needed_total(late, share) == needed


@pytest.mark.parametrize(
    ("late", "total", "answer", "missing"),
    [
        (0, 459, Answer.MET, 0),
        (0, 458, Answer.UNDECIDED, 1),
        (1, 459, Answer.UNDECIDED, 203),
        (20, 459, Answer.NOT_MET, 2_845),
        (0, 0, Answer.UNDECIDED, 459),
    ],
)
def test_a_goal_is_met_missed_or_undecided(late, total, answer, missing):
    found = verdict(late, total, 0.99)
    assert (found.answer, found.missing) == (answer, missing)


def test_every_late_request_misses_the_goal():
    assert verdict(10, 10, 0.99).answer is Answer.NOT_MET


def test_a_share_of_all_is_refused():
    with pytest.raises(ValueError, match="between 0 and 1"):
        needed_total(0, 1.0)


def test_a_binomial_of_many_requests_does_not_underflow():
    assert at_most(1_000, 1_000, 0.5) == 1.0
    assert at_most(50_000, 100_000, 0.5) == pytest.approx(0.5, abs=2e-3)


@pytest.mark.parametrize(("total", "low", "high"), [(200, 0.936, 0.986), (400, 0.948, 0.983), (1_000, 0.957, 0.979)])
def test_a_measured_97_percent_is_above_95_from_a_thousand_requests_on(total, low, high):
    found = wilson(round(0.97 * total), total)
    assert (found.low, found.high) == (pytest.approx(low, abs=5e-4), pytest.approx(high, abs=5e-4))
    assert found.side(0.95) is (True if total == 1_000 else None)


def test_a_share_below_its_target_is_on_the_other_side():
    assert wilson(10, 100).side(0.95) is False
    assert wilson(0, 0).side(0.95) is None
