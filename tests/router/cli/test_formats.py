import pytest

from router.cli.formats import change_s, seconds, share


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, ""), (0.0, "0 ms"), (0.00012, "0.12 ms"), (0.25, "250 ms"), (0.9994, "999 ms"), (0.9996, "1.00 s"),
     (1_234.5, "1,234.50 s"), (-0.02, "-20 ms")],
)  # fmt: skip
def test_times_are_shown_in_the_unit_that_fits(value, shown):
    assert seconds(value) == shown


@pytest.mark.parametrize(("value", "shown"), [(None, ""), (0.0, "0.0%"), (0.125, "12.5%"), (1.0, "100.0%")])
def test_shares_are_shown_in_percent(value, shown):
    assert share(value) == shown


@pytest.mark.parametrize(("value", "shown"), [(0.02, "+20 ms"), (0.0, "0 ms"), (-1.5, "-1.50 s")])
def test_a_change_has_its_sign(value, shown):
    assert change_s(value) == shown
