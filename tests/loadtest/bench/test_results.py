"""What rounds come to: ratios within a round, failures that do not count, and the page."""

import re

import pytest

from loadtest.bench.measures.catalogue import FIGURES, KINDS, NAMES, chosen
from loadtest.bench.measures.sample import Sample
from loadtest.bench.page import page
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
