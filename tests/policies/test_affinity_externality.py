"""The delay that a prefill causes to sessions that return to its worker."""

from copy import deepcopy

import pytest

from policies.marginal_cost.terms.affinity_externality import WINDOW_S, AffinityExternality
from policies.view import FleetView, LifecycleEvent, LifecycleEventKind, WorkerId

IDLE = {"a": {"prefill_s": 4.0}, "b": {"prefill_s": 4.0}}


@pytest.fixture
def fleet(fleet, form):
    return lambda now_s=0.0, **workers: form(FleetView(now_s, fleet(**workers).workers))


def priced(affinity_externality, fleet):
    """Return the prices above 0 by worker, and {} if the rule returns none."""
    prices_s = affinity_externality.price(None, fleet)
    assert len(prices_s) in (0, len(fleet))
    return {worker: price_s for worker, price_s in zip(fleet.ids, prices_s, strict=False) if price_s}


@pytest.fixture
def came(fleet, request_view):
    """Reserve a request on `a`, where its prefill takes `own_s`, and `other_s` elsewhere."""

    def come(
        affinity_externality,
        own_s=0.5,
        other_s=2.5,
        now_s=0.0,
        worker="a",
        kind=LifecycleEventKind.RESERVED,
        learned=True,
    ):
        names = {worker: own_s, **{name: other_s for name in ("a", "b", "c") if name != worker}}
        view = fleet(**{name: {"prefill_s": seconds, "learned": learned} for name, seconds in names.items()})
        placed = view.worker(view.place_of(worker))
        affinity_externality.observe(
            LifecycleEvent(kind, request_view(), WorkerId(worker), now_s, placed=placed, fleet=view)
        )

    return come


@pytest.fixture
def affinity_externality(came):
    """Three requests of the last minute are tied to `a`, by two seconds each."""
    rule = AffinityExternality()
    for _ in range(3):
        came(rule)
    return rule


def test_returning_sessions_wait_for_half_of_the_prefill(affinity_externality, fleet):
    assert priced(affinity_externality, fleet(**IDLE)) == pytest.approx({"a": 3 / WINDOW_S * 4.0 * 2.0})
    short = {"prefill_s": 1.0}
    assert priced(affinity_externality, fleet(a=short, b=short)) == pytest.approx({"a": 3 / WINDOW_S * 1.0 * 0.5})


def test_returning_sessions_lose_at_most_what_the_cache_saves(affinity_externality, fleet):
    long = {"prefill_s": 60.0}
    assert priced(affinity_externality, fleet(a=long, b=long)) == pytest.approx({"a": 3 / WINDOW_S * 60.0 * 2.0})


def test_the_price_scales_with_the_share_of_free_workers(affinity_externality, fleet):
    one_of_two = {**IDLE, "b": {"prefill_s": 4.0, "queued_requests": 2}}
    assert priced(affinity_externality, fleet(**one_of_two)) == pytest.approx({"a": 0.25 * 3 / WINDOW_S * 4.0 * 2.0})
    none = {name: {"prefill_s": 4.0, "queued_requests": 1} for name in "ab"}
    assert len(affinity_externality.price(None, fleet(**none))) == 0


@pytest.mark.parametrize(
    ("why", "fields"),
    [
        ("it would have been as fast elsewhere", {"other_s": 0.5}),
        ("it went where it is slower", {"other_s": 0.1}),
        ("its prefill is no time yet", {"learned": False}),
        ("it had come before", {"kind": LifecycleEventKind.FIRST_TOKEN}),
        ("it has gone", {"kind": LifecycleEventKind.FINISHED}),
    ],
)
def test_requests_without_a_saving_do_not_count(came, fleet, why, fields):
    rule = AffinityExternality()
    came(rule, **fields)
    assert len(rule.price(None, fleet(**IDLE))) == 0, why


def test_a_single_worker_has_no_affinity_externality(fleet, request_view):
    rule, view = AffinityExternality(), fleet(a={"prefill_s": 1.0, "learned": True})
    rule.observe(
        LifecycleEvent(
            LifecycleEventKind.RESERVED, request_view(), WorkerId("a"), 0.0, placed=view.worker(0), fleet=view
        )
    )
    assert len(rule.price(None, view)) == 0


def test_arrivals_are_forgotten_within_minutes(affinity_externality, came, fleet):
    def price_s(now_s):
        return priced(affinity_externality, fleet(now_s, **IDLE)).get("a", 0.0)

    now = price_s(0.0)
    assert price_s(WINDOW_S) == pytest.approx(now / 2.718281828)
    assert price_s(1e9) < 1e-200, "a night without a request"
    came(affinity_externality, now_s=1e9)
    assert price_s(1e9) == pytest.approx(now / 3)


def test_hours_of_requests_neither_overflow_nor_lose_arrivals(came, fleet):
    rule = AffinityExternality()
    for second in range(0, 20_000, 10):
        came(rule, now_s=float(second), worker="a" if second % 20 else "b")
    prices_s = priced(rule, fleet(20_000.0, **IDLE))
    rate_per_s = 1 / 20
    assert prices_s["a"] == pytest.approx(rate_per_s * 4.0 * 2.0, rel=0.2)
    assert prices_s["b"] == pytest.approx(rate_per_s * 4.0 * 2.0, rel=0.2)


def test_workers_that_come_and_go_do_not_fill_memory(came):
    rule = AffinityExternality()
    for number in range(5_000):
        came(rule, worker=f"pod-{number}")
    assert len(rule._tied) == 4_096
    assert "pod-4999" in rule._tied


def test_a_copy_goes_its_own_way(affinity_externality, came, fleet):
    before = priced(affinity_externality, fleet(**IDLE))
    came(deepcopy(affinity_externality))
    assert before and priced(affinity_externality, fleet(**IDLE)) == before
