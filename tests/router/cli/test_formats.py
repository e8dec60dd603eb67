import pytest

from router.cli.formats import change_s, seconds, share


@pytest.mark.parametrize(
    ("form", "value", "shown"),
    [
        *((seconds, None, ""), (seconds, 0.0, "0 ms"), (seconds, 0.00012, "0.12 ms"), (seconds, 0.25, "250 ms")),
        *((seconds, 0.9994, "999 ms"), (seconds, 0.9996, "1.00 s"), (seconds, 1_234.5, "1,234.50 s")),
        *((seconds, -0.02, "-20 ms"), (share, None, ""), (share, 0.0, "0.0%"), (share, 0.125, "12.5%")),
        *((share, 1.0, "100.0%"), (change_s, 0.02, "+20 ms"), (change_s, 0.0, "0 ms"), (change_s, -1.5, "-1.50 s")),
    ],
)
def test_times_and_shares_are_shown_in_the_unit_that_fits(form, value, shown):
    assert form(value) == shown
