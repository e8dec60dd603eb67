import pytest

from loadtest.peers.choices.replay import Knowledge, characters, ours, replay
from loadtest.peers.choices.sequence import Mix, Step, draw
from policies.view import Decision

TEXT = Knowledge(characters, 1)


class Listener:
    """Notes what it sees, and takes the last worker."""

    def __init__(self):
        self.seen = []

    def decide(self, request, fleet):
        self.seen.append((request, fleet))
        ranked = tuple(view.id for view in reversed(fleet.workers))
        return Decision(ranked, "fewest requests", terms={view.id: {"requests": 0.0} for view in fleet.workers})


def test_loads_and_caches_follow_the_real_choices():
    steps = [Step("abcd", True), Step("abcdef", False), Step("abx", True, (0,)), Step("z", False)]
    listener = Listener()
    replay(listener, steps, [1, 0, 1, 0], 2, TEXT)
    views = [fleet.workers for _, fleet in listener.seen]
    assert [[view.running_requests for view in workers] for workers in views] == [[0, 0], [0, 1], [0, 0], [0, 1]]
    assert [[view.cached_tokens for view in workers] for workers in views] == [[0, 0], [0, 4], [2, 2], [0, 0]]
    assert views[1][1].uncached_tokens == 2


def test_a_cache_serves_whole_blocks_without_the_last_token():
    listener = Listener()
    steps = [Step("abcdefgh", False), Step("abcdefgh", False), Step("abcdefgh!", False)]
    replay(listener, steps, [0, 0, 0], 1, Knowledge(characters, 4))
    assert [fleet.workers[0].cached_tokens for _, fleet in listener.seen] == [0, 4, 8]
    first, _ = listener.seen[0]
    assert (first.prompt_tokens, first.block_tokens, len(first.block_hashes)) == (8, 4, 2)


@pytest.mark.parametrize(("name", "known"), [("cache_aware", TEXT), ("lmetric", Knowledge(characters, 16))])
def test_a_router_with_our_rule_agrees_and_another_does_not(name, known):
    steps = draw(Mix(steps=30), 2)
    real: list[int] = []
    for number in range(len(steps)):  # each choice from all those before it
        real.append(0)
        real[number] = replay(ours(name, {}), steps[: number + 1], real, 3, known)[number].ours
    assert all(step.same and step.acceptable for step in replay(ours(name, {}), steps, real, 3, known))
    blind = [number % 3 for number in range(len(steps))]
    assert sum(step.acceptable for step in replay(ours(name, {}), steps, blind, 3, known)) < 0.8 * len(steps)


def test_equals_are_those_the_rule_cannot_tell_apart():
    held = [Step("one", True), Step("two", True), Step("three", False)]
    *_, last = replay(ours("cache_aware", {}), held, [0, 2, 1], 4, TEXT)
    assert last.equals == {1, 3}
    *_, last = replay(ours("lmetric", {}), held, [0, 2, 3], 4, TEXT)
    assert (last.equals, last.same, last.acceptable) == ({1, 3}, False, True)
    again = [Step("prompt", False), Step("prompt", False), Step("prompt", False)]
    *_, last = replay(ours("cache_aware", {}), again, [3, 1, 0], 4, TEXT)
    assert last.equals == {1, 3}
    assert last.reason == "longest match (100% of the prompt)"
