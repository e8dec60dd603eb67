import itertools
from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.residency.approximate import RUN_BYTES, ApproximateCache

B = 4


class Naive:
    """Every block by itself, in eviction order. A block's key is its whole prefix, a generated one's a number."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.order = OrderedDict()
        self.generated = {}
        self.reserved = 0
        self.clock = 0
        self.numbers = itertools.count()

    def depth(self, chain, limit):
        depth = 0
        while depth < limit and chain[depth] in self.order:
            depth += 1
        return depth

    def alive(self, last):
        keys, end = self.generated.get(last, ([], 0))
        return [key for key in keys if key in self.order], end

    def match(self, chain, usable, tokens):
        depth = self.depth(chain, usable)
        keys, end = self.alive(chain[depth - 1]) if depth else ([], 0)
        return min(usable, depth + len(keys)) if keys and tokens > end else depth

    def running(self, chain, tokens):
        depth = self.depth(chain, len(chain))
        self.reserved += max(0, -(-tokens // B) - depth)
        self.touch(chain[:depth])
        self.make_room()
        return max(0, -(-tokens // B) - depth)

    def finished(self, chain, tokens, generated, hits):
        self.clock += 1
        depth = self.depth(chain, len(chain))
        if depth < len(chain) and depth and hits > depth:
            keys, _ = self.alive(chain[depth - 1])
            for key in keys[max(0, len(keys) - (hits - depth)) :]:
                del self.order[key]
            self.generated.pop(chain[depth - 1], None)
        path = list(chain)
        more = (tokens + generated - 1) // B - len(chain) if generated else 0
        if more > 0:
            keys = [next(self.numbers) for _ in range(more)]
            path += keys
            if chain:
                self.generated[chain[-1]] = (keys, tokens + generated - 1)
        self.touch(path)
        self.make_room()

    def touch(self, path):
        for key in reversed(path):
            self.order[key] = self.clock
            self.order.move_to_end(key)

    def make_room(self):
        while len(self.order) > max(0, self.capacity - self.reserved):
            self.order.popitem(last=False)

    def correct(self, chain, hits, since):
        if hits >= len(chain) or self.depth(chain, hits) < hits:
            return
        below = chain[hits]
        doomed = [key for key in self.order if isinstance(key, tuple) and key[: len(below)] == below]
        gone = [key for key in doomed if self.order[key] <= since]
        for last in [*doomed, *chain[max(0, hits - 1) : hits]]:
            gone = gone + [key for key in self.alive(last)[0] if self.order[key] <= since]
        for key in set(gone):
            self.order.pop(key, None)


def chain_of(bits):
    """Keys of naive blocks; a whole prefix each, so that they chain like hashes do."""
    return [tuple(bits[: end + 1]) for end in range(len(bits))]


def numbers(chain):
    return [int("1" + "".join(map(str, key)), 10) for key in chain]


prompts = st.tuples(st.lists(st.integers(0, 1), max_size=6), st.integers(0, B - 1))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("finished"), prompts, st.integers(0, 14), st.integers(0, 8)),
        st.tuples(st.just("running"), prompts, st.just(0), st.just(0)),
        st.tuples(st.just("end"), prompts, st.just(0), st.just(0)),
        st.tuples(st.just("correct"), prompts, st.integers(0, 3), st.integers(0, 5)),
    ),
    max_size=25,
)


@given(st.integers(1, 14), steps)
def test_the_model_agrees_with_a_naive_cache(capacity, taken):
    view, naive, reserved = ApproximateCache(B, capacity), Naive(capacity), []
    for kind, (bits, rest), extra, hits in taken:
        chain = chain_of(bits)
        tokens = len(bits) * B + rest
        if kind == "finished":
            view.finished(numbers(chain), tokens, extra, hits)
            naive.finished(chain, tokens, extra, hits)
        elif kind == "running":
            reserved.append(view.running(numbers(chain), tokens))
            assert reserved[-1] == naive.running(chain, tokens)
        elif kind == "end" and reserved:
            blocks = reserved.pop()
            view.end_running(blocks)
            naive.reserved -= blocks
        elif kind == "correct":
            since = max(0, view.clock - extra)
            view.correct(numbers(chain), hits, since)
            naive.correct(chain, hits, since)
        assert view.blocks == len(naive.order)
        assert view.size_bytes == len(view._order) * RUN_BYTES + view.blocks * 8
        for asked in itertools.product([0, 1], repeat=4):
            keys = chain_of(asked)
            for length in (4 * B, 4 * B + 3):
                usable = (length - 1) // B
                assert view.match(numbers(keys), usable, length) == naive.match(keys, usable, length)


def test_shrinking_and_resizing_evict_to_the_new_size():
    view = ApproximateCache(4, 1000)
    for start in range(0, 900, 9):
        view.finished(range(start, start + 9), 36, 0, 0)
    view.shrink(view.size_bytes // 2)
    assert view.blocks <= 450
    view.resize(10)
    assert view.blocks == 10
    assert view.match(range(891, 900), 9, 99) == 9
    view.shrink(0)
    assert (view.blocks, view.size_bytes) == (0, 0)


@pytest.mark.parametrize("turns", [3000])
def test_a_very_long_conversation_needs_no_recursion(turns):
    """A run per turn: nothing here may recurse."""
    view = ApproximateCache(4, 10**6)
    for turn in range(1, turns, 7):
        view.finished(range(turn), turn * 4, 0, turn)
    view.correct(range(turns), 0, view.clock)
    assert view.blocks == 0


def test_answers_are_expected_only_while_they_return_in_prompts():
    """A template that strips a model's thinking: the next turn goes on from the prompt, not from what was generated."""
    view = ApproximateCache(4, 10_000)

    def turn(first, returns):
        prompt = range(first, first + 2)
        later = range(first, first + 6)
        view.finished(prompt, 10, 12, 0)
        expected = view.match(later, 6, 26)
        found = 5 if returns else 2
        view.found(later, 6, 26, found)
        view.finished(later, 26, 0, found)
        return expected

    expected = [turn(first, False) for first in range(0, 100, 10)]
    assert (expected[0], expected[-1]) == (5, 2)
    assert not view.answers_return
    assert turn(200, False) == 2, "no longer expected"
    for first in range(1_000, 1_100, 10):
        turn(first, True)
    assert view.answers_return
    assert turn(2_000, True) == 5


def test_hits_on_part_of_the_prompt_do_not_judge_answers():
    view = ApproximateCache(4, 100)
    view.finished([1, 2], 10, 12, 0)
    for _ in range(20):
        view.found([1, 2, 3, 4, 5, 6], 6, 26, 1)
    assert view.answers_return, "less than the prompt itself was found"


def test_half_an_answer_follows_the_mean_of_recent_answers():
    view = ApproximateCache(4, 1_000)
    assert view.half_answer_tokens == 0
    view.finished([1], 4, 100, 0)
    assert view.half_answer_tokens == 50
    view.finished([2], 4, 0, 0)
    assert view.half_answer_tokens == 50, "an answer of unknown length does not count"
    for number in range(3, 60):
        view.finished([number], 4, 20, 0)
    assert 10 <= view.half_answer_tokens <= 14
