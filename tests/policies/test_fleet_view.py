from copy import deepcopy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict

from policies.lazy_terms import CostOrder, InOrder
from policies.view import FACTS, Fact, FleetView, WorkerId, WorkerView
from tests.policies.test_properties import fleets

fleet_rows = fleets().map(lambda fleet: fleet.workers)


@given(workers=fleet_rows)
def test_views_made_from_columns_are_the_views_that_the_columns_were_made_from(workers):
    rows = FleetView(7.0, workers)
    columns = FleetView(7.0, None, rows.roster, rows.columns)
    places = range(len(workers))
    assert [columns.worker(place) for place in places] == list(workers)
    assert rows.is_small and not columns.is_small, "a single view leaves the form as it is"
    assert len(columns) == len(rows) == len(workers) and columns.ids == rows.ids
    assert columns.learned == rows.learned == workers[0].learned
    types = {field: type(value) for field, value in asdict(columns.worker(0)).items()}
    assert types == {field: type(value) for field, value in asdict(workers[0]).items()}, "int and float, no numpy"
    assert columns.workers == workers and columns == rows and hash(columns) == hash(rows)


@given(workers=fleet_rows)
def test_columns_hold_each_fact_in_the_order_of_the_roster(workers):
    fleet = FleetView(7.0, workers)
    for fact in FACTS:
        column = getattr(fleet, fact)
        assert column is fleet.columns.arrays[fact] and column.dtype == np.float64
        assert column.tolist() == [getattr(view, fact) for view in workers], fact
    assert list(fleet.columns.residency) == [view.residency for view in workers]
    assert fleet.roster.labels == [view.labels for view in workers]
    again = FleetView(7.0, FleetView(7.0, None, fleet.roster, fleet.columns).workers).columns
    assert all(np.array_equal(again.arrays[fact], getattr(fleet, fact)) for fact in FACTS)
    assert again.cached_tokens_by_tier == fleet.columns.cached_tokens_by_tier


def test_every_fact_of_a_worker_is_a_column():
    named = {"id", "labels", "weight", "learned", "residency", "cached_tokens_by_tier"}
    facts = {*WorkerView.__struct_fields__} - named
    assert facts == set(FACTS) == {name for name, value in vars(FleetView).items() if isinstance(value, Fact)}


def test_the_place_of_a_worker_is_its_place_in_the_order(fleet, form):
    view = form(fleet(a={}, b={}, c={}))
    assert [view.row_of(WorkerId(name)) for name in "cabx"] == [2, 0, 1, None]


def test_fleets_are_equal_only_at_the_same_time_with_the_same_facts(fleet, form):
    view = form(fleet(a={}, b={}))
    assert view == fleet(a={}, b={})
    assert view != FleetView(1.0, view.workers)
    assert view != fleet(a={}, b={"queued_tokens": 1})
    assert view != view.workers


def test_a_copy_of_a_fleet_is_the_fleet(fleet, form):
    view = form(fleet(a={}))
    assert deepcopy(view) is view


# rankings


@pytest.fixture
def ranked(fleet):
    """Workers a to d, of which c was chosen although it is not the cheapest."""
    view = fleet(a={}, b={}, c={}, d={})
    order = CostOrder(np.array([2.0, 1.0, 1.5, 1.0]), np.array([0.0, 3.0, 0.0, 2.0]), 2)
    return order, InOrder(order, view.ids.__getitem__), InOrder(order, order.costs.item)


def test_reading_the_first_one_sorts_nothing(ranked, monkeypatch):
    order, ranking, costs = ranked
    monkeypatch.setattr(np, "lexsort", lambda keys: pytest.fail("sorted"))
    assert (ranking[0], costs[0], tuple(costs[0:1])) == ("c", 1.5, (1.5,))
    assert len(ranking) == len(costs) == 4
    assert order.first == 2 and type(costs[0]) is float


def test_a_ranking_is_a_sequence_and_equals_a_tuple_of_its_values(ranked):
    _, ranking, costs = ranked
    assert ranking == ("c", "d", "b", "a") and costs == (1.5, 1.0, 1.0, 2.0)
    assert ranking != ("c", "d", "b") and ranking != ("d", "c", "b", "a") and ranking != 3
    assert hash(ranking) == hash(("c", "d", "b", "a")) and hash(costs) == hash((1.5, 1.0, 1.0, 2.0))
    assert (ranking[-1], costs[-1], ranking[-4]) == ("a", 2.0, "c")
    assert (ranking[1:3], costs[1:3]) == (("d", "b"), (1.0, 1.0))
    assert ranking.index(WorkerId("b")) == 2 and "x" not in ranking
    assert list(reversed(ranking)) == ["a", "b", "d", "c"]
    for one in (ranking, costs):
        with pytest.raises(IndexError):
            one[4]


@given(data=st.data(), size=st.integers(1, 8))
def test_a_ranking_holds_every_worker_once_sorted_by_cost_after_the_first(data, size):
    numbers = st.lists(st.sampled_from([0.0, 1.0, 1.0, 2.5]), min_size=size, max_size=size)
    costs, ties = np.array(data.draw(numbers)), np.array(data.draw(numbers))
    first = data.draw(st.integers(0, size - 1))
    order = CostOrder(costs, ties, first)
    places = order.places()
    assert places[0] == first and sorted(places) == list(range(size))
    keys = [(costs[place], ties[place], place) for place in places[1:]]
    assert keys == sorted(keys)
    assert list(InOrder(order, costs.item)) == [costs[place] for place in places]
