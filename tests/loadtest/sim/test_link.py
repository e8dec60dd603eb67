"""Events of requests in hashes tell the gateway what those of the same requests in token ids do."""

from array import array
from dataclasses import replace

import pytest

from backends.engine.events import BlocksCached, BlocksEvicted, CacheCleared
from loadtest.sim.link import EventLink
from loadtest.sim.sessions import Session, sessions_of
from loadtest.sim.virtual_time import VirtualTime
from policies.view import Residency, WorkerId
from router.residency.chain import SEED, extend_chain
from router.residency.prompt import Prompt, PromptSource
from router.residency.residency_map import ResidencyMap
from tests.support.simulated_conversations import Call, planned_in_texts, small_workers
from tests.support.simulation import Setting, simulate

BLOCK = 16


def in_ids(pieces):
    return array("I", [(id_ * 65_537 + offset) % 2**32 for id_, tokens in pieces for offset in range(tokens)])


def played(sessions, blocks):
    """The run, and what the gateway's index held at its end: each worker's blocks."""
    kept = []

    def make_residency(time):
        kept.append(ResidencyMap())
        return kept[0]

    workers = tuple(replace(spec, num_blocks=blocks) for spec in small_workers(3))
    run = simulate(Setting(workers, make_residency=make_residency, seed=1), sessions)
    (residency,) = kept
    held = []
    for slot in range(3):
        block_copies = residency._slots[slot].event_feed.exact.block_copies
        (tier_copies,) = block_copies.tiers.values()
        held.append({residency._shared.index.hashes[row] for row in tier_copies.held.values()})
    return run, held, residency.statistics()


@pytest.mark.parametrize("blocks", [250, 4_000])
def test_the_same_decisions_and_the_same_index(blocks):
    texts = list(sessions_of(planned_in_texts(5, 20, (200, 2_000), (1, 300))))
    ids, renamed = [], {}
    for session in texts:
        calls = []
        for call in session.calls:
            said = call.said
            tokens = in_ids((*said.prompt.pieces, said.answer)).tobytes()
            renamed |= dict(zip(extend_chain(SEED, tokens, BLOCK), call.chain(BLOCK), strict=True))
            calls.append(Call(in_ids(said.prompt.pieces), in_ids([said.answer]), call.pause_s))
        ids.append(Session(session.id, session.start_s, tuple(calls)))
    run, held, figures = played(texts, blocks)
    expected, held_by_ids, figures_by_ids = played(ids, blocks)
    assert run.outcomes == expected.outcomes
    assert held == [{renamed[block] for block in blocks} for blocks in held_by_ids]
    assert figures == figures_by_ids
    if blocks == 250:
        assert sum(worker["evictions"] for worker in run.workers) > 500
    assert sum(one.cached_tokens for one in run.outcomes) > 10_000 and {one.worker for one in run.outcomes} > {
        "worker-0"
    }
    assert all(view["residency"] == "exact" and not view["malformed_events"] for view in figures["slots"].values())


@pytest.fixture
def time():
    return VirtualTime()


@pytest.fixture
def residency():
    known = ResidencyMap()
    known.add(0, WorkerId("w"), 4, 100, events=True)
    return known


def stored(*hashes, parent=None):
    return BlocksCached(hashes, parent, [], 4, None, (None,) * len(hashes))


def tokens_found(residency, chain):
    prompt = Prompt(4 * len(chain) + 1, PromptSource.IDS, lambda block_tokens: chain)
    match = residency.match(prompt, [0])[0]
    return match.tokens, match.residency


def test_events_are_late(time, residency):
    link = EventLink(time, residency, 0, 0.5)
    link.published([stored(1, 2, 3)])
    time.run(until_s=0.4)
    assert tokens_found(residency, [1, 2, 3]) == (0, Residency.EXACT)
    time.run()
    assert tokens_found(residency, [1, 2, 3]) == (12, Residency.EXACT)


def test_removals_that_follow_each_other_travel_as_one(time, residency):
    link = EventLink(time, residency, 0, 0.0)
    link.published([stored(1, 2, 3), stored(4, 5, parent=3)])
    link.published([BlocksEvicted((5,)), BlocksEvicted((4,)), stored(6, parent=3), BlocksEvicted((3,))])
    time.run()
    assert tokens_found(residency, [1, 2, 3, 4]) == (8, Residency.EXACT)
    link.published([CacheCleared(), stored(9)])
    time.run()
    assert [tokens_found(residency, chain)[0] for chain in ([1], [9])] == [0, 4]
