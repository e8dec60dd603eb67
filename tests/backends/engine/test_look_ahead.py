"""Look-ahead with skips gives the same token times, events, states and statistics as single steps, bit for bit."""

from bisect import bisect_left
from collections import Counter, defaultdict
from random import Random

import pytest

from backends.engine.engine import EngineRequest, HashedText, RequestRefused
from backends.engine.events import BlocksCached

BLOCK = 4


class Driven:
    """An engine run over timed calls, by steps or with look-ahead, with a record of all its observable results."""

    def __init__(self, engine, calls, most_steps):
        self.engine, self.calls, self.most_steps = engine, list(calls), most_steps
        self.now_s = 0.0
        self.states = {}
        self.token_times = defaultdict(list)
        self.steps_s = []
        self.events = []
        self.skipped = 0
        self.refused = 0

    def run(self):
        engine = self.engine
        while self.calls or engine.has_work:
            while self.calls and self.calls[0][0] <= self.now_s:
                self._call(*self.calls.pop(0)[1:])
            if engine.has_work:
                if not (self.most_steps and self._skip()):
                    self._step()
            elif self.calls:
                self.now_s = self.calls[0][0]
        return self

    def _call(self, kind, argument):
        if kind == "add":
            try:
                self.states[argument.id] = self.engine.add(argument, self.now_s)
            except RequestRefused:
                self.refused += 1
        elif kind == "abort":
            self.engine.abort(argument)
        else:
            self.engine.reset_prefix_cache()

    def _step(self):
        result = self.engine.step(self.now_s)
        self.now_s += result.duration_s
        self.steps_s.append(self.now_s)
        self.events += [(self.now_s, event) for event in result.events]
        for name, _, _ in result.outputs:
            self.token_times[name].append(self.now_s)

    def _skip(self):
        ends_s = self.engine.look_ahead(self.now_s, self.most_steps)
        if not ends_s:
            return False
        begun = len(ends_s)
        if self.calls:
            begun = min(begun, bisect_left(ends_s, self.calls[0][0]) + 1)
        names = [state.id for state in self.engine.running]
        self.engine.skip(begun)
        self.skipped += begun
        self.now_s = ends_s[begun - 1]
        self.steps_s += ends_s[:begun]
        for name in names:
            self.token_times[name] += ends_s[:begun]
        return True

    @property
    def seen(self):
        states = {
            name: [
                state.prompt_tokens,
                state.output_tokens,
                state.cached_tokens,
                state.first_scheduled_s,
                state.first_token_s,
                state.finish_reason,
                state.preemptions,
                list(state.tokens),
            ]
            for name, state in self.states.items()
        }
        return states, dict(self.token_times), self.steps_s, self.events, self.engine.statistics()


def drawn_calls(rng):
    """Draw arrivals of prompts with shared prefixes, as ids or as hashes. Some requests are aborted, and one reset
    clears the cache.
    """
    prefixes = [[rng.randrange(1_000) for _ in range(rng.randrange(4, 40))] for _ in range(4)]
    calls, at_s = [], 0.0
    for number in range(rng.randrange(8, 24)):
        at_s += rng.choice((0.0, 0.004, 0.03, 0.2)) * rng.random()
        prompt = [*rng.choice(prefixes), *(rng.randrange(1_000) for _ in range(rng.randrange(1, 30)))]
        max_tokens = rng.randrange(1, 60)
        fields = {"stop_after": rng.choice((None, rng.randrange(1, 60)))}
        if rng.random() < 0.5:
            text = (*prompt, *range(max_tokens))
            chain = [hash(text[:end]) & (1 << 64) - 1 for end in range(BLOCK, len(text) + 1, BLOCK)]
            fields["hashed"], prompt = HashedText(len(prompt), chain), ()
        else:
            fields["announces_reuse"] = rng.random() < 0.2
        calls.append((at_s, "add", EngineRequest(f"r{number}", prompt, max_tokens, **fields)))
        if rng.random() < 0.2:
            calls.append((at_s + 0.3 * rng.random(), "abort", f"r{number}"))
    calls.append((at_s * rng.random(), "reset", None))
    return sorted(calls, key=lambda call: call[0])


