import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.view import Residency
from router.residency.prompt import Prompt, PromptSource
from router.residency.residency_map import ResidencyMap
from router.residency.view import IngestOutcome
from tests.support.kv_wire import Wire, ids_prompt, text_prompt

TOKENS = list(range(100, 124))
LONGER = [*TOKENS, *range(500, 509)]


@pytest.fixture
def wire():
    return Wire("map")


def exact_slot(residency, slot, wire, tokens=(), block_size=4, capacity=1000):
    residency.add(slot, f"w:{slot}", block_size, capacity, True)
    residency.slot(slot).ingest(0, wire.batch(*([wire.stored(tokens)] if tokens else [])))


def test_calls_for_an_unknown_slot_are_ignored(wire):
    residency = ResidencyMap()
    assert residency.match(ids_prompt(TOKENS), [5])[5].residency is Residency.UNKNOWN
    assert residency.slot(5).ingest(0, wire.batch()).outcome is IngestOutcome.IGNORED
    assert residency.slot(5).link_up().outcome is residency.slot(5).replay_ended(True).outcome is IngestOutcome.IGNORED
    residency.slot(5).link_lost()
    residency.slot(5).reserve(ids_prompt(TOKENS), 1)
    residency.slot(5).first_token(1)
    residency.slot(5).finished(ids_prompt(TOKENS), 3, 0, 1)
    residency.slot(5).release(1)
    residency.slot(5).configure(block_size=3)
    residency.slot(5).tested(Residency.OFF, "")
    residency.remove(5)
    assert residency.slot(5).state().residency is Residency.UNKNOWN
    assert residency.statistics()["slots"] == {}


def test_slots_are_kept_apart_and_reused(wire):
    residency = ResidencyMap()
    exact_slot(residency, 0, wire, TOKENS)
    exact_slot(residency, 700, Wire("row", salt=1), TOKENS[:8])
    found = residency.match(ids_prompt(LONGER), iter([0, 700]))
    assert (found[0].tokens, found[700].tokens) == (24, 8)
    residency.remove(0)
    exact_slot(residency, 0, wire)
    found = residency.match(ids_prompt(LONGER), [700, 0])
    assert (found[0].tokens, found[700].tokens) == (0, 8)


def test_workers_may_have_different_block_sizes():
    residency = ResidencyMap()
    exact_slot(residency, 0, Wire("map"), TOKENS)
    exact_slot(residency, 1, Wire("map", block_size=8), TOKENS, block_size=8)
    exact_slot(residency, 2, Wire("map", block_size=5), TOKENS, block_size=5)
    residency.add(3, "w:3", 3, None, False)
    residency.slot(3).finished(ids_prompt(TOKENS), 0, 0)
    found = residency.match(ids_prompt(TOKENS), range(4))
    assert [found[slot].tokens for slot in range(4)] == [20, 16, 20, 21]


def test_a_bad_block_size_is_refused():
    with pytest.raises(ValueError, match="not positive"):
        ResidencyMap().add(0, "w:1", 0, None, True)


def test_reserved_blocks_count_until_released(wire):
    residency = ResidencyMap()
    exact_slot(residency, 0, wire, TOKENS[:8])
    exact_slot(residency, 1, wire)
    residency.slot(0).reserve(ids_prompt(TOKENS), 1)
    residency.slot(0).reserve(ids_prompt(LONGER), 2)
    residency.slot(0).reserve(ids_prompt(LONGER), 2)
    found = residency.match(ids_prompt(LONGER), [0, 1])
    assert (found[0].tokens, found[0].reserved_tokens) == (32, 24)
    assert (found[1].tokens, found[1].reserved_tokens) == (0, 0)
    residency.slot(0).ingest(1, wire.batch(wire.stored(TOKENS, 2)))
    match = residency.match(ids_prompt(LONGER), [0])[0]
    assert (match.tokens, match.reserved_tokens) == (32, 8)
    residency.slot(0).release(2)
    residency.slot(0).release(2)
    match = residency.match(ids_prompt(LONGER), [0])[0]
    assert (match.tokens, match.reserved_tokens) == (24, 0)
    residency.slot(0).release(1)
    assert residency.statistics()["reserved_blocks"] == 0


def test_reservations_are_removed_with_their_slot(wire):
    residency = ResidencyMap()
    exact_slot(residency, 0, wire)
    residency.slot(0).reserve(ids_prompt(TOKENS), 1)
    residency.remove(0)
    assert residency.statistics()["reserved_blocks"] == 0


