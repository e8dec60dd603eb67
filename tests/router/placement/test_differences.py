import msgspec
import pytest

from backends.engine.events import BlocksCached, BlocksEvicted, CacheCleared
from backends.simulated.publisher import to_wire
from policies.view import Residency
from router.placement.request import Request, Usage
from router.residency.chain import SEED, extend_chain, pack_tokens
from router.residency.exact.drift import ROUNDS
from router.residency.prompt import Prompt, PromptSource
from router.residency.residency_map import ResidencyMap
from tests.router.placement.conftest import Rig
from tests.support.metrics import counted

IDS = [*range(100)]
OTHER_IDS = [*range(500, 600)]


class Watched(Rig):
    """One worker whose KV events the test sends."""

    def __init__(self, facts, prompt):
        super().__init__(ResidencyMap(), facts, prompt, workers=1, policy="least_tokens")
        self.residency.on_settled.append(self.core.tickets.explained)
        self.residency.slot(0).link_up()
        self.residency.slot(0).replay_ended(True)
        self.seq = 0

    def tell(self, *events):
        payload = msgspec.msgpack.encode([0.0, [to_wire(event) for event in events], 0])
        self.residency.slot(0).ingest(self.seq, payload)
        self.seq += 1

    def stored(self, ids, start=0, end=6):
        names = [1_000 * ids[0] + block for block in range(end)]
        tokens = ids[16 * start : 16 * end]
        parent = names[start - 1] if start else None
        return BlocksCached(tuple(names[start:]), parent, tokens, 16, None, (None,) * (end - start))

    def removed(self, ids, *blocks):
        return BlocksEvicted(tuple(1_000 * ids[0] + block for block in blocks))

    def ask(self, ids):
        prompt = self.prompt(ids) if isinstance(ids, list) else ids
        return self.core.dispatcher.dispatch(Request("r", "/v1/completions", "m", prompt, prompt.tokens, 0.0), 0.0)

    def answer(self, ticket, cached):
        self.core.tickets.finished(ticket, Usage(100, 1, cached), 0.1)
        return ticket.record.difference

    def rounds(self, count):
        for number in range(count):
            ids = [10_000 + number] * 40
            self.answer(self.ask(ids), 0)

    @property
    def told(self):
        return [kind for _, kind in counted(self.registry, "cached_differences")]

    @property
    def counted(self):
        counted = self.core.statistics()["workers"]["h:1"]["predicted_cached"]
        return {name: count for name, count in counted["differences"].items() if count} | {
            "pending": counted["pending"]
        }


@pytest.fixture
def rig(facts, prompt):
    return Watched(facts, prompt)


def test_none(rig):
    rig.tell(rig.stored(IDS))
    ticket = rig.ask(IDS)
    assert rig.answer(ticket, 96) is None
    assert (ticket.record.residency, rig.told, rig.counted) == (Residency.EXACT, [], {"pending": 0})


def test_its_event_came_before_the_answer(rig):
    ticket = rig.ask(IDS)
    rig.tell(rig.stored(IDS))
    assert rig.answer(ticket, 96) == "scheduled_since"
    assert rig.told == ["scheduled_since"]
    assert rig.counted == {"scheduled_since": 1, "pending": 0}


def test_its_event_comes_after_the_answer(rig):
    ticket = rig.ask(IDS)
    assert rig.answer(ticket, 96) == "pending"
    assert (rig.told, rig.counted) == ([], {"pending": 1})
    rig.tell(rig.stored(IDS))
    rig.rounds(1)
    assert ticket.record.difference == "scheduled_since"
    assert ticket.record.to_builtins()["difference"] == "scheduled_since"
    assert rig.counted == {"scheduled_since": 1, "pending": 0}
    assert rig.core.statistics()["unexplained"] == 0


def test_stored_and_evicted_again_meanwhile(rig):
    ticket = rig.ask(IDS)
    rig.tell(rig.stored(IDS))
    rig.tell(rig.removed(IDS, 5, 4, 3, 2, 1, 0))
    assert rig.answer(ticket, 96) == "scheduled_since"


def test_evicted_while_it_waited(rig):
    rig.tell(rig.stored(IDS))
    ticket = rig.ask(IDS)
    rig.tell(rig.removed(IDS, 5, 4))
    rig.tell(rig.stored(IDS, 4))
    assert rig.answer(ticket, 64) == "evicted_while_queued"


def test_evicted_and_told_of_later(rig):
    rig.tell(rig.stored(IDS))
    ticket = rig.ask(IDS)
    assert rig.answer(ticket, 0) == "pending"
    rig.tell(rig.removed(IDS, 5, 4, 3, 2, 1, 0), rig.stored(IDS))
    rig.rounds(1)
    assert ticket.record.difference == "evicted_while_queued"


def test_an_eviction_of_other_blocks_explains_nothing(rig):
    rig.tell(rig.stored(IDS), rig.stored(OTHER_IDS))
    ticket = rig.ask(IDS)
    rig.tell(rig.removed(IDS, 5, 4), rig.removed(OTHER_IDS, 5, 4, 3, 2, 1, 0))
    assert rig.answer(ticket, 32) == "pending"
    rig.rounds(ROUNDS - 1)
    assert ticket.record.difference == "pending"
    rig.rounds(1)
    assert ticket.record.difference == "other"
    assert rig.counted == {"other": 1, "pending": 0}


