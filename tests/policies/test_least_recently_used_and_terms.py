import pytest

from policies.lazy_terms import LazyTerms
from policies.least_recently_used import LeastRecentlyUsed
from policies.view import LifecycleEvent, LifecycleEventKind, WorkerId


def test_last_use_follows_reservations_and_stays_bounded(request_view):
    last_used = LeastRecentlyUsed(kept=2)
    for worker, kind in [
        ("a", LifecycleEventKind.RESERVED),
        ("b", LifecycleEventKind.RESERVED),
        ("a", LifecycleEventKind.FINISHED),
        ("c", LifecycleEventKind.RESERVED),
    ]:
        last_used.observe(LifecycleEvent(kind, request_view(), WorkerId(worker), 0.0))
    assert [last_used.last(WorkerId(worker)) for worker in "abc"] == [0, 2, 3]


def test_terms_are_made_when_read(fleet, form):
    read = []
    terms = LazyTerms(form(fleet(a={}, b={})), lambda place: read.append(place) or {"x": 1.0})
    assert len(terms) == 2
    assert list(terms) == ["a", "b"]
    assert read == []
    assert terms[WorkerId("b")] == {"x": 1.0}
    assert read == [1]
    with pytest.raises(KeyError):
        terms[WorkerId("c")]