blocks = st.lists(st.integers(0, 1), max_size=7)


@given(
    st.lists(st.tuples(st.integers(0, 3), blocks), max_size=8),
    st.lists(st.tuples(st.integers(0, 3), blocks, st.booleans()), max_size=8),
    st.lists(blocks, min_size=1, max_size=5),
)
def test_a_match_agrees_with_brute_force(stored, reservations, asked):
    """Four exact slots with closed residency and reservations on top; a reservation counts whole chains."""
    residency = ResidencyMap()
    wires = [Wire("map", salt=slot) for slot in range(4)]
    resident = [set() for _ in range(4)]
    reserved = [[] for _ in range(4)]
    seqs = [0] * 4

    def tokens_of(bits):
        return [bit for bit in bits for _ in range(4)]

    for slot in range(4):
        residency.add(slot, f"w:{slot}", 4, None, True)
    for slot, bits in stored:
        event = wires[slot].stored(tokens_of(bits))
        residency.slot(slot).ingest(seqs[slot], wires[slot].batch(event))
        seqs[slot] += 1
        resident[slot] |= {tuple(bits[: end + 1]) for end in range(len(bits))}
    for ticket, (slot, bits, release) in enumerate(reservations):
        residency.slot(slot).reserve(ids_prompt(tokens_of(bits)), ticket)
        reserved[slot].append((ticket, bits, release))
    for slot in range(4):
        for ticket, _, release in reserved[slot]:
            if release:
                residency.slot(slot).release(ticket)
        reserved[slot] = [
            {tuple(bits[: end + 1]) for end in range(len(bits))} for _, bits, gone in reserved[slot] if not gone
        ]
    for bits in asked:
        found = residency.match(ids_prompt([*tokens_of(bits), 9]), range(4))
        for slot in range(4):
            chain = [tuple(bits[: end + 1]) for end in range(len(bits))]
            held = resident[slot].union(*reserved[slot])
            count = next((end for end, block in enumerate(chain) if block not in held), len(chain))
            only = next((end for end, block in enumerate(chain) if block not in resident[slot]), len(chain))
            assert found[slot].tokens == count * 4
            assert found[slot].reserved_tokens == (count - only) * 4


def modelled(capacity=1000, **more):
    residency = ResidencyMap(**more)
    residency.add(0, "w:1", 4, capacity, False)
    return residency


def serve(residency, prompt, generated=0, cached=None, ticket=1, slot=0):
    residency.slot(slot).reserve(prompt, ticket)
    residency.slot(slot).first_token(ticket)
    residency.slot(slot).finished(prompt, generated, cached, ticket)
    residency.slot(slot).release(ticket)


@pytest.mark.parametrize("prompt", [ids_prompt, text_prompt])
def test_a_worker_without_events_is_modelled(prompt):
    residency = modelled()
    serve(residency, prompt(TOKENS), generated=10)
    match = residency.match(prompt([*TOKENS, *range(20)]), [0])[0]
    assert (match.tokens, match.reserved_tokens, match.residency) == (32, 0, Residency.APPROXIMATE)
    assert residency.match(prompt(TOKENS), [0])[0].tokens == 20
    assert residency.slot(0).state().blocks == 8


def test_ids_and_text_do_not_mix():
    residency = modelled()
    serve(residency, ids_prompt(TOKENS))
    assert residency.match(text_prompt(TOKENS), [0])[0].tokens == 0


def test_texts_to_a_worker_with_events_are_modelled(wire):
    residency = ResidencyMap()
    exact_slot(residency, 0, wire, TOKENS)
    assert residency.match(text_prompt(LONGER), [0])[0].tokens == 0
    serve(residency, text_prompt(TOKENS))
    assert residency.match(text_prompt(LONGER), [0])[0].tokens == 24
    serve(residency, ids_prompt(LONGER))
    assert residency.match(ids_prompt(LONGER), [0])[0].tokens == 24, "ids follow the events alone"


@pytest.mark.parametrize(("cached", "left"), [(4, 12), (12, 24)])
def test_only_a_smaller_report_cuts_the_model(cached, left):
    residency = modelled()
    serve(residency, ids_prompt(TOKENS))
    serve(residency, ids_prompt([*TOKENS[:12], *range(12)]), cached=cached)
    assert residency.match(ids_prompt(LONGER), [0])[0].tokens == left
    assert residency.match(ids_prompt([*TOKENS[:12], *range(12), 1]), [0])[0].tokens == 24


