import pytest

from loadtest.compare.contenders import gateway_of
from loadtest.compare.trial import measured
from loadtest.lab.aggregate import Asked
from loadtest.sim.outcome import Ending, Outcome


def outcome(name, sent_s, worker="w1", cached=0, ttft_s=0.1, ending=Ending.FINISHED):
    return Outcome(name, name, ending, worker, sent_s, sent_s + 0.3, ttft_s, 100, 11, None, cached)


KNOWN = {name: Asked("shared", 50) for name in "abcd"}


def test_calls_of_the_warm_up_are_left_out(cell):
    found = measured(cell, [outcome("a", 0.9), outcome("b", 1.0, cached=40), outcome("c", 2.0)], KNOWN, 5.0)
    assert found.all.calls == 2
    assert found.all.hit_share == pytest.approx(40 / 200)
    assert found.all.reuse_share == pytest.approx(40 / 100)
    assert found.all.ttft_mean_ms == pytest.approx(100.0)
    assert found.all.tpot_mean_ms == pytest.approx(20.0)
    assert found.all.e2e_mean_ms == pytest.approx(300.0)
    assert found.imbalance == pytest.approx(2.0)


def test_a_failed_call_is_a_miss(cell):
    failed = outcome("c", 2.0, ttft_s=None, ending=Ending.REJECTED)
    found = measured(cell, [outcome("b", 1.5), outcome("d", 1.5, ttft_s=0.25), failed], KNOWN, 5.0)
    assert found.all.goodput_share == pytest.approx(1 / 3)
    assert found.all.rejected == 1


def test_computed_tokens_are_reckoned_per_worker(cell):
    found = measured(cell, [outcome("a", 1.0, "w1", cached=40), outcome("b", 1.0, "w2", cached=80)], KNOWN, 5.0)
    assert found.imbalance == pytest.approx(60 / 40)
    assert found.amplification == pytest.approx(80 / 100)


def test_a_rules_parameters_reach_the_gateway():
    gateway = gateway_of("cache_aware:balance_abs_threshold=32:on_miss=shortest_tree")
    flags = "--policy-param balance_abs_threshold=32 --policy-param on_miss=shortest_tree"
    assert (gateway.policy, " ".join(gateway.flags)) == ("cache_aware", flags)
