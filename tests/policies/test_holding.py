"""Which prompts wait in the gateway, and for how long."""

from copy import deepcopy

import pytest
from msgspec.structs import replace

from policies.holding import Holding
from policies.view import Edge, EdgeKind

MODELS_KEPT = 64


@pytest.fixture
def make(view, request_view):
    """A rule that has seen prefills of so many seconds."""

    def build(*seen_s, limit=2.0, **fields):
        holding = Holding(limit)
        for seconds in seen_s:
            holding.observe(booked(view("w", prefill_s=seconds, **{"learned": True, **fields}), request_view()))
        return holding

    return build


def booked(placed, request, kind=EdgeKind.BOOKED):
    return Edge(kind, request, placed.id, 0.0, placed=placed)


@pytest.fixture
def busy(view):
    """Where 1.5 seconds more than a usual prefill are ahead."""

    def make(**fields):
        values = {"prefill_s": 3.0, "backlog_s": 3.5, "queued_requests": 1, "learned": True, **fields}
        return view("w", **values)

    return make


def test_a_long_prompt_waits_for_a_busy_worker(make, busy, request_view):
    holding = make(2.0)
    assert holding.hold_s(request_view(), busy()) == 1.5, (
        "until a usual prefill is ahead, and then it is looked at again"
    )
    assert holding.hold_s(request_view(), busy(backlog_s=90.0)) == 6.0, "twice its own prefill at the most"
    assert holding.hold_s(request_view(waited_s=5.5), busy()) == 0.5
    assert holding.hold_s(request_view(), busy(backlog_s=2.001)) == 0.005, "less is not worth a decision"


@pytest.mark.parametrize(
    ("why", "waited_s", "fields"),
    [
        ("nothing is being prefilled there", 0.0, {"queued_requests": 0}),
        ("no more than a usual prefill is ahead", 0.0, {"backlog_s": 2.0}),
        ("shorter than the others", 0.0, {"prefill_s": 1.9}),
        ("it has waited enough", 6.0, {}),
        ("all but", 5.996, {}),
        ("speeds are not known", 0.0, {"learned": False}),
    ],
)
def test_others_go_at_once(make, busy, request_view, why, waited_s, fields):
    assert make(2.0).hold_s(request_view(waited_s=waited_s), busy(**fields)) == 0.0, why


def test_nobody_waits_where_that_is_switched_off_or_nothing_was_seen(make, busy, request_view):
    assert make(2.0, limit=0.0).hold_s(request_view(), busy()) == 0.0
    assert make().hold_s(request_view(), busy()) == 0.0
    assert make(1.0, learned=False).hold_s(request_view(), busy()) == 0.0, "not seconds"


def test_what_is_usual_follows_what_is_asked(make, busy, view, request_view):
    holding = make(2.0)
    for _ in range(400):
        holding.observe(booked(view("w", prefill_s=10.0, learned=True), request_view()))
    assert holding.hold_s(request_view(), busy(backlog_s=99.0)) == 0.0, "three seconds are short by now"
    for kind in (EdgeKind.FIRST_TOKEN, EdgeKind.FINISHED, EdgeKind.FAILED):
        holding.observe(booked(view("w", prefill_s=0.0, learned=True), request_view(), kind))
    assert holding.hold_s(request_view(), busy(prefill_s=11.0, backlog_s=12.0)) == pytest.approx(2.0, rel=0.1)


def test_models_have_each_their_own_and_those_not_asked_for_are_forgotten(make, busy, view, request_view):
    holding = make(2.0)
    for number in range(MODELS_KEPT):
        other = replace(request_view(), model=f"m{number}")
        holding.observe(booked(view("w", prefill_s=1.0, learned=True), other))
    assert holding.hold_s(request_view(), busy()) == 0.0
    assert holding.hold_s(replace(request_view(), model="m0"), busy()) == 2.5


def test_copies_go_their_own_way(make, busy, view, request_view):
    holding = make(2.0)
    copy = deepcopy(holding)
    for _ in range(400):
        copy.observe(booked(view("w", prefill_s=10.0, learned=True), request_view()))
    assert holding.hold_s(request_view(), busy()) == 1.5 and copy.hold_s(request_view(), busy()) == 0.0
