"""Which requests ask for announcements, the bound on their cost, and when nothing is missing any more."""

import pytest

from policies.view import Residency
from router.residency.exact.relearning import ASKED_KEPT, BURST_S, AnnouncementBudget, Relearning
from router.residency.residency_map import ResidencyMap
from tests.support.kv_wire import Wire, ids_prompt, text_prompt

SYSTEM = list(range(100, 112))
TOKENS = [*SYSTEM, *range(200, 213)]
RATE = 100


@pytest.fixture
def wire():
    return Wire("map")


class Lossy:
    """A view that missed batches 0 to 6, and a hand-written worker behind it."""

    def __init__(self, wire, capacity=1_000):
        self.wire = wire
        self.map = ResidencyMap(relearn_blocks_per_s=RATE)
        self.map.add(0, "w:1", 4, capacity, True)
        self.map.slot(0).ingest(7, wire.batch())
        self.map.slot(0).replay_ended(False)
        self.seq = 8
        self.ticket = 0
        self.now_s = 0.0

    def send(self, *events):
        self.map.slot(0).ingest(self.seq, self.wire.batch(*events))
        self.seq += 1

    def reserve(self, tokens):
        self.ticket += 1
        self.map.slot(0).reserve(ids_prompt(tokens), self.ticket)
        return self.ticket

    def asks(self, tokens):
        return self.map.asks_again(0, self.reserve(tokens), self.now_s)

    def end(self, tokens, ticket, cached=None):
        self.map.slot(0).finished(ids_prompt(tokens), 0, cached, ticket)
        self.map.slot(0).release(ticket)

    def held(self, tokens):
        return self.map.match(ids_prompt(tokens), [0])[0].tokens

    @property
    def figures(self):
        return self.map.statistics()["slots"][0]

    @property
    def residency(self):
        return self.map.slot(0).state().residency


@pytest.fixture
def lossy(wire):
    return Lossy(wire)


# Which requests ask.


def test_an_unknown_prompt_asks_and_is_known_afterwards(lossy, wire):
    ticket = lossy.reserve(TOKENS)
    assert lossy.map.asks_again(0, ticket, 0.0)
    assert lossy.map.asks_again(0, ticket, 0.0), "asked again, the same request has the same answer"
    lossy.send(wire.stored(TOKENS[:24]))
    lossy.end(TOKENS, ticket)
    assert lossy.held(TOKENS) == 24
    assert lossy.figures["relearn_asks"] == 1 and lossy.figures["relearn_unanswered"] == 0
    assert lossy.figures["relearned_blocks"] == lossy.figures["reannounced_blocks"] == 6
    assert "6 of them announced again" in lossy.map.slot(0).state().reason
    assert not lossy.asks(TOKENS), "all of it is known"


def test_unknown_blocks_may_follow_reannounced_ones(lossy, wire):
    lossy.send(wire.stored(SYSTEM))
    assert lossy.asks(TOKENS)


def test_no_unknown_block_follows_a_computed_one(lossy, wire):
    lossy.send(wire.stored(SYSTEM), wire.stored(TOKENS[:16], 3))
    assert not lossy.asks(TOKENS)


def test_blocks_known_from_reports_alone_are_asked_for(lossy):
    lossy.end(TOKENS, lossy.reserve(TOKENS), 24)
    assert lossy.held(TOKENS) == 24
    assert lossy.asks(TOKENS), "no eviction would be heard"


def test_an_exact_view_asks_nothing(wire):
    view = ResidencyMap()
    view.add(0, "w:1", 4, 100, True)
    view.slot(0).ingest(0, wire.batch())
    view.slot(0).reserve(ids_prompt(TOKENS), 1)
    assert not view.asks_again(0, 1, 0.0)
    assert not view.asks_again(0, 99, 0.0) and not view.asks_again(7, 1, 0.0)


def test_no_request_asks_while_the_link_is_down(wire):
    view = ResidencyMap()
    view.add(0, "w:1", 4, 100, True)
    view.slot(0).reserve(ids_prompt(TOKENS), 1)
    assert not view.asks_again(0, 1, 0.0), "no link"
    view.slot(0).link_up()
    view.slot(0).reserve(ids_prompt(TOKENS), 2)
    assert not view.asks_again(0, 2, 0.0), "a replay is under way"
    view.slot(0).replay_ended(False)
    view.slot(0).reserve(ids_prompt(TOKENS), 3)
    assert view.asks_again(0, 3, 0.0), "no replay, and no event so far"
    view.slot(0).link_lost()
    assert not view.asks_again(0, 3, 0.0)


@pytest.mark.parametrize("tokens", [TOKENS[:8], TOKENS[:4], []])
def test_prompts_of_less_than_two_usable_blocks_do_not_ask(lossy, tokens):
    assert not lossy.asks(tokens)


