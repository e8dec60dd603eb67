import pytest

from policies.view import Residency
from router.residency.event_feed import ABSENT_REQUESTS
from router.residency.exact.drift import ROUNDS, TOLERATED
from router.residency.residency_map import ResidencyMap
from tests.support.kv_wire import Wire, ids_prompt, text_prompt

TOKENS = list(range(100, 124))
LONGER = [*TOKENS, *range(500, 509)]
LINKED = "tcp://w:5557"


@pytest.fixture
def wire():
    return Wire("map")


@pytest.fixture
def lossy(wire):
    """A view that missed everything before batch 7."""
    residency = ResidencyMap()
    residency.add(0, "w:1", 4, 20, True)
    residency.slot(0).ingest(7, wire.batch())
    residency.slot(0).replay_ended(False)
    return residency


@pytest.fixture
def exact(wire):
    residency = ResidencyMap()
    residency.add(0, "w:1", 4, 1000, True)
    residency.slot(0).events_from(LINKED, "nope")
    residency.slot(0).ingest(0, wire.batch(wire.stored(TOKENS)))
    return residency


def serve(residency, prompt, cached, ticket=1, arriving=None):
    """Serve a request that found `cached` tokens; the batch `arriving` comes in while it runs."""
    residency.slot(0).reserve(prompt, ticket, held(residency, prompt))
    if arriving is not None:
        residency.slot(0).ingest(*arriving)
    residency.slot(0).finished(prompt, 0, cached, ticket)
    residency.slot(0).release(ticket)


def held(residency, prompt):
    return residency.match(prompt, [0])[0].tokens


def test_reports_teach_a_view_that_missed_events(lossy):
    serve(lossy, ids_prompt(TOKENS), 20)
    match = lossy.match(ids_prompt(TOKENS), [0])[0]
    assert (match.tokens, match.residency) == (20, Residency.APPROXIMATE)
    assert lossy.slot(0).state().reason == (
        "event batches 0 to 6 were missed and could not be replayed; 5 blocks learned since, "
        "from events and 1 reports; exact once the cache has turned over or is reset"
    )
    serve(lossy, ids_prompt(TOKENS), 8)
    assert held(lossy, ids_prompt(TOKENS)) == 8, "the rest was not there any more"


def test_an_old_report_removes_no_newer_blocks(lossy):
    lossy.slot(0).reserve(ids_prompt(TOKENS), 7)
    serve(lossy, ids_prompt(TOKENS), 20)
    lossy.slot(0).finished(ids_prompt(TOKENS), 0, 0, 7)
    assert held(lossy, ids_prompt(TOKENS)) == 20


def test_reported_blocks_are_bounded_by_the_free_capacity(lossy, wire):
    for first in range(30):
        serve(lossy, ids_prompt([first, *TOKENS]), 24)
    assert lossy.slot(0).state().blocks == 19, "one of the 20 is never given to a request"
    assert held(lossy, ids_prompt([29, *TOKENS])) == 24 and held(lossy, ids_prompt([2, *TOKENS])) == 0
    lossy.slot(0).ingest(8, wire.batch(wire.stored(range(900, 968))))
    assert lossy.slot(0).state().blocks == 19, "17 blocks are known from events, 2 may be older"


def test_an_announced_block_is_followed_by_events_again(lossy, wire):
    serve(lossy, ids_prompt(TOKENS), 20)
    lossy.slot(0).ingest(8, wire.batch(wire.stored(TOKENS)))
    assert held(lossy, ids_prompt(LONGER)) == 24
    lossy.slot(0).ingest(9, wire.batch(wire.removed(wire.hashes(TOKENS)[2:])))
    assert held(lossy, ids_prompt(LONGER)) == 8


def test_a_report_adopts_orphans_and_learns_the_name_of_their_parent(lossy, wire):
    serve(lossy, ids_prompt(LONGER), 24, arriving=(8, wire.batch(wire.stored(LONGER, 6))))
    assert held(lossy, ids_prompt(LONGER)) == 32, "the first six blocks had been announced before"
    lossy.slot(0).ingest(9, wire.batch(wire.removed([wire.hashes(LONGER)[5]])))
    assert held(lossy, ids_prompt(LONGER)) == 20


@pytest.mark.parametrize("followers", [[2], []], ids=["after what it computes", "alone"])
def test_runs_from_before_a_request_name_no_block(lossy, wire, followers):
    """Text repeats: the older run is the third block's child, and begins like the first block's."""
    repeating = [*TOKENS[:4], *TOKENS[4:8] * 2]
    lossy.slot(0).ingest(8, wire.batch(wire.stored(repeating, 2)))
    mine = [*repeating[:8], 9, 9]
    batch = wire.batch(*(wire.stored(mine, 1) for _ in followers))
    serve(lossy, ids_prompt(mine), 4, arriving=(9, batch))
    assert held(lossy, ids_prompt([*repeating, 9])) == (12 if followers else 4)
    lossy.slot(0).ingest(10, wire.batch(wire.removed([wire.hashes(repeating)[1]])))
    assert held(lossy, ids_prompt(mine)) == 4


