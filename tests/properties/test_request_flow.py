from collections import deque
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from docs.build.request_flow import EFFECT_TEXT, EVENT_TEXT, GUARD_TEXT, STATE_TEXT
from router.config.model import TimeoutsConfig
from router.gateway.flow.flow import Flow
from router.gateway.flow.transitions import (
    ASKS,
    ATTEMPT_EVENTS,
    RELEASES,
    TRANSITIONS,
    Effect,
    Event,
    Guard,
    RequestState,
)

PLACEMENTS = (Event.PLACED, Event.NO_WORKER, Event.HOLD, Event.REFUSED)
"""The answers to an effect that asks for a worker."""
OUTCOMES = tuple(event for event in Event if event in ATTEMPT_EVENTS and event is not Event.PLACED)
WRITES = frozenset({Effect.RESPOND, Effect.COMPLETE, Effect.PASS_ERROR, Effect.SWITCH, Effect.COMMENT, Effect.REPLY})


DIES = "dies"
"""FAILED, where a feature can let the answer go on."""


class Driver:
    """Carry out effects on a ledger, and check the invariants after each event."""

    def __init__(self, legs):
        self.flow = Flow(TimeoutsConfig(), 0.0, legs)
        self.numbers = count(1)
        self.reserved = {}
        """Reservations of each attempt: 1 while it runs, 0 after its release."""
        self.sent = set()
        self.waiting = None
        """The queue that the request is in."""
        self.asked = False
        """A worker was asked for, and the dispatcher has not answered."""
        self.ends = 0
        self.rows = set()
        self.finished = 0

    def feed(self, event, attempt=None):
        if event is Event.PLACED:
            self.reserved[attempt] = 1
        self.flow.row = None
        effects = self.flow.handle(event, attempt)
        row = self.flow.row
        if row is None:
            assert effects == ()
            return
        assert effects == row.effects
        assert self.ends == 0, "a transition after the end"
        self.rows.add(row)
        for effect in effects:
            assert self.ends == 0, "an effect after the end"
            self.carry_out(effect, attempt)
        self.check()

    def carry_out(self, effect, attempt):
        if effect in RELEASES:
            self.release(attempt)
        if effect in ASKS:
            self.asked = True
        match effect:
            case Effect.CANCEL:
                self.release(self.flow.take_dropped())
            case Effect.SEND:
                assert self.waiting is None
                assert attempt not in self.sent
                self.sent.add(attempt)
            case Effect.QUEUE | Effect.HOLD:
                assert self.waiting is None
                self.waiting = effect
            case Effect.LEAVE:
                self.waiting = None
            case Effect.FINISH | Effect.FINISH_LEG:
                self.finished += 1
            case Effect.RESUME:
                self.flow.begin_again()
            case Effect.END:
                self.ends += 1

    def release(self, attempt):
        assert self.reserved[attempt] == 1, "released twice, or never reserved"
        self.reserved[attempt] = 0

    def check(self):
        flow, state = self.flow, self.flow.state
        running = {attempt for attempt, load in self.reserved.items() if load}
        assert running == {flow.attempt} - {None}
        assert flow.take_dropped() is None, "a dropped attempt that no effect cancelled"
        assert (self.ends == 1) == (state is RequestState.OVER)
        if state in (RequestState.IDENTIFYING, RequestState.PLACING, RequestState.QUEUED, RequestState.HELD):
            assert not running
        if state in (RequestState.WAITING, RequestState.STREAMING, RequestState.TUNNEL):
            assert running
        expected = {RequestState.QUEUED: Effect.QUEUE, RequestState.HELD: Effect.HOLD}.get(state)
        if not self.asked:  # a held request leaves its queue before it asks again
            assert self.waiting is expected

    def choices(self):
        """Return every (event, attempt) that could come next from a gateway."""
        state = self.flow.state
        yield from ((event, None) for event in (Event.STOPPED, Event.CLIENT_GONE))
        if self.asked or state in (RequestState.IDENTIFYING, RequestState.QUEUED):
            yield Event.REFUSED, None
        if self.asked:
            yield from ((event, self.new(event)) for event in PLACEMENTS if event is not Event.REFUSED)
            return
        yield Event.COMMENT_DUE, None
        if state is RequestState.IDENTIFYING:
            yield Event.IDENTIFIED, None
        if state in (RequestState.QUEUED, RequestState.HELD):
            yield Event.OFFERED, None
        yield Event.CLIENT_STALLED, None
        if state is RequestState.WAITING:
            yield Event.HOLD, None  # it gives way
        if self.flow.attempt is not None:
            yield from ((event, self.flow.attempt) for event in OUTCOMES)
            if state is RequestState.STREAMING:
                yield DIES, self.flow.attempt
                yield Event.HANDED_ON, None

    def new(self, event):
        return next(self.numbers) if event is Event.PLACED else None

    def step(self, event, attempt):
        if event in PLACEMENTS:
            self.asked = False
        if event is DIES:
            event, self.flow.resumes = Event.FAILED, True
        elif event is Event.HANDED_ON:
            self.flow.resumes = True
        self.feed(event, attempt)


def replay(legs, picks):
    driver = Driver(legs)
    for pick in picks:
        choices = list(driver.choices())
        driver.step(*choices[pick % len(choices)])
        if driver.ends:
            break
    return driver