def test_texts_do_not_ask(lossy):
    lossy.map.slot(0).reserve(text_prompt(TOKENS), 1)
    assert not lossy.map.asks_again(0, 1, 0.0)


# The bound.


def test_the_budget_fills_steadily_and_may_be_overdrawn_once():
    allowance = AnnouncementBudget()
    assert allowance.has_any(0.0, RATE)
    allowance.take(int(RATE * BURST_S) + 50)
    assert not allowance.has_any(0.4, RATE)
    assert allowance.has_any(0.6, RATE)
    allowance.take(-10_000)
    allowance.take(int(RATE * BURST_S) - 1)
    assert allowance.has_any(1_000.0, RATE)
    allowance.take(int(RATE * BURST_S))
    assert not allowance.has_any(1_000.0, RATE), "it never holds more than the burst"


def test_over_time_no_more_is_announced_than_the_rate_allows(lossy, wire):
    """Prompts of 50 blocks, 20 per second: the budget is 100 blocks per second."""
    announced = 0
    for number in range(2_000):
        lossy.now_s += 0.05
        tokens = [number, *range(5_000, 5_200)]
        ticket = lossy.reserve(tokens)
        if lossy.map.asks_again(0, ticket, lossy.now_s):
            lossy.send(wire.stored(tokens[:200]))
            announced += 50
        lossy.end(tokens, ticket)
    assert 0.95 * RATE * 100 <= announced <= RATE * (100 + BURST_S) + 50


def test_blocks_that_are_not_announced_are_refunded(lossy, wire):
    asked = 0
    for number in range(200):
        lossy.now_s += 0.05
        tokens = [number, *range(5_000, 5_200)]
        ticket = lossy.reserve(tokens)
        asked += lossy.map.asks_again(0, ticket, lossy.now_s)
        lossy.send(wire.stored(tokens[:12]), wire.stored(tokens[:200], 3))
        lossy.end(tokens, ticket)
    assert asked == 200


def test_repeated_announcements_are_paid_for_each_time(lossy, wire):
    ticket = lossy.reserve(TOKENS)
    assert lossy.map.asks_again(0, ticket, 0.0)
    for _ in range(200):
        lossy.send(wire.stored(TOKENS[:24]))
    assert lossy.figures["reannounced_blocks"] == 1_200
    assert lossy.figures["copies_beyond_the_first"] == 0
    assert not lossy.asks(list(range(9_000, 9_030)))


def test_remembered_asking_requests_are_bounded():
    relearning = Relearning()
    for ticket in range(ASKED_KEPT + 10):
        relearning.opened(ticket, [ticket, 1, 2])
        assert relearning.ask(ticket, 0.0, 1e9)
    assert relearning.expects(ASKED_KEPT + 9) and not relearning.expects(9)


# Announcements and copies.


def test_a_single_block_announced_for_an_asking_request_adds_no_copy(lossy, wire):
    lossy.send(wire.stored(SYSTEM[:4]))
    assert lossy.asks(TOKENS)
    for _ in range(3):
        lossy.send(wire.stored(SYSTEM[:4]))
    assert lossy.figures["copies_beyond_the_first"] == 0
    lossy.send(wire.removed(wire.hashes(SYSTEM[:4])))
    assert lossy.held(TOKENS) == 0


def test_a_single_block_continued_in_the_same_step_adds_no_copy(wire):
    """Another gateway's request asked; this gateway's view is exact."""
    view = ResidencyMap()
    view.add(0, "w:1", 4, 100, True)
    view.slot(0).ingest(0, wire.batch(wire.stored(TOKENS[:4])))
    view.slot(0).ingest(1, wire.batch(wire.stored(TOKENS[:4]), wire.stored(TOKENS[:12], 1)))
    assert view.statistics()["slots"][0]["copies_beyond_the_first"] == 0
    view.slot(0).ingest(2, wire.batch(wire.stored(TOKENS[:4])))
    assert view.statistics()["slots"][0]["copies_beyond_the_first"] == 1, "a prompt of one block, computed again"


def test_an_announcement_adopts_waiting_orphans_as_its_copies(lossy, wire):
    lossy.send(wire.stored(TOKENS[:16], 2))
    lossy.send(wire.stored(TOKENS[:16], 3))
    lossy.send(wire.stored(TOKENS[:24]))
    assert lossy.held(TOKENS) == 24
    assert lossy.figures["copies_beyond_the_first"] == 1, "block 3 was filled twice"
    last = wire.hashes(TOKENS)[3]
    lossy.send(wire.removed([last]))
    assert lossy.held(TOKENS) == 24
    lossy.send(wire.removed([last]))
    assert lossy.held(TOKENS) == 12


# The end of relearning.


