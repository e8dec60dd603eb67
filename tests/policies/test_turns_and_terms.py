import pytest

from policies.terms import Terms
from policies.turns import Turns
from policies.view import Edge, EdgeKind, WorkerId


def test_turns_remember_bookings_and_stay_bounded(request_view):
    turns = Turns(kept=2)
    for worker, kind in [
        ("a", EdgeKind.BOOKED),
        ("b", EdgeKind.BOOKED),
        ("a", EdgeKind.FINISHED),
        ("c", EdgeKind.BOOKED),
    ]:
        turns.observe(Edge(kind, request_view(), WorkerId(worker), 0.0))
    assert [turns.last(WorkerId(worker)) for worker in "abc"] == [0, 2, 3]


def test_terms_are_made_when_read(fleet):
    read = []
    terms = Terms(fleet(a={}, b={}).workers, lambda view: read.append(view.id) or {"x": 1.0})
    assert len(terms) == 2
    assert list(terms) == ["a", "b"]
    assert read == []
    assert terms[WorkerId("b")] == {"x": 1.0}
    assert read == ["b"]
    with pytest.raises(KeyError):
        terms[WorkerId("c")]
