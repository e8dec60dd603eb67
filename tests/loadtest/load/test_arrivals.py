import asyncio
import time
from itertools import accumulate, islice, pairwise
from math import inf
from statistics import fmean, stdev

import pytest

from loadtest.load.arrivals import Rates, arrivals
from loadtest.load.pacer import Pacer
from loadtest.workload.errors import WorkloadError


@pytest.mark.parametrize("burstiness", [0.5, 1.0, 4.0, inf])
def test_the_last_of_n_requests_is_due_at_n_over_the_rate(burstiness):
    times = list(arrivals(Rates.constant(4.0), burstiness, 1, 2_000))
    assert times[-1] == pytest.approx(500.0)
    gaps = [later - earlier for earlier, later in pairwise([0.0, *times])]
    spread = stdev(gaps) / fmean(gaps)  # of a gamma distribution: 1 / sqrt(shape)
    assert spread == pytest.approx(0.0 if burstiness == inf else burstiness**-0.5, abs=0.06)


def test_times_without_end_keep_the_rate():
    assert list(islice(arrivals(Rates.constant(10.0), 1.0, 2), 50_000))[-1] == pytest.approx(5_000, rel=0.02)


def test_equal_seeds_are_equal_times():
    one, same, other = (list(arrivals(Rates.constant(1.0), 1.0, seed, 9)) for seed in (3, 3, 4))
    assert one == same != other


@pytest.mark.parametrize("exponential", [False, True])
def test_a_ramp_has_its_rate_at_each_end(exponential):
    times = list(islice(arrivals(Rates.ramp(1.0, 16.0, 100.0, exponential), inf, 0), 3_000))
    expected = 850.0 if not exponential else 15.0 * 100.0 / 2.772588722239781
    assert sum(at_s < 100.0 for at_s in times) == pytest.approx(expected, abs=2.0)
    assert times[-1] - times[-2] == pytest.approx(1 / 16)


def test_a_series_follows_its_points(tmp_path):
    file = tmp_path / "rates.csv"
    file.write_text("time_s,rate\n0,0\n10,20\n20,20\n30,0\n30.001,5\n")
    times = list(islice(arrivals(Rates.series(file), inf, 0), 410))
    assert [sum(low <= at_s < low + 10 for at_s in times) for low in (0, 10, 20)] == [99, 200, 100]
    assert times[-1] - times[-2] == pytest.approx(0.2)


@pytest.mark.parametrize("rows", ["0,1\n0,2", "0,0", "0,-1\n1,1", "0,x", "0,inf"])
def test_a_wrong_series_is_refused(tmp_path, rows):
    file = tmp_path / "rates.csv"
    file.write_text(f"time_s,rate\n{rows}\n")
    with pytest.raises(WorkloadError):
        Rates.series(file)


async def test_a_pacer_calls_in_order_and_ends():
    called = []
    begin_s = time.monotonic()
    due = list(accumulate([0.001] * 20, initial=begin_s))
    pacer = Pacer(called.append, iter(due))
    await asyncio.wait_for(pacer.over, 5.0)
    pacer.stop()
    assert called == due and time.monotonic() >= due[-1]


@pytest.mark.parametrize("wrong", ["times", "call"])
async def test_an_error_in_a_call_or_in_the_times_ends_a_pacer(wrong):
    def times():
        yield time.monotonic()
        if wrong == "times":
            raise ValueError("no time")
        yield time.monotonic()

    def called(due_s):
        if wrong == "call":
            raise ValueError("no call")

    pacer = Pacer(called, times())
    with pytest.raises(ValueError, match=r"no (time|call)"):
        await asyncio.wait_for(pacer.over, 5.0)
    pacer.stop()