def turn_over(lossy, first):
    """A new prompt after the known system prompt is computed and evicted; its tail is evicted first."""
    tokens = [*SYSTEM, *range(first, first + 12)]
    lossy.send(wire_stored := lossy.wire.stored(tokens, 3))
    return wire_stored["block_hashes"]


def first_round(lossy):
    """Pass the first round, and return the witnesses of the second one."""
    lossy.send(lossy.wire.stored(SYSTEM))
    lossy.send(lossy.wire.removed(turn_over(lossy, 1_000)))
    return turn_over(lossy, 2_000)


def relearned(lossy):
    lossy.send(lossy.wire.removed(first_round(lossy)[::-1]))


def test_after_two_rounds_of_evictions_the_view_is_exact(lossy):
    relearned(lossy)
    assert lossy.residency is Residency.EXACT
    assert lossy.figures["relearned"] == 1
    assert not lossy.asks(TOKENS), "what is not known is not there"


def test_one_round_of_evictions_is_not_enough(lossy):
    lossy.send(lossy.wire.stored(SYSTEM))
    hashes = turn_over(lossy, 1_000) + turn_over(lossy, 2_000)
    lossy.send(lossy.wire.removed(hashes))
    assert lossy.residency is Residency.APPROXIMATE


def test_blocks_with_a_possible_second_copy_are_no_witnesses(lossy):
    """The first block after a hit may be a prompt's last one, computed again; generated blocks arrive one by one."""
    lossy.send(lossy.wire.stored(SYSTEM))
    for first in range(1_000, 2_000, 100):
        tokens = [*SYSTEM, *range(first, first + 4)]
        lossy.send(lossy.wire.stored(tokens, 3))
        lossy.send(lossy.wire.removed(lossy.wire.hashes(tokens)[3:]))
    assert lossy.residency is Residency.APPROXIMATE


def interrupt_by_unasked(lossy):
    lossy.map.slot(0).release(lossy.reserve([7] * 40))


def interrupt_by_running(lossy):
    lossy.reserve([7] * 40)


def interrupt_by_orphan(lossy):
    lossy.send(lossy.wire.stored([7] * 40, 3))


def interrupt_by_report(lossy):
    tokens = [*SYSTEM, *range(8_000, 8_012), 1]
    lossy.end(tokens, lossy.reserve(tokens), 24)


@pytest.mark.parametrize(
    "interrupt", [interrupt_by_unasked, interrupt_by_running, interrupt_by_orphan, interrupt_by_report]
)
def test_a_possible_use_of_an_unknown_block_restarts_the_wait(lossy, interrupt):
    hashes = first_round(lossy)
    interrupt(lossy)
    lossy.send(lossy.wire.removed(hashes))
    assert lossy.residency is Residency.APPROXIMATE


def test_a_request_without_unknown_blocks_does_not_restart_the_wait(lossy):
    hashes = first_round(lossy)
    ticket = lossy.reserve(TOKENS)
    assert lossy.map.asks_again(0, ticket, 0.0)
    lossy.send(lossy.wire.stored(SYSTEM))
    lossy.end(TOKENS, ticket)
    lossy.end(TOKENS, lossy.reserve(TOKENS), 12)
    lossy.send(lossy.wire.removed(hashes))
    assert lossy.residency is Residency.EXACT


def test_an_unanswered_request_does_not_count_as_announced(lossy):
    hashes = first_round(lossy)
    other = list(range(3_000, 3_030))
    ticket = lossy.reserve(other)
    assert lossy.map.asks_again(0, ticket, 0.0)
    lossy.end(other, ticket)
    lossy.send(lossy.wire.removed(hashes))
    assert lossy.residency is Residency.APPROXIMATE
    assert lossy.figures["relearn_unanswered"] == 1


def test_an_announcement_may_arrive_after_the_response(lossy):
    hashes = first_round(lossy)
    ticket = lossy.reserve(TOKENS)
    assert lossy.map.asks_again(0, ticket, 0.0)
    lossy.end(TOKENS, ticket)
    lossy.send(lossy.wire.stored(SYSTEM))
    lossy.send(lossy.wire.removed(hashes))
    assert lossy.residency is Residency.EXACT and lossy.figures["relearn_unanswered"] == 0


def test_another_loss_restarts_relearning_and_a_reset_ends_it(lossy):
    relearned(lossy)
    lossy.map.slot(0).ingest(lossy.seq + 3, lossy.wire.batch())
    lossy.map.slot(0).replay_ended(False)
    lossy.seq += 4
    assert lossy.residency is Residency.APPROXIMATE and lossy.held(TOKENS) == 0
    lossy.send(lossy.wire.cleared())
    assert lossy.residency is Residency.EXACT and not lossy.asks(TOKENS)
