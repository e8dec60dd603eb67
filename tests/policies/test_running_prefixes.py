"""The share of a worker's running requests that begin with the same blocks."""

from copy import deepcopy

import pytest

from policies.running_prefixes import RunningPrefixes
from policies.view import LifecycleEvent, LifecycleEventKind, RequestView, WorkerId

A, B = WorkerId("a"), WorkerId("b")


def request(name, *blocks):
    return RequestView(name, "m", 16 * len(blocks), 16, blocks)


@pytest.fixture
def running_prefixes():
    return RunningPrefixes()


@pytest.fixture
def happens(running_prefixes):
    def observe(kind, worker, view):
        running_prefixes.observe(LifecycleEvent(kind, view, worker, 0.0))

    return observe


def test_shares_are_counted_per_worker_and_depth(running_prefixes, happens):
    happens(LifecycleEventKind.RESERVED, A, request("1", 5, 6, 7))
    happens(LifecycleEventKind.RESERVED, A, request("2", 5, 6))
    happens(LifecycleEventKind.RESERVED, A, request("3", 8))
    happens(LifecycleEventKind.RESERVED, A, request("4"))
    happens(LifecycleEventKind.RESERVED, B, request("5", 5, 9))
    like = request("6", 5, 6, 7)
    assert [running_prefixes.share(A, like, blocks) for blocks in (1, 2, 3)] == [0.5, 0.5, 0.25]
    assert [running_prefixes.share(B, like, blocks) for blocks in (1, 2, 3)] == [1.0, 0.0, 0.0]


def test_nothing_is_shared_beyond_a_prompt_or_with_nobody(running_prefixes, happens):
    like = request("2", 5)
    assert running_prefixes.share(A, like, 1) == 0.0
    happens(LifecycleEventKind.RESERVED, A, request("1", 5, 6))
    assert [running_prefixes.share(A, like, blocks) for blocks in (0, 1, 2)] == [0.0, 1.0, 0.0]
    assert running_prefixes.share(A, request("3"), 1) == 0.0


@pytest.mark.parametrize("end", [LifecycleEventKind.FINISHED, LifecycleEventKind.FAILED])
def test_requests_count_until_they_end(running_prefixes, happens, end):
    first, like = request("1", 5), request("2", 5)
    happens(LifecycleEventKind.RESERVED, A, first)
    happens(LifecycleEventKind.RESERVED, B, first)  # a second attempt: the first one's end is not its own
    happens(LifecycleEventKind.FIRST_TOKEN, A, first)
    assert running_prefixes.share(A, like, 1) == 1.0
    happens(end, A, first)
    happens(end, A, first)
    assert (running_prefixes.share(A, like, 1), running_prefixes.share(B, like, 1)) == (0.0, 1.0)


def test_ends_of_unknown_requests_are_ignored(running_prefixes, happens):
    happens(LifecycleEventKind.FINISHED, A, request("1", 5))
    assert running_prefixes.share(A, request("2", 5), 1) == 0.0


def test_the_oldest_are_forgotten_beyond_the_bound():
    running_prefixes = RunningPrefixes(kept=2)
    for name, block in (("1", 5), ("2", 5), ("3", 6)):
        running_prefixes.observe(LifecycleEvent(LifecycleEventKind.RESERVED, request(name, block), A, 0.0))
    assert running_prefixes.share(A, request("4", 5), 1) == 0.5
    running_prefixes.observe(LifecycleEvent(LifecycleEventKind.FINISHED, request("1", 5), A, 0.0))
    assert running_prefixes.share(A, request("4", 5), 1) == 0.5


def test_a_copy_goes_its_own_way_with_the_same_prompts(running_prefixes, happens):
    blocks = [5, 6]
    happens(LifecycleEventKind.RESERVED, A, RequestView("1", "m", 32, 16, blocks))
    copy = deepcopy(running_prefixes)
    happens(LifecycleEventKind.FINISHED, A, request("1"))
    assert running_prefixes.share(A, request("2", 5), 1) == 0.0
    assert copy.share(A, request("2", 5), 1) == 1.0
