import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.worker import LoadReport
from router.placement.learning.speed import Speed
from router.placement.learning.utilisation import Utilisation
from router.placement.load.fleet_load import WorkerLoads
from router.placement.load.ledger import LoadAccount
from router.placement.load.running import LoadReservation
from router.placement.load.shared_load import LoadTotals, combined

SPEED = Speed(token_s=1e-3, fixed_s=0.01, attention_s=0.0, decode_s=1e-6, relative_error=0.0)


@pytest.fixture
def candidate(make_rig):
    return make_rig(workers=1).fleet.candidates[0]


class Shelf:
    """The rows of both processes, without shared memory. Satisfies `SharedAccount`."""

    def __init__(self) -> None:
        self.account, self.work, self.other = LoadAccount(), None, None

    def publish(self, account):
        self.account = account

    def worked(self, work):
        self.work = work

    def other_processes(self) -> LoadTotals:
        seen = self.other.account
        return LoadTotals(
            seen.queued_requests,
            seen.queued_tokens,
            seen.queued_attention,
            seen.running_requests,
            seen.kv_tokens,
            seen.decode_tokens,
            seen.head_since_s if seen.queued_requests else 0.0,
            seen.freed_s,
            self.other.work,
        )


def pair() -> tuple[Shelf, Shelf]:
    one, other = Shelf(), Shelf()
    one.other, other.other = other, one
    return one, other


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 900), st.integers(0, 900), st.booleans()), max_size=30))
def test_combined_load_equals_one_account_for_all(steps):
    """First tokens come in the order of reservation, because the worker prefills first come, first served."""
    shelves, alone = pair(), LoadAccount()
    halves = [LoadAccount(), LoadAccount()]
    for half, shelf in zip(halves, shelves, strict=True):
        half.shared = shelf
    waiting: list[tuple[LoadAccount, LoadReservation, LoadReservation]] = []
    for now_s, (which, uncached, cached, begins) in enumerate(steps, start=1):
        half = halves[which]
        mine, all_ = (LoadReservation(uncached, uncached + cached, float(now_s)) for _ in range(2))
        half.reserve(mine)
        alone.reserve(all_)
        waiting.append((half, mine, all_))
        if begins:
            half, mine, all_ = waiting.pop(0)
            half.prefilled(mine, now_s + 0.5)
            alone.prefilled(all_, now_s + 0.5)
        for half, shelf in zip(halves, shelves, strict=True):
            said = combined(half, shelf.other_processes())
            for field in ("queued_requests", "queued_tokens", "running_requests", "kv_tokens", "decode_tokens"):
                assert getattr(said, field) == getattr(alone, field), field
            assert said.queued_attention == pytest.approx(alone.queued_attention)
            if alone.queued_requests:
                assert said.head_since_s == alone.head_since_s


class Ledger:
    """Returns one process's half of each pair of rows. Satisfies `SharedLedger`."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def account(self, candidate_id):
        return self._shelf


def test_a_reservation_of_one_process_shows_in_the_others_next_view(candidate):
    ours, theirs = (WorkerLoads(Ledger(shelf)) for shelf in pair())
    before = theirs.views([candidate], None, 1, 1.0)[0]
    ours.of(candidate).reserve(LoadReservation(500, 800, 1.0), 1.0)
    view = theirs.views([candidate], None, 1, 1.0)[0]
    assert (before.running_requests, before.queued_tokens, before.kv_tokens) == (0, 0, 0)
    assert (view.running_requests, view.queued_tokens, view.kv_tokens) == (1, 500, 800)
    assert view.queue_wait_s > before.queue_wait_s
    load = theirs.of(candidate)
    assert load.situation(10, 10, 2.0).features[0] == 510
    assert load.situation(10, 10, 2.0).head_start_s == 1.0
    assert load.queue_wait_s(SPEED, 1.0) == pytest.approx(0.01 + 0.5)


def test_load_of_other_processes_is_not_unreserved(candidate):
    ours, theirs = (WorkerLoads(Ledger(shelf)) for shelf in pair())
    theirs.of(candidate)
    ours.of(candidate).reserve(LoadReservation(500, 800, 1.0), 1.0)
    for second in (2.0, 3.0):
        theirs.load_reported(candidate, LoadReport(0, 1, 0, 0.0), second)
    assert theirs.of(candidate).account.unreserved.requests == 0


def test_utilisation_counts_what_others_dispatched():
    mine, other, all_ = Utilisation(), Utilisation(), Utilisation()
    for second in range(60):
        for each in ((mine if second % 2 else other), all_):
            each.dispatched(300, 0.0, float(second))
    assert mine.share(SPEED, 60.0, other.work) == pytest.approx(all_.share(SPEED, 60.0))
    assert Utilisation().share(SPEED, 60.0, other.work) == pytest.approx(other.share(SPEED, 60.0))
    assert mine.share(SPEED, 60.0, None) < all_.share(SPEED, 60.0)
