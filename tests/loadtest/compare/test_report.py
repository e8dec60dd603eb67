import json
from dataclasses import replace

import pytest
from msgspec import structs

from loadtest.compare.findings import Findings, Seed
from loadtest.compare.modelled import play
from loadtest.compare.report import page, summary, write
from loadtest.compare.trial import Trial, Usage
from loadtest.lab.saturation import Saturation

USAGE = Usage(9.0, 3.5)
SLOWER = {"lpwl": 1.0, "round_robin": 1.5}
ONE = Saturation("lpwl", 1.2, 12.0)


@pytest.fixture
def findings(cell):
    """Three seeds in which round robin takes half as long again live, and as `modelled` says in virtual time."""
    base = play(replace(cell, rate=0.5), 1.0)

    def timed(seed, factor):
        figures = structs.replace(base.all, ttft_mean_ms=(100.0 + seed) * factor, hit_share=0.5 / factor)
        return structs.replace(base, all=figures)

    def found(modelled, seeds=3, saturation=ONE, errors=(), names=tuple(SLOWER), rules=tuple(SLOWER)):
        runs = [
            Seed(
                seed,
                {rule: Trial(timed(seed, factor), USAGE, errors) for rule, factor in SLOWER.items()},
                {rule: timed(seed, factor) for rule, factor in modelled.items()},
            )
            for seed in range(seeds)
        ]
        return Findings(replace(cell, load=0.85), "embedded", 2.0, names, rules, saturation, runs)

    return found


def test_the_page_has_both_sides(findings):
    lines = page(findings(SLOWER)).splitlines()
    assert next(line for line in lines if line.startswith("| round_robin |")).startswith(
        "| round_robin | 152 ±4 | 152 ±4 |"
    )
    assert "| lpwl, live | 0.667 ±0.000 |" in "\n".join(lines)
    assert "imbalance: live | imbalance: model |" in next(line for line in lines if "hit / prompt tokens: live" in line)
    assert "| router CPU, ms/call | 9.0 (up to 9.0) | 9.0 (up to 9.0) |" in lines


def test_one_seed_has_no_interval(findings):
    assert "| round_robin | 150 | 150 |" in page(findings(SLOWER, seeds=1))


def test_the_page_names_the_setting(findings):
    said = summary(findings(SLOWER))
    assert "2 embedded workers (llama-3.1-8b-h100, step times stretched by 2, 40,000 tokens of KV cache each)" in said
    assert "load 0.85 of saturation (12.00 calls/s at 1.0)" in said
    assert "in 4 of 5 s. SLO: TTFT 200 ms, TPOT 50 ms." in said
    assert "at 1 times the trace's own rate" in summary(findings(SLOWER, saturation=None))


def test_every_run_is_in_the_results(findings, tmp_path):
    found = findings(SLOWER, errors=("status 500",))
    write(tmp_path, found, {"lpwl": "warmroute serve"})
    document = json.loads((tmp_path / "results.json").read_text())
    assert document["commands"] == {"lpwl": "warmroute serve"}
    assert document["saturation"]["arrivals_per_s"] == 12.0
    assert document["seeds"][2]["live"]["round_robin"]["measures"]["all"]["ttft_mean_ms"] == 153.0
    assert document["seeds"][2]["live"]["round_robin"]["usage"]["client_lag_p99_ms"] == 3.5
    assert document["seeds"][0]["modelled"]["lpwl"]["all"]["ttft_mean_ms"] == 100.0
    assert found.errors()[0] == "lpwl, seed 0: status 500"


def test_a_router_without_a_model_has_live_values_only(findings):
    found = findings({"lpwl": 1.0}, names=tuple(SLOWER), rules=("lpwl",))
    lines = page(found).splitlines()
    assert found.baseline == "lpwl"
    assert "| round_robin, live | 1.500 ±0.000 |" in "\n".join(lines)
    assert next(line for line in lines if line.startswith("| round_robin |")).startswith("| round_robin | 152 ±4 |  |")
    assert not [line for line in lines if line.startswith("| round_robin, model")]
