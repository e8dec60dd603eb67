from types import SimpleNamespace

import pytest

from router.placement.handover.shared_cards import TransfersUnderWay
from router.placement.load.running import LoadReservation, ReservationStage


class Candidate:
    """One rank of a worker; the ranks of a worker share its card."""

    def __init__(self, endpoint):
        self.endpoint = endpoint
        self.live = True


WORKERS = [Candidate(SimpleNamespace(id=f"w{number}")) for number in range(4)]


@pytest.fixture
def transfers():
    return TransfersUnderWay()


@pytest.fixture
def begin(transfers):
    def begun(sender, receiver, tokens):
        reservation = LoadReservation(1, tokens + 1, 0.0, arrives=True)
        number = len(made)
        ticket = SimpleNamespace(id=number, candidate=WORKERS[receiver], moved_tokens=tokens, reservation=reservation)
        made.append(ticket)
        transfers.begin(ticket, WORKERS[sender])
        return ticket

    made = []
    return begun


def beside(transfers, *tickets):
    return [transfers.of(ticket).tokens for ticket in tickets]


def test_a_transfer_alone_has_both_cards(transfers, begin):
    first, second = begin(0, 1, 1_000), begin(2, 3, 1_000)
    third = begin(1, 0, 1_000)  # a card sends and receives at the same time
    assert beside(transfers, first, second, third) == [0.0, 0.0, 0.0]


def test_two_transfers_over_one_card_wait_for_each_other(transfers, begin):
    first, second = begin(0, 1, 1_000), begin(0, 2, 300)
    assert beside(transfers, first, second) == [300.0, 300.0]
    third = begin(3, 1, 2_000)  # half of the first is left
    assert beside(transfers, first, second, third) == [500.0, 300.0, 500.0]


def test_the_busier_card_counts(transfers, begin):
    begin(0, 2, 1_000), begin(1, 3, 400), begin(1, 3, 400)
    last = begin(0, 3, 5_000)
    assert beside(transfers, last) == [500.0]


def test_a_transfer_is_over_with_its_first_event_and_when_its_client_leaves(transfers, begin):
    first, second = begin(0, 1, 1_000), begin(0, 1, 1_000)
    known = transfers.of(second)
    assert len(transfers.seen(WORKERS, WORKERS[1])) == 2
    first.reservation.stage = ReservationStage.DECODE
    second.reservation.stage = ReservationStage.RELEASED
    assert transfers.seen(WORKERS, WORKERS[1]) == []
    assert transfers.of(second) is None
    assert known.tokens == 500.0  # the link's speed is learned when the answer has ended


def test_nothing_moves_from_a_source_that_has_left(transfers, begin, monkeypatch):
    first = begin(0, 1, 1_000)
    monkeypatch.setattr(WORKERS[0], "live", False)
    second = begin(2, 1, 1_000)
    assert transfers.of(first) is None
    assert beside(transfers, second) == [0.0]


def test_an_answer_in_one_piece_shows_no_end_and_is_left_out(transfers, begin):
    ticket = begin(0, 1, 1_000)
    assert transfers.of(ticket) is not None
    done = SimpleNamespace(**vars(ticket) | {"id": 9})
    done.reservation.stage = ReservationStage.DECODE
    transfers.begin(done, WORKERS[0])
    assert transfers.of(done) is None


def test_ranks_of_a_worker_share_its_card(transfers, begin):
    begin(0, 1, 1_000)
    rank = Candidate(WORKERS[0].endpoint)
    senders = [WORKERS[0], rank, WORKERS[1]]
    (here,), (elsewhere,) = (transfers.seen(senders, WORKERS[number]) for number in (1, 2))
    assert here.sends.tolist() == [True, True, False]
    assert (here.receives, elsewhere.receives) == (True, False)
    assert here.tokens == 1_000.0
