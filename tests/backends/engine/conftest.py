"""A tiny worker that tests can fill by hand. The helpers are functions, so that property tests can use them too."""

import dataclasses
from collections import Counter

import pytest

from backends.engine.engine import Engine, EngineRequest
from backends.engine.events import BlocksCached, BlocksEvicted, CacheCleared
from backends.engine.profile import load_profile


@pytest.fixture(scope="session")
def make_engine():
    """Return an engine over the H100 profile with small blocks and no jitter. One of `num_blocks` is never usable."""

    def make(*, block_size=4, num_blocks=65, sample=lambda state: 1000 + state.output_tokens, **options):
        profile = dataclasses.replace(load_profile("llama-3.1-8b-h100"), block_size=block_size)
        return Engine(profile, num_blocks=num_blocks, sample=sample, **{"jitter": 0.0, **options})

    return make


@pytest.fixture(scope="session")
def drive():
    """Step until nothing is left and return the results. Each step starts when the one before it ends."""

    def run(engine, limit=10_000):
        results, now_s = [], 0.0
        while engine.has_work:
            results.append(engine.step(now_s))
            now_s += results[-1].duration_s
            assert len(results) <= limit
        return results

    return run


@pytest.fixture(scope="session")
def run_one(drive):
    """Add one request, run the engine until it is empty, and return the request's state."""

    def run(engine, name, prompt, max_tokens=1, **fields):
        state = engine.add(EngineRequest(name, prompt, max_tokens, **fields), 0.0)
        drive(engine)
        return state

    return run


class EventListener:
    """The state of a listener to the events: copies per hash. It checks that every chain has its parent."""

    def __init__(self):
        self.copies = Counter()
        self.parents = {}

    def hear(self, events):
        for event in events:
            match event:
                case BlocksCached():
                    self._stored(event)
                case BlocksEvicted(hashes=hashes):
                    assert all(self.copies[block_hash] > 0 for block_hash in hashes)
                    self.copies.subtract(hashes)
                case CacheCleared():
                    self.copies.clear()

    def _stored(self, event):
        assert event.hashes
        assert len(event.token_ids) == len(event.hashes) * event.block_size
        assert len(event.extra_keys) == len(event.hashes)
        parent = event.parent
        assert parent is None or parent in self.parents
        for block_hash in event.hashes:
            assert self.parents.setdefault(block_hash, parent) == parent
            parent = block_hash
        self.copies.update(event.hashes)


@pytest.fixture(scope="session")
def event_listener():
    return EventListener
