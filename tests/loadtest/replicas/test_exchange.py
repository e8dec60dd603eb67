import pytest

from loadtest.replicas.exchange import Plan, measure, wrong_sums
from loadtest.replicas.exchanger import Report
from tests.support.redis import needs_redis


def report(own, others):
    return Report(1.0, 1.0, 1.0, 0, 0, 0, 0, 1.0, own, others)


def test_sums_of_the_others_are_compared_with_what_they_have():
    reports = [report([1, 2], [3, 0]), report([3, 0], [1, 2])]
    assert wrong_sums(reports) == 0
    assert wrong_sums([report([1, 2], [3, 1]), report([3, 0], [1, 2])]) == 1


@needs_redis
@pytest.mark.slow
def test_replicas_without_http_know_each_others_load():
    done = []
    plan = Plan(replicas=3, decisions_per_s=150, new_blocks=(16,), seconds=1.5, rounds=1)
    (cost,) = measure(plan, lambda: done.append(1))
    assert len(done) == plan.steps == 1
    assert cost.new_blocks == 16
    assert cost.wrong == 0
    assert len(cost.replicas) == len(cost.alone) == 3
    assert cost.redis > 0 and cost.added > 0
    assert 50 < cost.decisions_per_s < 160
    assert cost.messages_per_s > 10
