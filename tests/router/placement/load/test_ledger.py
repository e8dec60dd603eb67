"""The account compared with a simple model that sums over a list of requests each time."""

from types import SimpleNamespace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from backends.worker import LoadReport
from router.placement.learning.speed import attention
from router.placement.load.ledger import LoadAccount
from router.placement.load.running import LoadReservation, ReservationStage


class AgainstNaiveModel(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.account = LoadAccount()
        self.reservations = []
        self.naive = []
        self.now_s = 0.0

    @rule(prompt=st.integers(0, 9_000), cached=st.integers(0, 9_000), streams=st.booleans(), arrives=st.booleans())
    def reserve(self, prompt, cached, streams, arrives):
        self.now_s += 1.0
        uncached = prompt - min(prompt, cached)
        reservation = LoadReservation(uncached, prompt, self.now_s, streams=streams, arrives=arrives)
        self.account.reserve(reservation)
        self.reservations.append(reservation)
        self.naive.append(
            SimpleNamespace(
                uncached=uncached, context=prompt, output=0, streams=streams, arrives=arrives, stage="prefill"
            )
        )

    @precondition(lambda self: self.reservations)
    @rule(data=st.data())
    def first_token(self, data):
        self.now_s += 1.0
        index = data.draw(st.integers(0, len(self.reservations) - 1))
        expected = self.naive[index].stage == "prefill"
        assert self.account.prefilled(self.reservations[index], self.now_s) is expected
        if expected:
            one = self.naive[index]
            one.stage = "decode"
            for earlier in self.naive[:index] if one.streams and not one.arrives else ():
                if earlier.stage == "prefill" and not earlier.streams and not earlier.arrives:
                    earlier.stage = "decode"

    @precondition(lambda self: self.reservations)
    @rule(data=st.data(), tokens=st.integers(0, 500))
    def progress(self, data, tokens):
        index = data.draw(st.integers(0, len(self.reservations) - 1))
        self.account.progressed(self.reservations[index], tokens)
        if self.naive[index].stage != "released":
            self.naive[index].output = max(self.naive[index].output, tokens)

    @precondition(lambda self: self.reservations)
    @rule(data=st.data())
    def release(self, data):
        self.now_s += 1.0
        index = data.draw(st.integers(0, len(self.reservations) - 1))
        expected = self.naive[index].stage != "released"
        assert self.account.release(self.reservations[index], self.now_s) is expected
        self.naive[index].stage = "released"

    @invariant()
    def sums_agree(self):
        waiting = [entry for entry in self.naive if entry.stage == "prefill"]
        decoding = [entry for entry in self.naive if entry.stage == "decode"]
        assert self.account.queued_tokens == sum(entry.uncached for entry in waiting)
        assert self.account.running_requests == len(waiting) + len(decoding)
        assert self.account.kv_tokens == sum(entry.context + entry.output for entry in waiting + decoding)
        assert self.account.decode_tokens == sum(entry.context + entry.output for entry in decoding)
        assert self.account.queued_attention == pytest.approx(
            sum(attention(entry.uncached, entry.context - entry.uncached) for entry in waiting), abs=1e-3
        )
        arriving = sum(entry.arrives for entry in waiting)
        assert (self.account.queued_requests, self.account.arriving) == (len(waiting) - arriving, arriving)

    @invariant()
    def the_head_is_the_oldest_and_started_when_it_could(self):
        prefilling = [one for one in self.reservations if one.stage is ReservationStage.PREFILL]
        waiting = [one for one in prefilling if not one.arrives]
        assert self.account.head is (waiting[0] if waiting else None)
        if waiting:
            assert waiting[0].at_s <= self.account.head_since_s <= self.now_s


TestAgainstNaiveModel = AgainstNaiveModel.TestCase
TestAgainstNaiveModel.settings = settings(stateful_step_count=40)


def report(running, waiting=0, usage=0.0):
    return LoadReport(0, running, waiting, usage)


def test_unreserved_load_is_what_two_reports_in_a_row_show_beyond_ours():
    account = LoadAccount()
    account.reserve(LoadReservation(100, 1_000, 0.0))
    account.unreserved.observe(report(6, 2, 0.5), account, 10_000, 1.0)
    assert account.unreserved.requests == 0
    account.unreserved.observe(report(4, 2, 0.3), account, 10_000, 2.0)
    assert (account.unreserved.requests, account.unreserved.waiting, account.unreserved.kv_tokens) == (5, 1, 2_000)
    for report_s in (3.0, 4.0):
        account.unreserved.observe(report(0), account, 10_000, report_s)
    assert (account.running_requests, account.queued_tokens, account.unreserved.requests) == (1, 100, 0)


@pytest.mark.parametrize("arrives", [True, False], ids=["pull", "decode side of a handover"])
def test_requests_that_wait_for_kv_cache_are_no_unreserved_load(arrives):
    account = LoadAccount()
    reservation = LoadReservation(100, 1_000, 0.0, arrives=arrives)
    account.reserve(reservation)
    if not arrives:
        account.prefilled(reservation, 0.0)
    for second in range(3):
        account.unreserved.observe(report(0, 1), account, 10_000, float(second), kv_moves=True)
    assert (account.unreserved.requests, account.unreserved.waiting) == (0, 0)
    for second in range(3, 6):
        account.unreserved.observe(report(0, 3), account, 10_000, float(second), kv_moves=True)
    assert (account.unreserved.requests, account.unreserved.waiting) == (2, 2)


def test_unreserved_load_fades_without_news():
    account = LoadAccount()
    assert account.unreserved.weight(0.0) == 0.0
    account.unreserved.observe(report(4), account, 10_000, 1.0)
    account.unreserved.observe(report(4), account, 10_000, 2.0)
    assert account.unreserved.weight(2.5) == 1.0
    assert account.unreserved.weight(4.0) == 0.5
    assert account.unreserved.weight(12.0) < 0.002
