"""The exact view against a small worker with vLLM's cache rules, over a publisher that loses batches and restarts."""

import itertools
from collections import OrderedDict, deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from policies.view import Residency
from router.residency.exact.difference import Difference
from router.residency.residency_map import ResidencyMap
from tests.support.examples import examples
from tests.support.kv_wire import Wire, engine_hash, ids_prompt

B = 4


class FakeWorker:
    """Copies of blocks in eviction order; publishes numbered batches and keeps the last few."""

    def __init__(self, shape, capacity, buffered):
        self.shape, self.capacity = shape, capacity
        self.buffer = deque(maxlen=buffered)
        self.generation = itertools.count()
        self.copy_ids = itertools.count()
        self.clock = itertools.count()
        self.restart()

    def restart(self):
        self.wire = Wire(self.shape, salt=next(self.generation))
        self.seq = 0
        self.copies = OrderedDict()
        self.buffer.clear()

    def find(self, content):
        return next((copy for copy, held in self.copies.items() if held == content), None)

    def hits(self, tokens):
        blocks = 0
        while blocks < (len(tokens) - 1) // B and self.find(tuple(tokens[: (blocks + 1) * B])) is not None:
            blocks += 1
        return blocks

    def serve(self, tokens, reread_blocks=0, announces=False):
        """Run one prompt; `reread_blocks` of its hit are computed again all the same (but never from the start).

        `announces`: the blocks of the hit are announced again.
        """
        start = self.hits(tokens)
        reannounced = [self.wire.stored(tokens[: start * B])] if announces and start else []
        start = max(min(start, 1), start - reread_blocks)
        used = [self.find(tuple(tokens[: (block + 1) * B])) for block in range(start)]
        for copy in used:
            self.copies.move_to_end(copy)
        full = min(len(tokens) // B, self.capacity)
        evicted = []
        while len(self.copies) + full - start > self.capacity:
            _, content = self.copies.popitem(last=False)
            evicted.append(content)
        for block in range(start, full):
            copy = next(self.copy_ids)
            self.copies[copy] = tuple(tokens[: (block + 1) * B])
            used.append(copy)
        for copy in reversed(used):
            self.copies.move_to_end(copy)
        events = reannounced + [self.wire.removed([engine_hash(content, self.wire.salt)]) for content in evicted]
        if full > start:
            events.append(self.wire.stored(tokens[: full * B], start))
        return self.publish(*events) if events else None

    def clear(self):
        self.copies.clear()
        return self.publish(self.wire.cleared())

    def publish(self, *events):
        message = (self.seq, self.wire.batch(*events, ts=float(next(self.clock))))
        self.seq += 1
        self.buffer.append(message)
        return message


prompts = st.lists(st.sampled_from([0, 1]), min_size=1, max_size=5 * B).map(
    # Few distinct blocks, so that prompts share prefixes: each bit is a block, the rest a tail.
    lambda bits: [token for bit in bits[:5] for token in [bit] * B] + [9] * (len(bits) % B)
)


class Machine(RuleBasedStateMachine):
    """A gateway subscribed to one worker. Replays are answered at once or later, whole or not at all."""

    @initialize(
        shape=st.sampled_from(["map", "row"]),
        capacity=st.integers(5, 12),
        buffered=st.sampled_from([1, 2, 3, 30]),
        linked=st.booleans(),
    )
    def start(self, shape, capacity, buffered, linked):
        self.worker = FakeWorker(shape, capacity, buffered)
        self.map = ResidencyMap()
        self.map.add(0, "w:1", B, capacity, True)
        self.asked = None
        self.connected = False
        self.wait = False
        self.reported = False
        self.silent = False
        self.clock_s = 0.0
        self.differences = []
        self.map.on_settled.append(lambda ticket, difference: self.differences.append(difference))
        if linked:
            self.link()

    def done(self, ingest):
        if ingest.replay_from is not None:
            self.asked = ingest.replay_from
        if not self.wait:
            self.answer()

    def answer(self, ok=True):
        while self.asked is not None:
            start, self.asked = self.asked, None
            for seq, payload in list(self.worker.buffer) if ok else []:
                if seq >= start:
                    self.done_replayed(self.map.slot(0).ingest(seq, payload, replayed=True))
            ended = self.map.slot(0).replay_ended(ok)
            self.asked = ended.replay_from

    def done_replayed(self, ingest):
        assert ingest.replay_from is None

    def deliver(self, message, lose):
        if message is not None and self.connected and not lose:
            self.done(self.map.slot(0).ingest(*message))

    @rule(tokens=prompts, lose=st.sampled_from([False, False, True]), reread=st.sampled_from([0, 0, 1, 2]))
    def serve(self, tokens, lose, reread):
        """A request of another client. One that fills no block causes no event, whatever it uses."""
        hits, exact = self.worker.hits(tokens), self.map.slot(0).state().residency is Residency.EXACT
        message = self.worker.serve(tokens, min(reread, 1) if not exact else reread)
        self.silent = self.silent or (hits > 0 and message is None and not exact)
        self.deliver(message, lose)

    @rule(tokens=prompts, lose=st.sampled_from([False, False, True]))
    def ask(self, tokens, lose):
        """A request through the gateway, whose response reports its hit; sometimes long before its events arrive."""
        prompt = ids_prompt(tokens)
        self.map.slot(0).reserve(prompt, 1, self.map.match(prompt, [0])[0].tokens)
        hits = self.worker.hits(tokens) * B
        self.deliver(self.worker.serve(tokens), lose)
        self.differences.append(self.map.slot(0).finished(prompt, 0, hits, 1))
        self.map.slot(0).release(1)
        self.reported = True

    @rule(tokens=prompts, lose=st.sampled_from([False, False, True]), reports=st.booleans())
    def ask_again(self, tokens, lose, reports):
        """A request as in `ask`, for which the worker announces its hit again if asked to."""
        prompt = ids_prompt(tokens)
        self.clock_s += 1.0
        self.map.slot(0).reserve(prompt, 1, self.map.match(prompt, [0])[0].tokens)
        asks = self.map.asks_again(0, 1, self.clock_s)
        hits = self.worker.hits(tokens) * B
        self.deliver(self.worker.serve(tokens, announces=asks), lose)
        self.differences.append(self.map.slot(0).finished(prompt, 0, hits if reports else None, 1))
        self.map.slot(0).release(1)
        self.reported = self.reported or reports

    @rule(turn=st.integers(0, 3))
    def turn_over(self, turn):
        """Send new prompts, one after another, until everything else is evicted."""
        for _ in range(self.worker.capacity):
            first = 100 + 10_000 * turn + 2 * self.worker.seq
            self.deliver(self.worker.serve([0] * B + [first] * B + [first + 1] * B), False)

    @rule(lose=st.booleans())
    def clear(self, lose):
        self.silent = False
        self.deliver(self.worker.clear(), lose)

    @rule()
    def restart(self):
        self.silent = False
        self.worker.restart()
        if self.connected:
            self.map.slot(0).link_lost()
            self.connected = False
            self.asked = None

    @rule()
    def link(self):
        if not self.connected:
            self.connected = True
            self.done(self.map.slot(0).link_up())

    @rule(wait=st.booleans())
    def slow_replay(self, wait):
        self.wait = wait
        if not wait:
            self.answer()

    @rule()
    def no_replay(self):
        self.answer(ok=False)

    @rule()
    def stale(self):
        """Send an earlier batch again, live."""
        if self.connected and self.worker.buffer and self.map.slot(0).state().residency is Residency.EXACT:
            seq, payload = self.worker.buffer[-1]
            if self.map.slot(0).state().next_seq > seq:
                self.done(self.map.slot(0).ingest(seq, payload))

    @invariant()
    def is_explained(self):
        """The invariant after any report: a view that is exact or relearning claims no more than the capacity.

        If a worker restarted unseen and its batches happen to continue the old numbers, old and new blocks cannot be
        distinguished. Such a view reports that it only assumes.
        """
        if hasattr(self, "map"):
            assert Difference.OTHER not in self.differences or self.silent
            state = self.map.slot(0).state()
            if state.residency is Residency.EXACT or "learned since" in state.reason:
                assert state.blocks <= self.worker.capacity

    @invariant()
    def agrees(self):
        if not hasattr(self, "map") or not self.connected or self.asked is not None:
            return
        state = self.map.slot(0).state()
        settled = state.next_seq == self.worker.seq
        for bits in itertools.product([0, 1], repeat=3):
            tokens = [token for bit in bits for token in [bit] * B] + [9]
            match = self.map.match(ids_prompt(tokens), [0])[0]
            truth = self.worker.hits(tokens) * B
            assert match.residency is state.residency and match.reserved_tokens == 0
            if state.residency is Residency.EXACT and settled and self.silent:
                assert match.tokens <= truth, (tokens, state)
            elif state.residency is Residency.EXACT and settled:
                assert match.tokens == truth, (tokens, state)
            elif settled and not self.reported and "learned since" in state.reason:
                assert match.tokens <= truth, (tokens, state)

    def teardown(self):
        """After a connection, a replay and a clear, the view is exact, whatever happened before."""
        if not hasattr(self, "map"):
            return
        self.wait = False
        self.link()
        self.answer()
        self.deliver(self.worker.clear(), False)
        self.answer()
        assert self.map.slot(0).state().residency is Residency.EXACT
        self.deliver(self.worker.serve([1] * 9), False)
        self.agrees()
        self.map.remove(0)
        self.map._shared.index.sweep(10**6)
        assert len(self.map._shared.index) == 0


def test_the_exact_view_agrees_with_a_worker():
    case = Machine.TestCase
    case.settings = settings(max_examples=examples(100), stateful_step_count=50, deadline=None)
    case().runTest()