def situation(driver):
    """Return a value that is equal for two drivers whose flows have the same possible continuations."""
    flow = driver.flow
    return flow.state, flow.leg, flow.commented, driver.asked, driver.waiting


def explore(legs):
    """Walk through every situation that one request can be in, and return the rows taken."""
    rows, seen, paths = set(), set(), deque([()])
    while paths:
        path = paths.popleft()
        driver = replay(legs, path)
        rows |= driver.rows
        if situation(driver) in seen or driver.ends:
            continue
        seen.add(situation(driver))
        paths.extend((*path, pick) for pick in range(len(list(driver.choices()))))
    return rows


def test_every_transition_is_reached_and_keeps_the_invariants():
    reached = explore(1) | explore(2)
    missing = [row for row in TRANSITIONS if row not in reached]
    assert missing == []


@given(legs=st.integers(1, 3), picks=st.lists(st.integers(0, 255), max_size=60))
def test_a_request_ends_once_and_releases_each_reservation_once(legs, picks):
    driver = replay(legs, picks)
    if not driver.ends:
        driver.step(Event.CLIENT_GONE, None)
    assert driver.ends == 1
    assert not any(driver.reserved.values())
    for event in Event:  # a late event changes nothing
        for attempt in (None, *driver.reserved, 999):
            assert driver.flow.handle(event, attempt) == ()


FIRST_LEG = [(Event.IDENTIFIED, None), (Event.PLACED, 1)]


def driven(*steps):
    driver = Driver(2)
    for event, attempt in (*FIRST_LEG, *steps):
        driver.step(event, attempt)
    return driver


def test_a_plan_of_two_legs_sends_only_the_last_answer_to_the_client():
    driver = driven()
    assert driver.flow.handle(Event.OPENED, 1) == ()
    driver.step(Event.ANSWERED, 1)
    assert driver.flow.row.effects == (Effect.FINISH_LEG, Effect.NEXT_LEG)
    assert (driver.flow.leg, driver.asked, driver.reserved) == (1, True, {1: 0})
    driver.step(Event.PLACED, 2)
    driver.step(Event.OPENED, 2)
    assert Effect.RESPOND in driver.flow.row.effects
    driver.step(Event.ANSWERED, 2)
    assert (driver.ends, driver.finished, driver.reserved) == (1, 2, {1: 0, 2: 0})


@pytest.mark.parametrize("steps", [((Event.ANSWERED, 1), (Event.PLACED, 2), (Event.FAILED, 2)), ((Event.DECLINED, 1),)])
def test_a_failed_worker_or_a_client_error_in_the_first_leg_leaves_the_second_to_be_placed(steps):
    driver = driven(*steps)
    assert (driver.ends, driver.flow.leg, driver.asked) == (0, 1, True)
    driver.step(Event.PLACED, 3)
    driver.step(Event.ANSWERED, 3)
    assert driver.ends == 1


def test_a_plan_whose_first_leg_is_given_up_ends_with_the_next_answer():
    driver = driven()
    assert driver.flow.in_earlier_leg
    driver.step(Event.FAILED, 1)
    driver.flow.skip_to_last_leg()
    driver.step(Event.PLACED, 2)
    driver.step(Event.ANSWERED, 2)
    assert Effect.RESPOND in driver.flow.row.effects
    assert driver.ends == 1


def test_an_answer_goes_on_with_one_further_leg_after_a_death():
    driver = driven((Event.ANSWERED, 1), (Event.PLACED, 2), (Event.OPENED, 2), (DIES, 2))
    assert driver.flow.row.effects == (Effect.FAIL, Effect.RESUME)
    assert (driver.ends, driver.asked, driver.flow.in_earlier_leg, driver.flow.commented) == (0, True, False, True)
    driver.step(Event.PLACED, 3)
    driver.step(Event.OPENED, 3)
    driver.step(Event.FAILED, 3)  # nothing resumes by itself
    assert driver.ends == 1


# the table itself


def test_an_effect_that_asks_for_a_worker_is_its_rows_last():
    for row in TRANSITIONS:
        assert not ASKS.intersection(row.effects[:-1])


def test_the_end_is_the_last_effect_of_exactly_the_rows_that_lead_over():
    for row in TRANSITIONS:
        assert (row.to is RequestState.OVER) == (row.effects[-1:] == (Effect.END,))
        assert row.effects.count(Effect.END) == (row.to is RequestState.OVER)
        assert row.state is not RequestState.OVER


def test_no_row_is_hidden_by_an_earlier_one():
    for at, row in enumerate(TRANSITIONS):
        before = [each for each in TRANSITIONS[:at] if (each.state, each.event) == (row.state, row.event)]
        assert all(each.guard is not Guard.ALWAYS and each.guard is not row.guard for each in before)


def test_every_answer_to_the_client_is_written_before_the_end():
    for row in TRANSITIONS:
        if row.to is RequestState.OVER and row.event not in (Event.CLIENT_GONE, Event.STALLED, Event.FAILED):
            assert WRITES.intersection(row.effects) or row.state in (RequestState.STREAMING, RequestState.TUNNEL)


def test_every_name_is_explained():
    assert set(STATE_TEXT) == set(RequestState)
    assert set(EVENT_TEXT) == set(Event)
    assert set(EFFECT_TEXT) == set(Effect)
    assert set(GUARD_TEXT) == set(Guard)
