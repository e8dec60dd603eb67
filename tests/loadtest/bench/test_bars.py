"""The bars of what things cost: intervals, verdicts and the page."""

import itertools
import json
import statistics

import pytest

from loadtest.bench import bars
from loadtest.bench.bars import interval, ratio_of_medians
from loadtest.bench.bodies import next_turns
from loadtest.bench.measures import requests
from loadtest.bench.measures.sample import Sample
from loadtest.bench.page import page
from loadtest.bench.proxies.peers import ROUTERS
from loadtest.bench.proxies.warmroute import COMPILED, SOURCE
from loadtest.bench.results import Results, Row


def sample(value, errors=0):
    return Sample(value, 500.0, errors, ("status 503",) if errors else ())


@pytest.fixture
def results():
    rows = [Row(name, "1", "a setting") for name in (SOURCE, COMPILED, *ROUTERS)]
    return Results("a command", "2026-11-26", "A CPU, 2 cores", 6, 0.6, 32, 250, rows, 0.0, True)


def row(results, figure, ours):
    return next(
        row for bar, row in zip(bars.BARS, bars.rows(results), strict=True) if (bar.figure, bar.ours) == (figure, ours)
    )


def test_the_interval_repeats_and_holds_the_median():
    ratios = [0.97, 0.99, 1.0, 1.0, 1.01, 1.01, 1.02, 1.02, 1.03, 1.05]
    low, high = interval(ratios, statistics.median)
    assert 0.97 < low < 1.01 < high < 1.05
    assert interval(ratios, statistics.median) == (low, high)


def test_equal_ratios_have_an_interval_without_width():
    assert interval([1.02] * 10, statistics.median) == (1.02, 1.02)


def test_the_ratio_is_that_of_the_medians():
    assert ratio_of_medians([(1.0, 10.0), (2.0, 4.0), (9.0, 5.0)]) == 2.0 / 5.0


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        ((90.0, 95.0, 97.0, 99.0), "met"),
        ((101.0, 120.0, 130.0, 150.0), "missed"),
        ((90.0, 95.0, 120.0, 150.0), "not decided"),
    ],
)
def test_a_bar_is_decided_by_the_whole_interval(results, ours, verdict):
    for value in ours:
        results.add("request-2k", COMPILED, sample(value))
        results.add("request-2k", "smg", sample(100.0))
    assert row(results, "request-2k", COMPILED)[-1] == verdict


def test_too_few_rounds_that_count_decide_nothing(results):
    for errors in (0, 0, 0, 1):
        results.add("request-2k", COMPILED, sample(90.0))
        results.add("request-2k", "smg", sample(100.0, errors))
    assert row(results, "request-2k", COMPILED)[-1] == "too few rounds"
    assert "This page is no result" in page(results)
    results.add("request-2k", COMPILED, sample(90.0))
    results.add("request-2k", "smg", sample(100.0))
    assert row(results, "request-2k", COMPILED)[-1] == "met"
    assert "This page is no result" not in page(results)


def test_the_peer_with_the_least_median_is_compared(results):
    for cheap in (50.0, 60.0, 70.0):
        results.add("request-2k", SOURCE, sample(90.0))
        results.add("request-2k", "sglang-router", sample(cheap))
        results.add("request-2k", "smg", sample(65.0))
        results.add("request-2k", "vllm-router", sample(1.0, errors=1))
    _, of, against, measured, *_ = row(results, "request-2k", SOURCE)
    assert (of, against, measured) == (SOURCE, "sglang-router", "1.50 x")


def test_a_bar_without_peers_is_in_its_own_unit(results):
    for _ in range(4):
        results.add(requests.P50, COMPILED, sample(0.4))
    assert row(results, requests.P50, COMPILED)[2:] == ["-", "0.40 ms", "0.40 to 0.40", "0.5 ms", "met"]


def test_a_figure_with_errors_has_failed_and_is_named(results):
    for errors in (0, 0, 0, 0, 3):
        results.add("request-2k", COMPILED, sample(1.0, errors))
        results.add("request-2k", "smg", sample(100.0))
    assert row(results, "request-2k", COMPILED)[2:] == ["smg", "3 failed", "", "1 x", "failed"]
    assert "warmroute compiled, request-2k: 3 failed (status 503)" in page(results)


def test_each_next_turn_asks_something_new_after_the_same_conversation():
    windows = [list(itertools.islice(next_turns("http://a:1"), 2)) for _ in range(2)]
    asked = [json.loads(request.partition(b"\r\n\r\n")[2])["messages"] for window in windows for request in window]
    assert all(messages[:-1] == asked[0][:-1] and len(messages) == 41 for messages in asked)
    assert len({messages[-1]["content"] for messages in asked}) == 4
