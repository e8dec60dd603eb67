from copy import deepcopy

import numpy as np
import pytest

from policies.least_recently_used import LeastRecentlyUsed
from policies.ranking import (
    by_cost,
    by_keys,
    counts,
    least,
    most,
    prefill_work,
    running_requests,
    total,
)
from policies.view import FleetView, LifecycleEvent, LifecycleEventKind, WorkerId


class Arrays(FleetView):
    @property
    def workers(self):
        raise AssertionError("a decision over arrays builds no views")


def as_arrays(view):
    return Arrays(view.now_s, None, view.roster, view.columns)


@pytest.fixture(params=[False, True], ids=["views", "arrays"])
def form(request):
    return as_arrays if request.param else lambda view: view


def test_by_cost_ties_and_then_the_fleets_order(fleet, form):
    view = form(
        fleet(a={"queued_tokens": 2}, b={"queued_tokens": 1, "running_requests": 1}, c={"queued_tokens": 1}, d={})
    )
    decision = by_cost(
        view,
        lambda of: of.queued_tokens,
        "why",
        "tokens",
        {"queued": lambda of: of.queued_tokens, "limit": 2.5},
        (running_requests,),
    )
    assert decision.ranked == ("d", "c", "b", "a")
    assert decision.costs == (0.0, 1.0, 1.0, 2.0)
    assert all(type(cost) is float for cost in decision.costs)
    assert (decision.reason, decision.unit) == ("why", "tokens")
    assert decision.terms["a"] == {"queued": 2, "limit": 2.5}
    assert by_cost(view, lambda of: 0.0, "", "", {}).ranked == ("a", "b", "c", "d")


def test_keys_are_compared_in_their_order_and_have_no_costs(fleet, form):
    view = form(
        fleet(a={}, b={"cached_tokens": 5, "running_requests": 2}, c={"cached_tokens": 5, "running_requests": 1})
    )
    decision = by_keys(view, (lambda of: -of.cached_tokens, running_requests), "match", {})
    assert (decision.ranked, decision.costs, decision.unit, decision.terms) == (("c", "b", "a"), (), "", {})


@pytest.mark.parametrize("sequence", [list, np.array])
def test_lists_and_arrays_are_in_the_fleets_order(fleet, form, sequence):
    view = form(fleet(a={"running_requests": 1}, b={}, c={}))
    cost = sequence([2.0, 3.0, 2.0])
    decision = by_cost(view, cost, "", "s", {"cost": cost}, (running_requests,))
    assert (decision.ranked, decision.costs) == (("c", "a", "b"), (2.0, 2.0, 3.0))
    assert decision.terms["b"] == {"cost": 3.0}


def test_terms_of_a_large_fleet_are_those_of_one_view(fleet):
    view = as_arrays(fleet(a={"queued_tokens": 7, "uncached_tokens": 1}, b={}))
    decision = by_cost(view, prefill_work, "", "tokens", {"work": prefill_work})
    assert decision.terms["a"] == {"work": 8}


def test_counts_over_a_fleet(fleet, form):
    view = form(fleet(a={"running_requests": 3}, b={"running_requests": 1, "cached_tokens": 9}, c={"cached_tokens": 9}))
    assert counts(view, running_requests) == [3, 1, 0]
    assert (least(view, running_requests), most(view, running_requests), total(view, running_requests)) == (0, 3, 4)
    assert least(view, running_requests, lambda of: of.cached_tokens == 0) == 3
    assert f"{least(view, running_requests)} to {most(view, running_requests)}" == "0 to 3"


def reserved(last_used, worker, request):
    last_used.observe(LifecycleEvent(LifecycleEventKind.RESERVED, request, WorkerId(worker), 0.0))


def test_last_use_as_an_array_follows_reservations_and_forgets(fleet, request_view):
    last_used = LeastRecentlyUsed(kept=2)
    view = fleet(a={}, b={}, c={})
    assert last_used.of(view).tolist() == [0, 0, 0]
    for worker in "abc":
        reserved(last_used, worker, request_view())
    assert last_used.of(view).tolist() == [last_used.last(worker) for worker in view.ids] == [0, 2, 3]


def test_a_copy_of_last_use_is_independent(fleet, request_view):
    last_used, view = LeastRecentlyUsed(), fleet(a={}, b={})
    reserved(last_used, "a", request_view())
    assert last_used.of(view).tolist() == [1, 0]
    copy = deepcopy(last_used)
    reserved(copy, "b", request_view())
    assert copy.of(view).tolist() == [1, 2]
    assert last_used.of(view).tolist() == [1, 0]