def test_a_copy_that_went_explains_nothing_while_another_stays(rig):
    rig.tell(rig.stored(IDS), rig.stored(IDS, 5))
    ticket = rig.ask(IDS)
    rig.tell(rig.removed(IDS, 5))
    assert rig.answer(ticket, 80) == "pending"


def test_what_came_in_one_run_was_never_there_in_part(rig):
    ticket = rig.ask(IDS)
    rig.tell(rig.stored(IDS))
    assert rig.answer(ticket, 48) == "pending"


def test_it_counted_on_one_in_flight(rig):
    """The other request was cancelled, or arrived later. In both cases none of its blocks was there."""
    first, second, third = rig.ask(IDS), rig.ask(IDS), rig.ask(IDS)
    assert (first.predicted_cached_tokens, second.predicted_cached_tokens) == (0, 96)
    rig.core.tickets.cancelled(first, 0.0)
    assert rig.answer(second, 0) == "reserved_not_scheduled"
    rig.tell(rig.stored(IDS, 0, 2))
    rig.tell(rig.stored(IDS, 2))
    assert rig.answer(third, 32) == "reserved_not_scheduled", "two blocks of a long prefill had come by then"


def test_the_cache_was_cleared(rig):
    rig.tell(rig.stored(IDS))
    before, after = rig.ask(IDS), rig.ask(IDS)
    assert rig.answer(before, 0) == "pending"
    rig.tell(CacheCleared())
    assert (before.record.difference, rig.answer(after, 0)) == ("cleared", "cleared")


def test_the_worker_went(rig):
    rig.tell(rig.stored(IDS))
    before, after = rig.ask(IDS), rig.ask(IDS)
    assert rig.answer(before, 0) == "pending"
    rig.fleet.remove("h:1")
    assert before.record.difference == "cleared"
    assert rig.answer(after, 0) == "cleared"
    assert rig.core.statistics()["unexplained"] == 0


def test_events_were_missed(rig):
    rig.tell(rig.stored(IDS))
    before, after = rig.ask(IDS), rig.ask(IDS)
    assert rig.answer(before, 0) == "pending"
    rig.seq += 3
    rig.tell(rig.stored(OTHER_IDS))
    rig.residency.slot(0).replay_ended(False)
    assert (before.record.difference, rig.answer(after, 0)) == ("approximate", "approximate")


def test_what_was_never_exact_is_not_called_unexplained(rig):
    rig.residency.slot(0).tested(Residency.APPROXIMATE, "they do not agree")
    ticket = rig.ask(IDS)
    assert rig.answer(ticket, 96) == "approximate"


def test_a_prompt_known_as_text_is_a_guess_on_an_exact_worker(rig):
    """The decision and the client's header say approximate for this prompt, while the worker's view stays exact."""
    packed = pack_tokens(IDS)
    text = Prompt(100, PromptSource.TEXT, lambda size: extend_chain(SEED + 1, packed, size))
    first = rig.ask(text)
    assert rig.answer(first, 0) is None
    ticket = rig.ask(text)
    assert rig.residency.slot(0).state().residency is Residency.EXACT
    assert (ticket.residency, ticket.record.residency) == (Residency.APPROXIMATE, Residency.APPROXIMATE)
    assert ticket.record.to_builtins()["residency"] == "approximate"
    explained = rig.core.explainer.explain(ticket.request, 0.0).to_builtins()["candidates"]
    assert [candidate["residency"] for candidate in explained] == ["approximate"]
    assert rig.answer(ticket, 32) == "approximate"
    assert rig.counted == {"pending": 0}, "no counter holds it to the block"
    assert rig.told == []


def test_requests_that_end_in_one_step_are_one_round(rig):
    """The map waits for the events that follow, however many answers end at once."""
    crowd = [rig.ask([20_000 + number] * 40) for number in range(3 * ROUNDS)]
    ticket = rig.ask(IDS)
    assert rig.answer(ticket, 96) == "pending"
    for other in crowd:
        rig.answer(other, 0)
    assert ticket.record.difference == "pending"
    rig.tell(rig.stored(IDS))
    rig.rounds(1)
    assert ticket.record.difference == "scheduled_since"


def test_a_missing_zero_counts_once_the_worker_has_reported_on_that_path(rig):
    """vLLM 0.23 omits zeros. A stream without usage still reports nothing."""

    def reported():
        counted = rig.core.statistics()["workers"]["h:1"]["predicted_cached"]
        return counted["equal"] + counted["over"], counted["reported_tokens"]

    rig.answer(rig.ask(IDS), None)
    assert reported() == (0, 0)
    rig.tell(rig.stored(IDS))
    rig.answer(rig.ask(IDS), 96)
    assert reported() == (1, 96)
    ticket = rig.ask(IDS)
    rig.answer(ticket, None)
    assert reported() == (2, 96) and ticket.record.reported_cached_tokens == 0
    rig.core.tickets.finished(rig.ask(IDS), Usage(None, None, None), 0.1)
    elsewhere = Request("r", "/v1/chat/completions", "m", rig.prompt(IDS), 100, 0.0)
    rig.answer(rig.core.dispatcher.dispatch(elsewhere, 0.0), None)
    assert reported() == (2, 96)