def test_a_removal_by_a_learned_key_also_counts_for_the_waiting_run(lossy, wire):
    lossy.slot(0).ingest(8, wire.batch(wire.stored(TOKENS[:8], 1)))
    serve(lossy, ids_prompt([*TOKENS[:12], 9]), 8, arriving=(9, wire.batch(wire.stored(TOKENS[:12], 2))))
    assert held(lossy, ids_prompt([*TOKENS[:12], 9])) == 12
    lossy.slot(0).ingest(10, wire.batch(wire.removed(wire.hashes(TOKENS)[2:0:-1])))
    lossy.slot(0).ingest(11, wire.batch(wire.stored(TOKENS[:4])))
    assert held(lossy, ids_prompt(TOKENS)) == 4, "what followed the first block has gone, whoever arriving of it"


def test_a_run_that_fits_several_parents_names_none(lossy, wire):
    lossy.slot(0).reserve(ids_prompt(LONGER), 1, 0)
    lossy.slot(0).ingest(8, wire.batch(wire.stored(LONGER, 6), wire.stored([*range(800, 824), *LONGER[24:32]], 6)))
    lossy.slot(0).finished(ids_prompt(LONGER), 0, 24, 1)
    lossy.slot(0).release(1)
    assert held(lossy, ids_prompt(LONGER)) == 24


def test_children_of_a_named_block_are_not_orphans(lossy, wire):
    serve(lossy, ids_prompt(LONGER), 24, arriving=(8, wire.batch(wire.stored(LONGER, 6))))
    other = [*TOKENS, *range(700, 708)]
    lossy.slot(0).ingest(9, wire.batch(wire.stored(other, 6)))
    assert held(lossy, ids_prompt([*other, 1])) == 32


def test_reports_outlive_a_further_loss_but_not_a_reset(lossy, wire):
    serve(lossy, ids_prompt(TOKENS), 20)
    lossy.slot(0).ingest(12, wire.batch())
    lossy.slot(0).replay_ended(False)
    assert held(lossy, ids_prompt(TOKENS)) == 20
    lossy.slot(0).ingest(13, wire.batch(wire.cleared()))
    assert (held(lossy, ids_prompt(TOKENS)), lossy.slot(0).state().residency) == (0, Residency.EXACT)


def test_a_loss_at_the_start_is_a_gap_and_counted_once(lossy, wire):
    assert lossy.statistics()["slots"][0]["gaps"] == 1
    residency = ResidencyMap()
    residency.add(0, "w:1", 4, 20, True)
    residency.slot(0).link_up()
    assert residency.slot(0).ingest(7, wire.batch(), replayed=True).missing == 7
    residency.slot(0).replay_ended(True)
    assert residency.statistics()["slots"][0]["gaps"] == 1


def test_the_model_learns_before_the_first_event(wire):
    """A gateway in front of a warm worker without a replay socket."""
    residency = ResidencyMap()
    residency.add(0, "w:1", 4, 100, True)
    residency.slot(0).link_up()
    residency.slot(0).replay_ended(False)
    serve(residency, ids_prompt(TOKENS), 20)
    assert held(residency, ids_prompt(TOKENS)) == 20
    residency.slot(0).ingest(41, wire.batch())
    residency.slot(0).replay_ended(False)
    assert held(residency, ids_prompt(TOKENS)) == 20
    assert "0 to 40 were missed" in residency.slot(0).state().reason


def test_a_silent_publisher_is_replaced_by_the_model(wire):
    residency = ResidencyMap()
    residency.add(0, "w:1", 4, 100, True)
    residency.slot(0).events_from(LINKED, "nope")
    residency.slot(0).link_up()
    residency.slot(0).replay_ended(True)
    assert residency.slot(0).state().residency is Residency.EXACT, "an empty cache, as far as anyone can tell"
    serve(residency, ids_prompt(TOKENS), 0)
    serve(residency, ids_prompt(TOKENS), 20)
    match = residency.match(ids_prompt(TOKENS), [0])[0]
    assert (match.tokens, match.residency) == (20, Residency.APPROXIMATE)
    assert residency.slot(0).state().reason == (
        f"linked to {LINKED}, but no batch arrived: is the topic 'nope' right?; its cache is modelled"
    )
    residency.slot(0).ingest(0, wire.batch(wire.stored(LONGER)))
    assert (residency.slot(0).state().residency, held(residency, ids_prompt(LONGER))) == (Residency.EXACT, 32)