@pytest.fixture(scope="module")
def drive_both(make_engine):
    def drive(seed, most_steps, **options):
        rng = Random(seed)
        calls = drawn_calls(rng)
        options |= {
            "num_blocks": rng.choice((26, 34, 200)),
            "max_num_seqs": rng.choice((2, 5, 256)),
            "max_num_batched_tokens": rng.choice((8, 32, 2_048)),
            "jitter": rng.choice((0.0, 0.05)),
            "speed": rng.choice((1.0, 1.3)),
        }
        return [
            Driven(make_engine(block_size=BLOCK, seed=seed, **options), calls, most).run() for most in (0, most_steps)
        ]

    return drive


@pytest.mark.parametrize("most_steps", [1, 7, 64])
@pytest.mark.parametrize("async_scheduling", [False, True])
def test_skipping_equals_stepping(drive_both, async_scheduling, most_steps):
    met = Counter()
    for seed in range(60):
        stepped, skipped = drive_both(seed, most_steps, async_scheduling=async_scheduling)
        assert skipped.seen == stepped.seen, f"seed {seed}"
        figures = stepped.engine.statistics()
        met["skipped"] += skipped.skipped
        met["stepped"] += len(stepped.steps_s)
        met["refused"] += stepped.refused
        for name in ("preemptions", "evictions", "finished_abort", "finished_stop", "finished_length"):
            met[name] += int(figures[name])
    assert met["skipped"] > met["stepped"] / 6, met
    assert min(met.values()) > 0, f"the workloads are to try all of it: {met}"


def test_looking_ahead_changes_nothing(make_engine, drive):
    engine = make_engine(num_blocks=65, jitter=0.05, block_size=64)
    state = engine.add(EngineRequest("r", range(5), 30), 0.0)
    engine.step(0.0)
    before = engine.statistics()
    assert len(engine.look_ahead(1.0)) == 28, "all but the last"
    assert len(engine.look_ahead(1.0, 10)) == 10
    assert (engine.statistics(), state.output_tokens) == (before, 1)


def test_unseen_steps_cannot_be_skipped(make_engine):
    engine = make_engine(block_size=64)
    engine.add(EngineRequest("r", range(5), 30), 0.0)
    assert engine.look_ahead(0.0) == [], "it has its prefill before it"
    engine.step(0.0)
    engine.look_ahead(0.0, 3)
    with pytest.raises(ValueError, match="4 steps cannot be skipped"):
        engine.skip(4)
    engine.look_ahead(0.0)
    engine.add(EngineRequest("s", range(5), 30), 0.0)
    with pytest.raises(ValueError, match="cannot be skipped"):
        engine.skip(1)


def test_a_queue_that_cannot_move_does_not_end_a_look_ahead(make_engine):
    engine = make_engine(block_size=4, num_blocks=9)
    engine.add(EngineRequest("holder", range(25), 8), 0.0)
    engine.add(EngineRequest("waits", range(100, 116), 4), 0.0)
    engine.step(0.0)
    assert engine.waiting_requests == 1
    engine.step(0.0)
    assert engine.look_ahead(0.0), "its head was refused, and nothing has changed"
    assert len(engine.running) == 1 and engine.kv_usage == pytest.approx(7 / 8)
    engine.abort("holder")
    assert engine.look_ahead(0.0) == [], "now it may be let in"


def test_a_chain_must_reach_to_the_end_of_the_answer(make_engine):
    engine = make_engine(block_size=4)
    with pytest.raises(RequestRefused, match="end of the answer"):
        engine.add(EngineRequest("short", (), 8, hashed=HashedText(9, [1, 2])), 0.0)
    state = engine.add(EngineRequest("enough", (), 7, stop_after=4, hashed=HashedText(9, [1, 2, 3])), 0.0)
    stored = []
    while engine.has_work:
        stored += [event for event in engine.step(0.0).events if isinstance(event, BlocksCached)]
    assert [event.hashes for event in stored] == [(1, 2), (3,)]
    assert [event.token_ids for event in stored] == [[], []]
    assert engine.cached_tokens([1, 2, 3], 12) == 8, "the last token is always computed"
    assert engine.cached_tokens([1, 2, 3], 13) == 12
    assert state.output_tokens == 4
