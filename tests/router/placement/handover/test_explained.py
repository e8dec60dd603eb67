import numpy as np
import pytest

from policies.handover_cost import pair_terms, total
from router.placement.handover.explained import SHOWN, explained
from tests.policies.test_handover_cost import fleet

FAST = 1e12


def compared(senders, receivers, alike=None):
    prefill, decode = fleet(*senders), fleet(*receivers)
    terms = pair_terms(prefill, decode, FAST, 0.0)
    costs_s = total(terms)
    if alike is not None:
        costs_s = np.where(np.array(alike), costs_s, np.inf)
    return explained(prefill, decode, decode, terms, costs_s)


def test_the_best_pairs_and_workers_come_first_and_their_terms_add_up():
    found = compared([{"queue_wait_s": 3.0}, {}], [{"running_requests": 20}, {"running_requests": 5, "kv_wait_s": 9.0}])
    assert found.pays and found.reason == "a pair costs less than one worker"
    assert [(pair.prefill, pair.decode) for pair in found.pairs] == [
        ("w1", "w0"),
        ("w0", "w0"),
        ("w1", "w1"),
        ("w0", "w1"),
    ]
    assert [one.worker for one in found.alone] == ["w0", "w1"]
    for one in (*found.pairs, *found.alone):
        assert sum(one.terms.values()) == pytest.approx(one.cost_s)


def test_one_worker_wins_where_it_costs_no_more():
    found = compared([{}], [{}])
    assert not found.pays and found.reason == "one worker costs no more than the best pair"


def test_pairs_that_are_not_possible_are_left_out():
    found = compared([{}, {"queue_wait_s": 1.0}], [{"running_requests": 20}], [[False], [True]])
    assert [pair.prefill for pair in found.pairs] == ["w1"]
    none = compared([{}], [{}], [[False]])
    assert (none.pays, none.pairs, len(none.alone)) == (False, (), 1)
    assert "understand" in none.reason


def test_a_large_fleet_is_explained_by_its_best():
    found = compared([{"queue_wait_s": float(number)} for number in range(40)], [{"running_requests": 9}] * 30)
    assert len(found.pairs) == len(found.alone) == SHOWN
    assert {pair.prefill for pair in found.pairs} == {"w0"}
