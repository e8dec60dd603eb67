import pytest

from loadtest.replicas.cases import Case, Played, Share, Spread, cases, share


def test_each_number_of_gateways_is_a_case_with_both_views_and_both_ways():
    listed = cases((1, 2, 4))
    assert len(listed) == len(set(listed)) == 10
    assert [case for case in listed if case.gateways == 1] == [Case(1, True, False), Case(1, False, False)]
    assert {case.alone for case in listed} == {Case(1, True, False), Case(1, False, False)}


def test_figures_are_shares_of_tokens():
    found = share([("a", 100, 80), ("a", 100, 20), ("b", 100, 0)], ["a", "b", "c"], [0.1, 0.3], failed=1)
    assert found.cached == pytest.approx(1 / 3)
    assert found.imbalance == pytest.approx(100 / (200 / 3))
    assert found.ttft_mean_ms == pytest.approx(200)
    assert (found.requests, found.failed) == (3, 1)


def test_no_calls_give_zeros():
    assert share([], ["a"], []) == Share(0.0, 0.0, 0.0, 0)


def test_losses_are_paired_by_run():
    one = Played(Case(1, True, False), (Share(0.9, 1.2, 1, 1), Share(0.5, 1.0, 1, 1), Share(0.7, 1.1, 1, 1)))
    two = Played(Case(2, True, False), (Share(0.89, 1.3, 1, 1), Share(0.52, 1.2, 1, 1), Share(0.67, 1.32, 1, 1)))
    lost = two.lost(one)
    assert (lost.median, lost.low, lost.high) == pytest.approx((0.01, -0.02, 0.03))
    assert two.unevenness(one) == pytest.approx(1.3 / 1.1)


def test_a_spread_of_one_value_has_no_range():
    assert Spread.of([0.5]).text(".2f") == "0.50"
    assert Spread.of([0.5, 0.25, 1.0]).text(".2f") == "0.50 (0.25 to 1.00)"
