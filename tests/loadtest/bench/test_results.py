"""What rounds come to: ratios within a round, failures that do not count, bars and their verdicts, and the page."""

import re
import statistics

import pytest

from loadtest.bench import bars
from loadtest.bench.bars import interval, ratio_of_medians
from loadtest.bench.measures import requests
from loadtest.bench.measures.catalogue import FIGURES, KINDS, NAMES, chosen
from loadtest.bench.measures.sample import Sample
from loadtest.bench.page import page
from loadtest.bench.proxies.against import ROUTERS
from loadtest.bench.proxies.warmroute import COMPILED, SOURCE
from loadtest.bench.results import Results, Row, this_machine


def sample(value, errors=0, skipped=""):
    return Sample(value, 500.0, errors, ("status 503",) if errors else (), skipped)


@pytest.fixture
def results():
    rows = [
        Row("warmroute", "0.1.0", "default", states=["exact"]),
        Row("nginx", "1.22.1", "one worker"),
        Row("slow", "1"),
        Row("gone", missing="not installed"),
    ]
    results = Results("a command", "2026-11-21", "A CPU, 2 cores", 2, 2.0, 32, 500, rows, 0.4)
    for base, ours, slow in ((10.0, 20.0, 900.0), (20.0, 30.0, 900.0)):
        for figure in ("request-2k", "tokens-64", "first byte p50"):
            results.add(figure, "nginx", sample(base))
            results.add(figure, "warmroute", sample(ours))
            results.add(figure, "slow", sample(slow))
    return results


def test_ratios_are_taken_within_a_round(results):
    assert results.pairs("request-2k", "warmroute", "nginx") == [(20.0, 10.0), (30.0, 20.0)]
    assert results.values("request-2k", "warmroute") == [20.0, 30.0]


def test_a_round_with_failures_counts_for_nothing_and_is_said(results):
    results.add("request-2k", "nginx", sample(1.0, errors=3))
    results.add("request-2k", "warmroute", sample(99.0))
    assert len(results.pairs("request-2k", "warmroute", "nginx")) == 2
    assert results.complaints() == ["nginx, request-2k: 3 failed (status 503)"]
    assert "3 failed" in page(results)


def test_a_proxy_that_fails_to_start_once_is_struck(results):
    results.strike("slow", "did not start: out of luck")
    assert results.values("request-2k", "slow") == []
    assert "not measured: did not start: out of luck" in page(results)
    assert results.complaints()


def test_a_proxy_that_was_not_measured_is_named(results):
    results.samples["tokens-64"]["slow"] = [sample(0.0, skipped="passes 10 tokens/s")] * 2
    assert results.skipped("tokens-64", "slow")
    assert results.complaints() == []
    assert "passes 10 tokens/s" in page(results)


def test_the_page_says_where_it_was_made_and_with_what(results):
    text = page(results)
    for said in (
        "a command",
        "A CPU, 2 cores",
        "| nginx | 1.22.1 |",
        "Other programs used 40% of the CPUs",
        "| CPU per request, 2 kB body | 1.67 (1.50 to 2.00) | 0.03 (0.02 to 0.03) |",
        "exact",
        "not measured: not installed",
    ):
        assert said in text


def test_every_measure_and_part_can_be_chosen_and_gives_known_figures():
    assert chosen(NAMES) == list(KINDS)
    assert [kind.name for kind in chosen(["tokens-64", "first-byte"])] == ["tokens-64", "first-byte"]
    assert {figure for kind in KINDS for figure in kind.figures} == set(FIGURES)


def test_this_machine_has_a_name_and_cores():
    assert re.search(r"\w.*, \d+ cores, [\d.]+ GiB, \w+ [\d.]+, Python 3", this_machine())


@pytest.fixture
def bench():
    rows = [Row(name, "1", "a setting") for name in (SOURCE, COMPILED, *ROUTERS)]
    return Results("a command", "2026-11-26", "A CPU, 2 cores", 6, 0.6, 32, 250, rows, 0.0, True)


def row(bench, figure, ours):
    title = FIGURES[figure].title
    return next(row for row in bars.rows(bench) if row[:2] == [title, ours])


def test_a_bar_that_the_run_did_not_measure_has_no_row(bench):
    assert list(bars.rows(bench)) == []
    bench.add("request-2k", SOURCE, sample(90.0))
    assert [row[1] for row in bars.rows(bench)] == [SOURCE]


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
        ((90.0, 95.0, 97.0, 125.0), "met"),
        ((126.0, 140.0, 150.0, 160.0), "missed"),
        ((90.0, 95.0, 140.0, 160.0), "not decided"),
    ],
)
def test_a_bar_is_decided_by_the_whole_interval(bench, ours, verdict):
    for value in ours:
        bench.add("request-2k", COMPILED, sample(value))
        bench.add("request-2k", "smg", sample(100.0))
    assert row(bench, "request-2k", COMPILED)[-1] == verdict


def test_too_few_rounds_that_count_decide_nothing(bench):
    for errors in (0, 0, 0, 1):
        bench.add("request-2k", COMPILED, sample(90.0))
        bench.add("request-2k", "smg", sample(100.0, errors))
    assert row(bench, "request-2k", COMPILED)[-1] == "too few rounds"
    bench.add("request-2k", COMPILED, sample(90.0))
    bench.add("request-2k", "smg", sample(100.0))
    assert row(bench, "request-2k", COMPILED)[-1] == "met"


def test_the_peer_with_the_least_median_is_compared(bench):
    for cheap in (50.0, 60.0, 70.0):
        bench.add("request-2k", SOURCE, sample(90.0))
        bench.add("request-2k", "sglang-router", sample(cheap))
        bench.add("request-2k", "smg", sample(65.0))
        bench.add("request-2k", "vllm-router", sample(1.0, errors=1))
    _, of, against, measured, *_ = row(bench, "request-2k", SOURCE)
    assert (of, against, measured) == (SOURCE, "sglang-router", "1.50 x")


def test_a_bar_without_peers_is_in_its_own_unit(bench):
    for _ in range(4):
        bench.add(requests.P50, COMPILED, sample(0.4))
    assert row(bench, requests.P50, COMPILED)[2:] == ["-", "0.40 ms", "0.40 to 0.40", "0.7 ms", "met"]


def test_a_figure_with_errors_has_failed_and_is_named(bench):
    for errors in (0, 0, 0, 0, 3):
        bench.add("request-2k", COMPILED, sample(1.0, errors))
        bench.add("request-2k", "smg", sample(100.0))
    assert row(bench, "request-2k", COMPILED)[2:] == ["smg", "3 failed", "", "1.25 x", "failed"]
    assert "warmroute compiled, request-2k: 3 failed (status 503)" in page(bench)
