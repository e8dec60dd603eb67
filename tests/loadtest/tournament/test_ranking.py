from dataclasses import replace

import msgspec
import pytest

from loadtest.tournament.ranking import holds, losses, matches


def test_every_workload_load_and_measure_is_a_match_with_its_best_first(scores):
    found = list(matches(scores))
    assert len(found) == 2 * 3 * 3
    firsts = {(one.workload.name, one.load, one.measure.name): one.first.policy for one in found}
    assert firsts["first", 0.5, "ttft_mean_ms"] == "ours"
    assert firsts["first", 1.05, "ttft_mean_ms"] == "a"
    assert firsts["second", 0.5, "ttft_mean_ms"] == "b"
    assert firsts["second", 0.9, "ttft_p99_ms"] == "b"
    assert firsts["second", 0.9, "goodput_per_s"] == "ours", "equal means: the rule judged is named first"
    busy = next(
        one for one in found if (one.workload.name, one.load, one.measure.name) == ("first", 0.9, "ttft_p99_ms")
    )
    assert [one.policy for one in busy.standings] == ["ours", "b", "a"]


def test_losses_are_the_matches_neither_won_nor_held_the_worst_first(scores):
    found = losses(scores)
    assert [(one.match.workload.name, one.match.load, one.match.measure.name) for one in found] == [
        ("first", 1.05, "ttft_mean_ms"),
        ("second", 0.9, "ttft_p99_ms"),
    ]
    assert [one.ours.difference for one in found] == pytest.approx([0.1, 0.04])
    assert [one.heavy for one in found] == [True, False]
    assert [one.why for one in found] == ["worse", "worse"]


def test_one_per_cent_behind_on_every_seed_is_held(scores):
    (match,) = (
        one
        for one in matches(scores)
        if (one.workload.name, one.load, one.measure.name) == ("second", 0.5, "ttft_mean_ms")
    )
    assert holds(match.of("ours")) and not match.of("ours").best
    assert not holds(match.of("a"))


def test_an_undecided_match_is_listed_as_a_loss(scores):
    rows = [
        msgspec.structs.replace(row, values=row.values | {"ttft_mean_ms": [90.0, 110.0, 106.0]})
        if (row.policy, row.load) == ("ours", 0.5)
        else row
        for row in scores.workloads[1].rows
    ]
    second = msgspec.structs.replace(scores.workloads[1], rows=rows)
    steady = {"ttft_mean_ms": [100.0, 100.0, 100.0]}
    rows = [
        msgspec.structs.replace(row, values=row.values | steady) if (row.policy, row.load) == ("b", 0.5) else row
        for row in second.rows
    ]
    changed = msgspec.structs.replace(scores, workloads=[msgspec.structs.replace(second, rows=rows)])
    (found,) = (one for one in losses(changed) if one.match.load == 0.5)
    assert found.ours.difference == pytest.approx(0.02)
    assert found.why == "undecided, and not shown to be within 2 %" and not found.heavy
    alone = replace(found, ours=replace(found.ours, not_inferior=None, worse=None))
    assert alone.why == "one seed decides nothing"
