"""A stream with known times gives the exact value of each measure."""

import pytest

from loadtest.load.records import Answered, Record, meets, record
from loadtest.load.seen import Kind, Seen
from loadtest.load.tally import Ordered, Sample, Tally, group
from loadtest.workload.plan import Session


def seen(kind=Kind.COMPLETE, **fields):
    """A chat intended at 100: sent 0.1 s late, role after 0.3 s, reasoning at 0.5 s, text at 0.6 and 0.9 s."""
    values = {"chunk_s": 100.3, "answer_s": 100.6, "stamps_s": [100.5, 100.6, 100.9], "completion_tokens": 5}
    one = Seen(100.0, kind, sent_s=100.1, ended_s=101.0, **{**values, **fields})
    return record(Answered(Session("a", 0.0, ()), 1, "chat", one, begin_s=90.0))


def tallied(records, goals):
    tally = Tally(goals)
    for one in records:
        tally.add(one)
    return tally


def grouped(records):
    groups = {}
    for one in records:
        group(groups, one, {})
    return groups


def test_each_measure_has_its_definition():
    values = {name: [round(each, 6) for each in found] for name, found in seen().values_s.items()}
    assert values == {
        "ttft": [0.5],  # reasoning is a token, the role is none
        "ttfc": [0.2],  # as vllm bench: the role, from the time of sending
        "ttfo": [0.6],
        "tpot": [0.1],  # five tokens in three events: 0.4 s / 4
        "itl": [0.1, 0.3],
        "e2el": [1.0],
        "ntpot": [0.2],
        "wait": [0.1],
    }


def test_an_answer_of_one_token_has_no_tpot_and_meets_its_goal():
    one = seen(stamps_s=[100.5], completion_tokens=1)
    assert "tpot" not in one.values_s and one.values_s["itl"] == []
    assert meets(one.values_s, {"tpot": 0.001})


def test_tokens_that_nobody_reports_are_the_events_with_text():
    one = seen(completion_tokens=0)
    assert (one.completion_tokens, one.counted) == (3, False)


@pytest.mark.parametrize(
    ("goals", "met"), [({}, True), ({"ttft": 0.51, "tpot": 0.11}, True), ({"ttft": 0.49}, False), ({"itl": 0.2}, False)]
)
def test_a_goal_is_met_by_all_values(goals, met):
    assert meets(seen().values_s, goals) is met


def test_a_failure_is_a_miss_and_in_no_percentile():
    late, failed = seen(), seen(Kind.ERROR_EVENT)
    tally = tallied([seen(stamps_s=[100.2, 100.3]), late, failed], {"ttft": 0.3})
    assert (tally.total, tally.completed, tally.failed, tally.met) == (3, 2, 1, 1)
    assert tally.samples["ttft"].count == 2 and tally.cached_share is None


def test_the_cached_share_counts_the_answers_that_report_it():
    says, silent = seen(prompt_tokens=100, cached_tokens=80, says_cached=True), seen(prompt_tokens=500)
    assert tallied([says, silent], {}).cached_share == 0.8


def test_groups_are_classes_and_turns():
    assert set(grouped([seen()])) == {"class chat", "turn 1"}
    many = [Record(id="", kind=str(place), turn=0, intended_s=0, sent_s=0, ended_s=1) for place in range(50)]
    assert len(grouped(many)) == 33


def test_percentiles_have_intervals_where_there_are_enough_values():
    ordered = Ordered([float(value) for value in range(1_000)])
    assert ordered.at(0.5) == 499.5
    assert ordered.interval(0.5) == (469.0, 531.0)
    assert ordered.interval(0.99) == (983.0, 997.0)
    assert Ordered([1.0, 2.0]).interval(0.99) is None


def test_a_sample_beyond_its_bound_stays_a_fair_one(monkeypatch):
    monkeypatch.setattr("loadtest.load.tally.KEPT", 1_000)
    sample = Sample()
    for value in range(20_000):
        sample.extend([float(value)])
    assert (sample.count, sample.mean, len(sample.ordered().values)) == (20_000, 9_999.5, 1_000)
    assert sample.std == pytest.approx(5_773.5, abs=1)
    assert sample.ordered().at(0.5) == pytest.approx(10_000, rel=0.1)