def test_a_larger_report_extends_the_model():
    residency = modelled()
    serve(residency, ids_prompt(TOKENS), cached=20)
    assert residency.match(ids_prompt(LONGER), [0])[0].tokens == 24
    assert residency.statistics()["slots"][0]["model"]["corrections"] == 0


def test_requests_finished_after_the_reservation_survive_a_correction():
    residency = modelled()
    serve(residency, ids_prompt(TOKENS[:8]))
    residency.slot(0).reserve(ids_prompt([*TOKENS[:8], *range(8)]), 7)
    serve(residency, ids_prompt(TOKENS), ticket=8)
    residency.slot(0).finished(ids_prompt([*TOKENS[:8], *range(8)]), 0, 0, 7)
    assert residency.match(ids_prompt(LONGER), [0])[0].tokens == 24


def test_a_text_prediction_has_a_tolerance():
    residency = modelled()
    serve(residency, text_prompt(TOKENS))
    serve(residency, text_prompt([*TOKENS, 1]), cached=16)
    assert residency.statistics()["slots"][0]["model"]["corrections"] == 0
    serve(residency, text_prompt([*TOKENS, 1]), cached=4)
    assert residency.statistics()["slots"][0]["model"]["corrections"] == 1


def test_a_request_cut_off_while_running_leaves_its_prompt():
    residency = modelled()
    residency.slot(0).reserve(ids_prompt(TOKENS), 1)
    residency.slot(0).release(1)
    assert residency.match(ids_prompt(LONGER), [0])[0].tokens == 0
    residency.slot(0).reserve(ids_prompt(TOKENS), 2)
    residency.slot(0).first_token(2)
    residency.slot(0).first_token(2)
    residency.slot(0).release(2)
    assert residency.match(ids_prompt(LONGER), [0])[0].tokens == 24
    assert residency.statistics()["slots"][0]["model"]["reserved_blocks"] == 0


def test_several_prompts_in_one_body_store_the_blocks_of_one():
    residency = modelled()
    chain = ids_prompt(TOKENS)
    prompt = Prompt(60, PromptSource.IDS, chain.chain, multiple=True)
    serve(residency, prompt, generated=40, cached=0)
    assert residency.slot(0).state().blocks == 6
    assert residency.match(ids_prompt(LONGER), [0])[0].tokens == 24


def test_the_models_are_bounded_together():
    residency = ResidencyMap(approximate_bytes=50_000)
    for slot in range(4):
        residency.add(slot, f"w:{slot}", 4, 10**6, False)
    for number in range(200):
        serve(residency, ids_prompt([number, *TOKENS]), generated=9, slot=number % 4)
        assert residency.statistics()["approximate_bytes"] <= 50_000
    figures = residency.statistics()
    assert figures["approximate_bytes"] == sum(slot["model"]["size_bytes"] for slot in figures["slots"].values())
    assert residency.match(ids_prompt([199, *TOKENS]), [3])[3].tokens == 24
    assert residency.match(ids_prompt([3, *TOKENS]), [3])[3].tokens == 0
    residency.remove(3)
    assert residency.statistics()["approximate_bytes"] < figures["approximate_bytes"]


def test_an_unknown_capacity_is_assumed_and_reported():
    residency = modelled(capacity=None)
    assert "32768 tokens are assumed" in residency.slot(0).state().reason
    assert "--kv-events-config" in residency.slot(0).state().reason
    for number in range(2000):
        serve(residency, ids_prompt([number, *TOKENS[1:]]))
    assert residency.slot(0).state().blocks == 8192
    residency.slot(0).configure(capacity_blocks=100)
    assert residency.slot(0).state().blocks == 99, "vLLM keeps one for itself"
    assert "assumed" not in residency.slot(0).state().reason


def test_another_block_size_starts_the_model_over():
    residency = modelled()
    serve(residency, ids_prompt(TOKENS))
    residency.slot(0).reserve(ids_prompt(TOKENS), 5)
    residency.slot(0).first_token(5)
    residency.slot(0).configure(block_size=8)
    residency.slot(0).release(5)
    serve(residency, ids_prompt(TOKENS))
    assert residency.match(ids_prompt(LONGER), [0])[0].tokens == 24
    assert residency.slot(0).state().block_size == 8


