from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.engine.cache import BlockCache
from backends.engine.events import BlocksCached, CacheCleared


def stored(hashes, parent=None):
    return BlocksCached(tuple(hashes), parent, [0] * len(hashes), 1, None, (None,) * len(hashes))


def fill(cache, hashes):
    blocks = cache.allocate(len(hashes))
    cache.store(blocks, stored(hashes))
    return blocks


def test_one_block_is_never_given_out():
    cache = BlockCache(4, 16)
    assert cache.usable_blocks == cache.free_blocks == 3
    assert sorted(cache.allocate(3)) == [1, 2, 3]
    assert cache.usage == 1.0
    assert not cache.fits((), 1)


@pytest.mark.parametrize(("num_blocks", "block_size"), [(1, 16), (8, 0)])
def test_impossible_sizes_are_refused(num_blocks, block_size):
    with pytest.raises(ValueError, match="at least"):
        BlockCache(num_blocks, block_size)


def test_reset_needs_a_cache_without_references():
    cache = BlockCache(3, 1)
    blocks = fill(cache, [11])
    cache.take_events()
    assert not cache.reset()
    assert cache.take_events() == []
    cache.release(blocks)
    assert cache.reset()
    assert cache.match([11], 1) == []
    assert cache.take_events() == [CacheCleared()]
    cache.allocate(2)
    assert cache.take_events() == []


class NaiveCache:
    """The same rules over plain lists, in which every look-up is a search."""

    def __init__(self, num_blocks):
        self.free = list(range(1, num_blocks))
        self.content = {}
        self.filled_at = {}
        self.users = Counter()
        self.log = []
        self.fills = 0

    def holders(self, block_hash):
        return sorted((b for b, h in self.content.items() if h == block_hash), key=self.filled_at.get)

    def match(self, hashes, limit):
        found = []
        for block_hash in hashes[:limit]:
            if not self.holders(block_hash):
                return found
            found.append(self.holders(block_hash)[0])
        return found

    def take(self, blocks):
        self.users.update(blocks)
        self.free = [block for block in self.free if not self.users[block]]

    def allocate(self, count):
        blocks, self.free = self.free[:count], self.free[count:]
        self.users.update(blocks)
        self.log += [("-", self.content.pop(block)) for block in blocks if block in self.content]
        return blocks

    def store(self, blocks, hashes):
        for block, block_hash in zip(blocks, hashes, strict=True):
            self.content[block] = block_hash
            self.fills += 1
            self.filled_at[block] = self.fills
            self.log.append(("+", block_hash))

    def release(self, blocks):
        self.users.subtract(blocks)
        idle = [block for block in reversed(blocks) if not self.users[block]]
        unfilled = [block for block in idle if block not in self.content]
        self.free = unfilled + self.free + [block for block in idle if block in self.content]


def flat(events):
    return [
        ("+" if isinstance(event, BlocksCached) else "-", block_hash) for event in events for block_hash in event.hashes
    ]


actions = st.lists(
    st.one_of(
        st.tuples(st.just("start"), st.lists(st.integers(0, 1), min_size=1, max_size=5), st.integers(0, 5)),
        st.tuples(st.just("end"), st.integers(0, 9), st.none()),
    ),
    max_size=40,
)


@given(st.integers(2, 12), actions)
def test_the_cache_agrees_with_a_naive_model(num_blocks, steps):
    cache, naive = BlockCache(num_blocks, 1), NaiveCache(num_blocks)
    live = []
    for action, what, filled in steps:
        if action == "end":
            if live:
                blocks = live.pop(what % len(live))
                cache.release(blocks)
                naive.release(blocks)
        else:
            chain = [hash(tuple(what[: end + 1])) & (2**64 - 1) for end in range(len(what))]
            matched = cache.match(chain, len(chain) - 1)
            assert matched == naive.match(chain, len(chain) - 1)
            new = len(chain) - len(matched)
            fits = new + len(set(matched) & set(naive.free)) <= len(naive.free)
            assert cache.fits(matched, new) == fits
            if not fits:
                continue
            cache.take(matched)
            naive.take(matched)
            fresh = cache.allocate(new)
            assert fresh == naive.allocate(new)
            run = chain[len(matched) :][:filled]
            if run:
                cache.store(fresh[: len(run)], stored(run))
                naive.store(fresh[: len(run)], run)
            live.append(matched + fresh)
        assert cache.free_blocks == len(naive.free)
        assert cache.statistics()["cached_blocks"] == len(naive.content)
    events = cache.take_events()
    assert flat(events) == naive.log
    assert cache.statistics()["evictions"] == sum(sign == "-" for sign, _ in naive.log)
