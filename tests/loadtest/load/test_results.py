from itertools import count

import msgspec
import pytest

from loadtest.load.records import Record
from loadtest.load.results import Results
from loadtest.load.seen import Kind
from loadtest.report.verdict import Answer
from tests.loadtest.load.test_steady import queue


def made(number, ttft_s=0.1, outcome=Kind.COMPLETE):
    at_s = number * 0.5
    return Record(
        id=str(number), kind="k", turn=1, intended_s=at_s, sent_s=at_s, token_s=[at_s + ttft_s] * 2, ended_s=at_s + 1,
        completion_tokens=1, outcome=outcome, error="" if outcome is Kind.COMPLETE else "refused",
    )  # fmt: skip


def results(*records, goals=None, **fields):
    one = Results(goals or {}, **fields)
    one.add(records)
    return one


def test_the_warm_up_counts_nowhere_and_the_window_ends_with_the_last_arrival():
    one = results(*map(made, range(20)), warm_up_s=2.0)
    assert (one.warm_up, one.tally.total, one.first_s, one.last_arrival_s, one.last_end_s) == (4, 16, 2.0, 9.5, 10.5)
    assert (one.duration_s, one.window_s, one.most_at_once()) == (8.5, 7.5, 2)
    assert one.window_rate() == pytest.approx(14 / 7.5)


@pytest.mark.parametrize(
    ("late", "refused", "answer"),
    [(0, 0, Answer.MET), (0, 1, Answer.UNDECIDED), (1, 0, Answer.UNDECIDED), (20, 20, Answer.NOT_MET)],
)
def test_the_goal_of_459_requests(late, refused, answer):
    numbers = count()
    records = [made(next(numbers)) for _ in range(459 - late - refused)]
    records += [made(next(numbers), ttft_s=0.9) for _ in range(late)]
    records += [made(next(numbers), outcome=Kind.REFUSED) for _ in range(refused)]
    assert results(*records, goals={"ttft": 0.5}).judged().answer is answer


def test_an_overloaded_endpoint_meets_no_goal_even_if_it_seems_to():
    judged = results(*queue(1.2, 60.0, 1), goals={"ttft": 1_000.0}).judged()
    assert judged.saturated is not None
    assert (judged.goal.answer, judged.answer) == (Answer.MET, Answer.UNDECIDED)


def test_a_slow_client_decides_nothing():
    one = results(*map(made, range(600)), goals={"ttft": 0.5})
    assert one.judged().answer is Answer.MET
    one.add([], [0.5] * 60_000)
    assert one.judged().answer is Answer.UNDECIDED


def test_no_answer_at_all_is_not_met():
    assert results(made(0, outcome=Kind.REFUSED)).judged().answer is Answer.NOT_MET


def test_kept_records_are_bounded(monkeypatch):
    monkeypatch.setattr("loadtest.load.results.KEPT_RECORDS", 50)
    one = results(*map(made, range(1_000)))
    assert len(one.kept) == 50 and one.tally.total == 1_000
    assert {len(each.token_s) for each in one.kept} == {1}
    assert 100 < sum(each.intended_s for each in one.kept) / 50 < 400


def test_errors_that_all_differ_are_bounded():
    failed = [msgspec.structs.replace(made(number, outcome=Kind.CUT), error=f"e{number}") for number in range(100)]
    assert len(results(*failed).tally.errors) == 33 and results(*failed).tally.failed == 100
