import pytest

from policies.lazy_terms import LazyTerms, view_terms
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


def test_terms_of_a_view_are_of_the_worker_that_is_read(fleet, form):
    terms = view_terms(
        form(fleet(a={"queued_tokens": 3}, b={"queued_tokens": 5})), lambda view: {view.id: 2.0 * view.queued_tokens}
    )
    assert dict(terms) == {"a": {"a": 6.0}, "b": {"b": 10.0}}
