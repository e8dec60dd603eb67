"""Searches of the command over runs that a queue with constant service answers at once."""

import pytest
from rich.console import Console

from loadtest.load.records import Record
from loadtest.load.search.find import find, steps
from loadtest.report.verdict import Answer
from tests.loadtest.load.test_command import order, parsed
from tests.loadtest.load.test_steady import queue

URL = "http://h:1"
CAPACITY = 40.0
"""Requests per second of the queue."""


def play(one, results, name):
    """Answer an order: by rate from the queue, else a closed loop that grows to 16 requests at once."""
    if one.rates is not None:
        rate = one.rates.points[0][1]
        results.add(queue(rate / CAPACITY, one.num_prompts / rate, one.seed))
        return results
    for number in range(20):
        at_s = number * max(1.0, 16 / one.max_concurrency)
        fields = {"intended_s": at_s, "sent_s": at_s, "token_s": [at_s + 0.1], "ended_s": at_s + 1}
        results.add([Record(id="", kind="", turn=1, completion_tokens=10, **fields)])
    return results


def found(*flags):
    console = Console(record=True, width=100)
    answer, told = find(parsed(URL, *flags), order(*flags), console, play)
    return answer, told, console.export_text()


def test_the_highest_rate_is_near_the_capacity_and_each_run_has_other_prompts():
    answer, told, said = found("--find", "goodput", "--goodput", "ttft:250", "--attainment", "0.9")
    assert answer is not Answer.NOT_MET
    assert 0.6 * CAPACITY < told["holds"] < told["fails"] <= 1.1 * told["holds"] < 1.3 * CAPACITY
    assert "requests/s hold" in said and len(told["runs"]) >= 6


def test_a_goal_that_no_rate_meets_is_not_met():
    answer, told, said = found("--find", "goodput", "--goodput", "ttft:1")
    assert (answer, told["holds"], told["stop"]) == (Answer.NOT_MET, None, "never_held")
    assert "no rate holds" in said


@pytest.mark.parametrize(("most", "answer"), [("64", Answer.MET), ("8", Answer.UNDECIDED)])
def test_a_knee_is_found_where_throughput_stops_to_grow(most, answer):
    reached, told, said = found("--find", "knee", "--max-concurrency", most)
    assert reached is answer and "throughput by concurrency" in said
    if answer is Answer.MET:
        assert told["knee"]["at"] == pytest.approx(16, rel=0.15)


def test_concurrencies_grow_by_half_a_power_of_two():
    assert steps(20) == [1, 2, 3, 4, 6, 8, 12, 16, 20]
