from types import SimpleNamespace

import msgspec
import pytest

from loadtest.lab.measures import Figures
from loadtest.lab.saturation import PRECISION, SaturationError, saturation


class Fleet:
    """Its p90 TTFT is `at_one` at the trace's rate, and grows with the rate; 3 calls/s there."""

    def __init__(self, at_one_ms, power=2.0, calls=10_000):
        self.at_one_ms, self.power, self.calls = at_one_ms, power, calls
        self.rejects = 0.0
        self.cells = []

    def run(self, cells):
        self.cells += cells
        return [self._result(cell) for cell in cells]

    def _result(self, cell):
        p90 = self.at_one_ms * cell.rate**self.power * (1 + 0.1 * (cell.seed - 1))
        calls = round(self.calls * cell.rate)
        figures = msgspec.structs.replace(ZERO, ttft_p90_ms=p90, calls=calls, rejected=round(self.rejects * calls))
        return found(figures, 3.0 * cell.rate)


def found(figures, arrivals_per_s):
    return SimpleNamespace(measures=SimpleNamespace(all=figures, arrivals_per_s=arrivals_per_s))


ZERO = msgspec.convert(dict.fromkeys(Figures.__struct_fields__, 0), Figures)


@pytest.mark.parametrize("at_one_ms", [5.0, 500.0, 70_000.0])
def test_the_rate_at_which_the_limit_is_crossed_is_found_from_either_side(cell, at_one_ms):
    fleet = Fleet(at_one_ms)
    one = saturation(cell(policy="random", load=0.7), "lpwl", fleet.run)
    crossing = (500.0 / at_one_ms) ** 0.5
    assert crossing / (1 + PRECISION) <= one.rate <= crossing
    assert one.arrivals_per_s == pytest.approx(3.0 * one.rate)
    assert {(one.policy, one.seed, one.load) for one in fleet.cells} == {("lpwl", seed, None) for seed in range(3)}


def test_where_the_rate_changes_nothing_there_is_no_load_to_set(cell):
    fleet = Fleet(1_000.0)
    at_once = [fleet._result(cell(seed=seed)) for seed in range(3)]
    with pytest.raises(
        SaturationError, match=r"the same is asked at 0\.5 times its own rate as at 1: its sessions arrive all"
    ):
        saturation(cell(), "lpwl", lambda cells: at_once)


def test_a_fleet_that_turns_everything_away_does_not_keep_up(cell):
    fleet = Fleet(0.0)
    fleet.rejects = 1.0
    with pytest.raises(SaturationError, match=r"only 0 calls, beside 30000 that were turned away,.* more --kv-tokens"):
        saturation(cell(), "lpwl", fleet.run)
    assert len(fleet.cells) == 3, "one rate was tried"


@pytest.mark.parametrize(
    ("fleet", "says"),
    [
        (Fleet(1.0, power=0.0), "below --slo's 500 ms; take fewer --workers"),
        (Fleet(1_000.0, power=0.05, calls=100), r"only .* calls are left to measure.*make --window-s longer"),
        (
            Fleet(1_000.0, power=0.1, calls=10_000_000),
            r"at every rate down to 0\.015625 times .* the least seen is 6\d\d ms, at .* take a faster --profile or",
        ),
    ],
    ids=["never saturates", "next to nothing is sent", "cannot be met"],
)
def test_a_search_without_an_answer_names_the_fix(cell, fleet, says):
    with pytest.raises(SaturationError, match=says):
        saturation(cell(), "lpwl", fleet.run)
