import json
from dataclasses import replace

import msgspec
import pytest

from loadtest.lab.cell import Slo
from loadtest.lab.measures import Figures
from loadtest.lab.run_cell import run_cell
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
        return Found(Measured(figures, 3.0 * cell.rate))


class Measured:
    def __init__(self, figures, arrivals_per_s):
        self.all, self.arrivals_per_s = figures, arrivals_per_s


class Found:
    def __init__(self, measures):
        self.measures = measures


ZERO = msgspec.convert(dict.fromkeys(Figures.__struct_fields__, 0), Figures)


@pytest.mark.parametrize("at_one_ms", [5.0, 500.0, 70_000.0])
def test_the_rate_at_which_the_limit_is_crossed_is_found_from_either_side(cell, at_one_ms):
    fleet = Fleet(at_one_ms)
    found = saturation(cell(policy="random", load=0.7), "lpwl", fleet.run)
    crossing = (500.0 / at_one_ms) ** 0.5
    assert crossing / (1 + PRECISION) <= found.rate <= crossing
    assert found.arrivals_per_s == pytest.approx(3.0 * found.rate)
    assert {one.policy for one in fleet.cells} == {"lpwl"}
    assert {one.seed for one in fleet.cells} == {0, 1, 2}
    assert all(one.load is None for one in fleet.cells)


def test_a_fleet_that_never_saturates_is_too_large(cell):
    with pytest.raises(SaturationError, match="below --slo's 500 ms; take fewer --workers"):
        saturation(cell(), "lpwl", Fleet(1.0, power=0.0).run)


def test_where_the_rate_changes_nothing_there_is_no_load_to_set(cell):
    fleet = Fleet(1_000.0)
    at_once = [fleet._result(cell(seed=seed)) for seed in range(3)]
    with pytest.raises(
        SaturationError, match=r"the same is asked at 0\.5 times its own rate as at 1: its sessions arrive all"
    ):
        saturation(cell(), "lpwl", lambda cells: at_once)


def test_a_rate_at_which_next_to_nothing_is_sent_proves_nothing(cell):
    with pytest.raises(SaturationError, match=r"only .* calls are left to measure.*make --window-s longer"):
        saturation(cell(), "lpwl", Fleet(1_000.0, power=0.05).run)


def test_a_fleet_that_turns_everything_away_does_not_keep_up(cell):
    fleet = Fleet(0.0)
    fleet.rejects = 1.0
    with pytest.raises(SaturationError, match=r"only 0 calls, beside 30000 that were turned away,.* more --kv-tokens"):
        saturation(cell(), "lpwl", fleet.run)
    assert len(fleet.cells) == 3, "one rate was tried"


def test_a_level_that_cannot_be_met_is_too_strict(cell):
    fleet = Fleet(1_000.0, power=0.0, calls=10_000_000)
    with pytest.raises(
        SaturationError, match=r"is above --slo's 500 ms at every rate .* take a faster --profile or a laxer --slo"
    ):
        saturation(cell(), "lpwl", fleet.run)


class Idle(Fleet):
    """One that takes `least_ms` even for calls that do not meet, and as long again at the trace's own rate."""

    def __init__(self, least_ms):
        super().__init__(least_ms, power=1.0, calls=1_000_000)
        self.least_ms = least_ms

    def _result(self, cell):
        found = super()._result(cell)
        waits = found.measures.all.ttft_p90_ms if cell.rate > 0.01 else 0.0
        figures = msgspec.structs.replace(found.measures.all, ttft_p90_ms=self.least_ms + waits)
        return Found(Measured(figures, found.measures.arrivals_per_s))


def test_a_level_that_an_idle_fleet_misses_ends_the_search_early_and_names_the_least_p90(cell):
    fleet = Idle(800.0)
    with pytest.raises(SaturationError, match=r"the least seen is 800 ms, at 0\.0078125 times it; take a faster"):
        saturation(cell(), "lpwl", fleet.run)
    assert len({one.rate for one in fleet.cells}) <= 10


def test_a_level_just_above_what_an_idle_fleet_takes_is_still_found(cell):
    found = saturation(cell(), "lpwl", Idle(495.0).run)
    assert found.rate == pytest.approx(5.0 / 495.0, rel=2 * PRECISION)


def test_long_prompts_on_a_slow_fleet_end_the_search_on_virtual_time(cell, tmp_path):
    """Recorded calls of 40,000 tokens: the search went on to rates at which the recording lasts for weeks."""
    trace = tmp_path / "long.jsonl"
    rows = [
        {
            "timestamp": 3_000 * n,
            "input_length": 40_000,
            "output_length": 4,
            "hash_ids": list(range(79 * n, 79 * n + 79)),
        }
        for n in range(24)
    ]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    long = cell({"warm_up_s": 6.0, "block_tokens": 512, "kv_tokens": None})
    fleet = replace(long.setting.fleet, profile="llama-3.1-70b-4xh100")
    setting = replace(long.setting, fleet=fleet, slo=Slo(2000.0, 200.0), window_s=72.0)
    tried = []

    def run(cells):
        tried.append(cells[0].rate)
        assert len(tried) <= 9, f"still looking at {tried[-1]} times the rate"
        return [Found(run_cell(each)) for each in cells]

    with pytest.raises(SaturationError, match=r"at every rate down to .* the least seen is 3\d\d\d ms, at"):
        saturation(replace(long, trace=str(trace), setting=setting), "lpwl", run, seeds=1)
