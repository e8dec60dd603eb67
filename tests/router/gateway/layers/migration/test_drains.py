"""Which requests are offered to move, and when."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from router.gateway.layers.migration.drains import LOOK_S, Drains
from router.placement.fleet.health import WorkerState

AFTER_S = {"slow": 10.0, "fast": 0.0, "never": None}


class Clock:
    """An event loop with one timer."""

    def __init__(self):
        self.now_s, self.due = 100.0, None

    def time(self):
        return self.now_s

    def call_later(self, _, look):
        self.due = look
        return Mock(cancel=lambda: setattr(self, "due", None))

    def runs(self, for_s):
        for _ in range(round(for_s / LOOK_S)):
            self.now_s += LOOK_S
            if self.due is not None:
                self.due()


class Running:
    def __init__(self, route="slow", arrived_s=0.0, worker="a", model="m", finds=True, own_s=None):
        request = SimpleNamespace(route=route, model=model, arrived_s=arrived_s)
        self.tickets = [
            SimpleNamespace(
                request=request,
                candidate=SimpleNamespace(endpoint=SimpleNamespace(id=worker, migrate_after_s=own_s)),
            )
        ]
        self.offers, self.finds = [], finds

    def hand_over(self):
        self.offers.append(len(self.offers))
        return self.finds


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def drains(clock):
    """`drains(running)` looks at a fleet whose worker a drains, and b does not."""

    def make(*running, permits=None):
        workers = [
            SimpleNamespace(id=name, state=state)
            for name, state in {"a": WorkerState.DRAINING, "b": WorkerState.READY}.items()
        ]
        fleet = SimpleNamespace(endpoints=workers)
        made = Drains(fleet, clock, set(running), permits or SimpleNamespace(free=True), AFTER_S.get)
        made.switch(True)
        return made

    return make


def test_nothing_is_asked_before_the_time(clock, drains):
    slow, fast, never, elsewhere = Running(), Running("fast"), Running("never"), Running("fast", worker="b")
    drains(slow, fast, never, elsewhere)
    clock.runs(9.5)
    assert fast.offers and not slow.offers
    clock.runs(1.0)
    assert slow.offers and not never.offers and not elsewhere.offers


@pytest.mark.parametrize("route", AFTER_S)
def test_a_drain_may_have_a_time_of_its_own(clock, drains, route):
    one = Running(route, own_s=5.0)
    drains(one)
    clock.runs(4.5)
    assert not one.offers
    clock.runs(1.0)
    assert one.offers


def test_a_drain_begins_again_after_the_feature_was_off(clock, drains):
    slow = Running()
    made = drains(slow)
    clock.runs(9.0)
    made.switch(False)
    clock.runs(9.0)
    made.switch(True)
    clock.runs(9.0)
    assert not slow.offers
    clock.runs(2.0)
    assert slow.offers


def test_the_oldest_goes_first_and_as_many_as_have_a_permit(clock, drains):
    permits = SimpleNamespace(free=True)
    old, young = Running("fast", 1.0), Running("fast", 2.0)
    old.hand_over = lambda: setattr(permits, "free", False) or old.offers.append(1) or True
    drains(young, old, permits=permits)
    clock.runs(LOOK_S)
    assert old.offers and not young.offers


def test_where_one_finds_no_place_the_younger_do_not_look(clock, drains):
    old, young, other = Running("fast", 1.0, finds=False), Running("fast", 2.0), Running("fast", 3.0, model="n")
    drains(young, other, old)
    clock.runs(LOOK_S)
    assert (len(old.offers), len(young.offers), len(other.offers)) == (1, 0, 1)
