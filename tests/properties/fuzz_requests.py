"""Mutated requests raise no exception, do not hang and leave nothing behind, and no two readers disagree on the
forwarded bytes.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conformance.corpus import MAX_BODY_BYTES, MAX_HEADER_BYTES
from tests.conformance.request_cases import REQUEST_CASES
from tests.properties.harness import CUTS, World, cut_up
from tests.properties.limits import limited
from tests.properties.mutations import MUTATIONS, budget, mutated
from tests.properties.strict import read_all, read_requests
from tests.properties.test_request_splits import LIMITS, serve

# No timeout of the test: each example has limits on CPU time and memory.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(0), pytest.mark.usefixtures("bounded_memory")]
# To read the answer to a HEAD, a reader would have to know which answer that is.
ROWS = [case.raw for case in REQUEST_CASES.values() if len(case.raw) < 2_000 and b"HEAD" not in case.raw]


class Run:
    """The result of one client's bytes."""

    def __init__(self, pieces):
        world = World(limits=LIMITS)
        client = world.client()
        answered = {}
        for piece in pieces:
            client.send(piece)
            serve(world, answered)
            assert client.protocol._framer.pending_bytes <= MAX_HEADER_BYTES + MAX_BODY_BYTES + len(piece)
        self.forwarded = []
        for dial in world.dials:
            messages, rest = read_all(dial.got, answer=False)
            assert rest == b""
            self.forwarded += [(message.start, message.content) for message in messages]
        self.answers, rest = read_all(client.got, answer=True)
        assert rest == b""
        self.statuses = [answer.status for answer in self.answers if answer.status != 100]
        self.closed = client.closed
        client.leave()
        assert world.at_rest()
        assert world.failures == []


def understood(raw):
    """Return the contents of the requests in `raw`, up to the place where a strict reader stops."""
    return [request.content for request in read_requests(raw).requests]


def is_part(few, many):
    rest = iter(many)
    return all(each in rest for each in few)


def check(raw, cuts):
    whole, split = Run([raw]), Run(cut_up(raw, cuts))
    assert split.forwarded == whole.forwarded
    assert split.closed == whole.closed
    assert len(split.statuses) == len(whole.statuses)
    for one, other in zip(split.statuses, whole.statuses, strict=True):
        assert one == other or min(one, other) >= 400  # with two faults, the gateway may name either
    assert is_part([content for _, content in whole.forwarded], understood(raw))


@budget(10)
@given(st.lists(st.sampled_from(ROWS), min_size=1, max_size=3), MUTATIONS, CUTS)
@limited
def test_mutated_rows(rows, mutations, cuts):
    check(mutated(b"".join(rows), mutations), cuts)


@budget(5)
@given(st.binary(max_size=200), st.sampled_from(ROWS), CUTS)
@limited
def test_bytes_before_and_behind_a_row(noise, row, cuts):
    check(noise + row, cuts)
    check(row + noise, cuts)
