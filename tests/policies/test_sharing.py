"""Who of a worker's running requests begins as another one does."""

from copy import deepcopy

import pytest

from policies.sharing import Sharing
from policies.view import Edge, EdgeKind, RequestView, WorkerId

A, B = WorkerId("a"), WorkerId("b")


def request(name, *blocks):
    return RequestView(name, "m", 16 * len(blocks), 16, blocks)


@pytest.fixture
def sharing():
    return Sharing()


@pytest.fixture
def happens(sharing):
    def observe(kind, worker, view):
        sharing.observe(Edge(kind, view, worker, 0.0))

    return observe


def test_shares_are_counted_per_worker_and_depth(sharing, happens):
    happens(EdgeKind.BOOKED, A, request("1", 5, 6, 7))
    happens(EdgeKind.BOOKED, A, request("2", 5, 6))
    happens(EdgeKind.BOOKED, A, request("3", 8))
    happens(EdgeKind.BOOKED, A, request("4"))
    happens(EdgeKind.BOOKED, B, request("5", 5, 9))
    like = request("6", 5, 6, 7)
    assert [sharing.share(A, like, blocks) for blocks in (1, 2, 3)] == [0.5, 0.5, 0.25]
    assert [sharing.share(B, like, blocks) for blocks in (1, 2, 3)] == [1.0, 0.0, 0.0]


def test_nothing_is_shared_beyond_a_prompt_or_with_nobody(sharing, happens):
    like = request("2", 5)
    assert sharing.share(A, like, 1) == 0.0
    happens(EdgeKind.BOOKED, A, request("1", 5, 6))
    assert [sharing.share(A, like, blocks) for blocks in (0, 1, 2)] == [0.0, 1.0, 0.0]
    assert sharing.share(A, request("3"), 1) == 0.0


@pytest.mark.parametrize("end", [EdgeKind.FINISHED, EdgeKind.FAILED])
def test_requests_count_until_they_end(sharing, happens, end):
    first, like = request("1", 5), request("2", 5)
    happens(EdgeKind.BOOKED, A, first)
    happens(EdgeKind.BOOKED, B, first)  # a second attempt: the first one's end is not its own
    happens(EdgeKind.FIRST_TOKEN, A, first)
    assert sharing.share(A, like, 1) == 1.0
    happens(end, A, first)
    happens(end, A, first)
    assert (sharing.share(A, like, 1), sharing.share(B, like, 1)) == (0.0, 1.0)


def test_ends_of_unknown_requests_are_ignored(sharing, happens):
    happens(EdgeKind.FINISHED, A, request("1", 5))
    assert sharing.share(A, request("2", 5), 1) == 0.0


def test_the_oldest_are_forgotten_beyond_the_bound():
    sharing = Sharing(kept=2)
    for name, block in (("1", 5), ("2", 5), ("3", 6)):
        sharing.observe(Edge(EdgeKind.BOOKED, request(name, block), A, 0.0))
    assert sharing.share(A, request("4", 5), 1) == 0.5
    sharing.observe(Edge(EdgeKind.FINISHED, request("1", 5), A, 0.0))
    assert sharing.share(A, request("4", 5), 1) == 0.5


def test_a_copy_goes_its_own_way_with_the_same_prompts(sharing, happens):
    blocks = [5, 6]
    happens(EdgeKind.BOOKED, A, RequestView("1", "m", 32, 16, blocks))
    copy = deepcopy(sharing)
    happens(EdgeKind.FINISHED, A, request("1"))
    assert sharing.share(A, request("2", 5), 1) == 0.0
    assert copy.share(A, request("2", 5), 1) == 1.0