def test_events_can_be_switched_on_and_off(wire):
    residency = modelled()
    serve(residency, ids_prompt(TOKENS))
    residency.slot(0).configure(events=True, capacity_blocks=50)
    assert residency.slot(0).state().residency is Residency.APPROXIMATE
    assert residency.slot(0).state().reason == "KV events cannot be reached; its cache is modelled"
    assert residency.slot(0).link_up().replay_from == 0
    assert "waiting for a replay" in residency.slot(0).state().reason
    residency.slot(0).replay_ended(True)
    assert residency.slot(0).state().residency is Residency.EXACT
    residency.slot(0).ingest(0, wire.batch(wire.stored(LONGER), ts=12.5))
    assert residency.slot(0).state().reason == "1 event batches applied"
    assert (residency.slot(0).state().next_seq, residency.slot(0).state().last_event_ts_s) == (1, 12.5)
    assert residency.match(ids_prompt(LONGER), [0])[0].tokens == 32
    residency.slot(0).link_lost()
    assert residency.match(ids_prompt(LONGER), [0])[0].residency is Residency.UNKNOWN
    assert residency.match(ids_prompt(LONGER), [0])[0].tokens == 32, "the last known state"
    residency.slot(0).configure(events=False)
    assert residency.slot(0).state().residency is Residency.APPROXIMATE
    assert residency.match(ids_prompt(LONGER), [0])[0].tokens == 24, "what the model kept"


def test_the_model_is_used_until_the_publisher_is_reached():
    residency = ResidencyMap()
    residency.add(0, "w:1", 4, 100, True)
    serve(residency, ids_prompt(TOKENS))
    match = residency.match(ids_prompt(LONGER), [0])[0]
    assert (match.tokens, match.residency) == (24, Residency.APPROXIMATE)
    residency.slot(0).events_from("tcp://w:5557")
    assert residency.slot(0).state().reason == "KV events cannot be reached at tcp://w:5557; its cache is modelled"
    assert residency.slot(0).state().blocks == 6


def test_a_view_without_a_replay_is_unverified(wire):
    residency = ResidencyMap()
    residency.add(0, "w:1", 4, 100, True)
    residency.slot(0).link_up()
    residency.slot(0).replay_ended(False)
    assert "no event since" in residency.slot(0).state().reason
    residency.slot(0).ingest(0, wire.batch(wire.stored(TOKENS)))
    assert residency.slot(0).state().residency is Residency.EXACT


@pytest.mark.parametrize(
    ("verdict", "residency", "tokens"),
    [
        (Residency.EXACT, Residency.EXACT, 24),
        (Residency.APPROXIMATE, Residency.APPROXIMATE, 24),
        (Residency.UNKNOWN, Residency.EXACT, 24),
        (Residency.OFF, Residency.OFF, 0),
    ],
)
def test_the_self_test_overrides_the_view(wire, verdict, residency, tokens):
    found = ResidencyMap()
    exact_slot(found, 0, wire, TOKENS)
    found.slot(0).tested(verdict, "because of a trial")
    match = found.match(ids_prompt(LONGER), [0])[0]
    assert (match.residency, match.tokens) == (residency, tokens)
    assert "because of a trial" in found.slot(0).state().reason


def test_the_reason_counts_replays(wire):
    residency = ResidencyMap()
    residency.add(0, "w:1", 4, 100, True)
    residency.slot(0).ingest(0, wire.batch())
    assert residency.slot(0).ingest(2, wire.batch()).replay_from == 1
    residency.slot(0).ingest(1, wire.batch(), replayed=True)
    residency.slot(0).replay_ended(True)
    assert residency.slot(0).state().reason == "3 event batches applied, 1 of them replayed"


@pytest.mark.parametrize("released", [False, True])
def test_one_recomputing_request_makes_one_copy(wire, released):
    """A second announcement of the same prompt describes the same copy."""
    residency = ResidencyMap()
    exact_slot(residency, 0, wire, TOKENS)
    prompt, hashes = ids_prompt(TOKENS), wire.hashes(TOKENS)
    residency.slot(0).reserve(prompt, 7, 0, recomputes=True)
    if released:
        residency.slot(0).release(7)
    for seq in range(1, 3):
        residency.slot(0).ingest(seq, wire.batch(wire.stored(TOKENS)))
    copies = 1 if released else 2
    for seq in range(copies):
        assert residency.match(prompt, [0])[0].tokens == 20
        residency.slot(0).ingest(3 + seq, wire.batch(wire.removed(hashes)))
    assert residency.match(prompt, [0])[0].tokens == 0