def test_a_blind_self_test_switches_to_the_model(exact):
    exact.slot(0).tested(Residency.APPROXIMATE, "the tokenizer differs", blind=True)
    assert held(exact, ids_prompt(LONGER)) == 0
    serve(exact, ids_prompt(TOKENS), 0)
    match = exact.match(ids_prompt(LONGER), [0])[0]
    assert (match.tokens, match.residency) == (24, Residency.APPROXIMATE)
    assert exact.slot(0).state().reason == "the tokenizer differs; its cache is modelled"
    exact.slot(0).tested(Residency.EXACT, "they agree")
    assert exact.slot(0).state().residency is Residency.EXACT


def test_a_lost_publisher_is_replaced_by_the_model_after_a_while(exact):
    exact.slot(0).link_lost()
    other = ids_prompt(range(900, 925))
    for ticket in range(ABSENT_REQUESTS):
        assert exact.match(ids_prompt(LONGER), [0])[0].residency is Residency.UNKNOWN
        serve(exact, other, 0 if ticket == 0 else 24, ticket)
    match = exact.match(other, [0])[0]
    assert (match.tokens, match.residency) == (24, Residency.APPROXIMATE)
    assert (
        exact.slot(0).state().reason
        == f"no connection to the worker's KV event publisher at {LINKED}; its cache is modelled"
    )


def test_an_exact_view_with_repeated_differences_becomes_approximate(exact, wire):
    for number in range(TOLERATED + ROUNDS + 2):
        serve(exact, ids_prompt([*range(1000 + 8 * number, 1008 + 8 * number), 1]), 8, number)
    assert held(exact, ids_prompt([*range(1000, 1008), 1])) == 8
    state = exact.slot(0).state()
    assert state.residency is Residency.APPROXIMATE
    assert state.reason.startswith(f"{TOLERATED + 1} of the last ") or "reports differed" in state.reason
    assert exact.statistics()["slots"][0]["mismatches"] > TOLERATED
    exact.slot(0).ingest(1, wire.batch(wire.cleared()))
    assert exact.slot(0).state().residency is Residency.EXACT


def test_events_after_their_response_are_no_drift(exact, wire):
    for number in range(40):
        tokens = range(1000 + 8 * number, 1008 + 8 * number)
        serve(exact, ids_prompt([*tokens, 1]), 8, number)
        exact.slot(0).ingest(1 + number, wire.batch(wire.stored(tokens)))
    figures = exact.statistics()["slots"][0]
    assert (figures["mismatches"], figures["reported_blocks"]) == (0, 0)
    assert exact.slot(0).state().residency is Residency.EXACT


def test_an_eviction_while_queued_is_no_drift(exact, wire):
    for number in range(40):
        exact.slot(0).reserve(ids_prompt(LONGER), number, held(exact, ids_prompt(LONGER)))
        exact.slot(0).ingest(1 + 2 * number, wire.batch(wire.removed(wire.hashes(TOKENS)[::-1])))
        exact.slot(0).ingest(2 + 2 * number, wire.batch(wire.stored(TOKENS)))
        exact.slot(0).finished(ids_prompt(LONGER), 0, 0, number)
        exact.slot(0).release(number)
    assert exact.statistics()["slots"][0]["mismatches"] == 0
    assert exact.slot(0).state().residency is Residency.EXACT


def test_copies_that_do_not_exist_are_removed(exact, wire):
    """A worker that announces a removal only with the last copy makes counts leak."""
    for number in range(1, ROUNDS + TOLERATED + 8):
        exact.slot(0).reserve(ids_prompt(LONGER), number, held(exact, ids_prompt(LONGER)))
        exact.slot(0).ingest(number, wire.batch(wire.stored(TOKENS[:4]), wire.stored(TOKENS, 1)))
        exact.slot(0).finished(ids_prompt(LONGER), 0, 0, number)
        exact.slot(0).release(number)
    figures = exact.statistics()["slots"][0]
    assert figures["mismatches"] > TOLERATED and exact.slot(0).state().residency is Residency.APPROXIMATE
    assert figures["copies_beyond_the_first"] <= 6 * (ROUNDS + 1)


def test_switched_off_events_are_not_blamed_on_the_worker():
    residency = ResidencyMap()
    residency.add(0, "w:1", 4, 100, False)
    residency.slot(0).switched_off()
    residency.slot(0).tested(Residency.APPROXIMATE, "KV events are switched off by residency.kv_events")
    assert residency.slot(0).state().reason == "KV events are switched off by residency.kv_events"


def test_texts_are_never_exact(exact):
    assert exact.match(text_prompt(TOKENS), [0])[0].residency is Residency.APPROXIMATE


def test_unseen_cache_use_is_learned_from_reports():
    """The worker has half the assumed capacity: three alternating prompts fit into the model only."""
    residency = ResidencyMap()
    residency.add(0, "w:1", 4, 21, False)
    prompts = [ids_prompt([first, *TOKENS]) for first in range(3)]
    wrong = []
    for turn in range(60):
        prompt = prompts[turn % 3]
        wrong.append(held(residency, prompt) != 0)
        serve(residency, prompt, 0, turn)
    assert sum(wrong[3:12]) > 3 and not any(wrong[-6:])
