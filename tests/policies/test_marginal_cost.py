import random

import pytest

from policies.marginal_cost import MarginalCost
from policies.params import Params


@pytest.fixture
def policy():
    return MarginalCost(Params(), random.Random(0))


def test_cost_is_backlog_plus_prefill_priced_by_utilisation(policy, fleet, request_view):
    view = fleet(
        a={"backlog_s": 0.1, "prefill_s": 0.2, "utilisation": 0.5, "learned": True},
        b={"backlog_s": 0.0, "prefill_s": 0.4, "utilisation": 0.0, "learned": True},
    )
    decision = policy.decide(request_view(), view)
    assert decision.ranked == ("b", "a")
    assert decision.costs == pytest.approx((0.4, 0.5))
    assert decision.unit == "s"
    assert decision.terms["a"] == pytest.approx(
        {"backlog": 0.1, "prefill": 0.2, "delay_to_later": 0.2, "crowd": 0.0, "error": 0.0}
    )


def test_before_anything_is_learned_it_ranks_as_lpwl(policy, fleet, request_view):
    view = fleet(a={"backlog_s": 50.0, "prefill_s": 60.0}, b={"backlog_s": 0.0, "prefill_s": 100.0})
    decision = policy.decide(request_view(), view)
    assert decision.ranked == ("b", "a")
    assert decision.unit == "tokens"


def test_ties_go_to_the_fewest_requests_then_take_turns(policy, fleet, request_view, booked):
    view = fleet(a={"running_requests": 1}, b={}, c={})
    assert policy.decide(request_view(), view).ranked[0] == "b"
    booked(policy, "b", request_view())
    decision = policy.decide(request_view(), view)
    assert decision.ranked[0] == "c"
    assert "3" in decision.reason


def test_costs_within_their_errors_are_equal(policy, fleet, request_view):
    near = {"learned": True, "prefill_s": 0.010, "error_s": 0.001}
    view = fleet(a={**near, "running_requests": 3}, b={**near, "prefill_s": 0.0115}, c={**near, "prefill_s": 0.013})
    assert policy.decide(request_view(), view).ranked == ("b", "a", "c")


def test_noise_never_outweighs_counted_tokens(policy, fleet, request_view):
    near = {"learned": True, "error_s": 0.01}
    view = fleet(
        a={**near, "prefill_s": 0.010, "uncached_tokens": 50, "running_requests": 3},
        b={**near, "prefill_s": 0.011, "uncached_tokens": 66},
    )
    assert policy.decide(request_view(), view).ranked[0] == "a"


def test_a_crowd_is_priced_once_it_is_significant(policy, fleet, request_view):
    holder = {"learned": True, "prefill_s": 0.001, "uncached_tokens": 50}
    other = {"learned": True, "prefill_s": 0.040, "uncached_tokens": 2_000}
    request = request_view(decode_s=0.2)
    usual = fleet(a={**holder, "running_requests": 5}, b=other, c=other, d=other)
    assert policy.decide(request, usual).ranked[0] == "a"
    crowded = fleet(a={**holder, "running_requests": 6}, b=other, c=other, d=other)
    decision = policy.decide(request, crowded)
    assert decision.ranked[0] == "b"
    assert decision.terms["a"]["crowd"] == pytest.approx(0.2)
    busy = fleet(a={**holder, "running_requests": 20}, b={**other, "running_requests": 8})
    assert policy.decide(request, busy).terms["a"]["crowd"] == pytest.approx(0.2 * (1 - 8 / 20))
    dear = {**other, "prefill_s": 4.0}
    assert policy.decide(request, fleet(a={**holder, "running_requests": 32}, b=dear)).ranked[0] == "a"


def test_a_crowd_is_avoided_while_its_price_is_unknown(policy, fleet, request_view):
    view = fleet(a={"prefill_s": 50.0, "uncached_tokens": 50, "running_requests": 5}, b={"prefill_s": 2_000.0})
    decision = policy.decide(request_view(decode_s=1.0), view)
    assert decision.ranked[0] == "b"
    assert decision.terms["a"]["crowd"] == 2_000.0
