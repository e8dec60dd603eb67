"""From outcomes to tables, by hand."""

import io
import json

import pytest
from rich.console import Console

from loadtest.approximate import table
from loadtest.approximate.contenders import Contender, Family, contenders
from loadtest.approximate.score import Score, Showing, errors, score
from loadtest.approximate.workloads import workloads
from loadtest.sim.outcome import Ending, Outcome
from loadtest.sim.run import Run


def outcome(ending=Ending.FINISHED, ttft_s=0.1, prompt=100, predicted=16, cached=32, direct=False):
    return Outcome("c", "s", ending, "w", 0.0, 1.0, ttft_s, prompt, 3, predicted, cached, direct)


def made(seed, ttft_ms=10.0, cached=50, wrong=()):
    return Score(seed, 2, 100, cached, ttft_ms, ttft_ms, ttft_ms, 0.5, tuple(wrong))


def showing(name, family, *scores):
    return Showing(Contender(name, family, lambda time: None), scores)


def test_only_answered_calls_through_the_gateway_count():
    outcomes = (
        outcome(),
        outcome(ttft_s=0.3, predicted=None),
        outcome(ending=Ending.LEFT, ttft_s=9.0),
        outcome(direct=True, ttft_s=9.0),
    )
    found = score(Run(outcomes, ({"busy_s": 1.0}, {"busy_s": 3.0}), 4.0), seed=7)
    assert (found.seed, found.calls, found.cached_share, found.errors_tokens) == (7, 2, 0.32, (-16,))
    assert (found.ttft_mean_ms, found.busy_share) == (pytest.approx(200.0), 0.5)


def test_a_run_without_calls_scores_nothing():
    found = score(Run((), ({"busy_s": 0.0},), 0.0), 0)
    assert (found.calls, found.cached_share, found.ttft_mean_ms, found.busy_share) == (0, 0.0, 0.0, 0.0)


def test_errors_of_all_seeds_together():
    found = errors([made(0, wrong=[0, 16]), made(1, wrong=[-16, -100])], block_tokens=16)
    assert found is not None
    assert (found.mean, found.p50, found.equal, found.within_a_block) == (-25.0, -8.0, 0.25, 0.75)
    assert errors([made(0)], 16) is None


def test_ours_is_compared_with_the_best_of_each_kind_seed_by_seed():
    shown = [
        showing("ours", Family.OURS, made(0, 8.0, 60), made(1, 12.0, 60)),
        showing("slow", Family.FIXED_TTL, made(0, 30.0), made(1, 30.0)),
        showing("fast", Family.FIXED_TTL, made(0, 10.0), made(1, 15.0)),
        showing("even", Family.BLIND_LRU, made(0, 8.0, 0), made(1, 12.0, 60)),
    ]
    best, even = table.compare("w", shown)
    assert (best.rival, best.ttft.mean, best.ttft.half, best.verdict) == ("fast", 0.8, 0.0, "better")
    assert best.cached.mean == pytest.approx(1.2)
    assert (even.rival, even.verdict, even.cached.mean) == ("even", "no difference shown", 1.0)
    assert (
        table.compare("w", [shown[0], showing("best", Family.NONE, made(0, 4.0), made(1, 6.0))])[0].verdict == "worse"
    )


def test_one_seed_shows_no_difference():
    (one,) = table.compare("w", [showing("a", Family.OURS, made(0, 1.0)), showing("b", Family.NONE, made(0, 9.0))])
    assert one.verdict == "no difference shown"


def test_every_view_is_scored_and_only_the_exact_one_reads_events():
    listed = contenders(65_000)
    assert {one.family for one in listed} == set(Family)
    assert [one.name for one in listed if one.publishes_events] == ["exact, by events"]
    assert len({one.name for one in listed}) == len(listed)


def test_tables_name_every_view_with_its_figures(tmp_path):
    shown = [
        showing("ours", Family.OURS, made(0, 8.0, 60, [0, 16]), made(1, 12.0, 60, [0, 0])),
        showing("none", Family.NONE, made(0, 10.0, 20), made(1, 20.0, 20)),
    ]
    console = Console(width=table.WIDTH, file=io.StringIO())
    table.print_workload(console, workloads(None)[0], shown)
    table.print_comparisons(console, table.compare("shared-prompts", shown))
    text = console.file.getvalue()
    assert "4 answered calls, seeds 0, 1" in text and "0.600 ±0.000" in text and "0.750" in text
    path = tmp_path / "scores.json"
    table.write_json(path, {"shared-prompts": shown})
    written = json.loads(path.read_text())["shared-prompts"]
    assert [row["cached_share"] for row in written["none"]] == [0.2, 0.2]
