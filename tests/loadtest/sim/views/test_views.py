"""The baselines believe what they are said to believe."""

from array import array

import pytest

from loadtest.sim.sessions import Call
from loadtest.sim.views.blind_lru import BlindLru
from loadtest.sim.views.fixed_ttl import FixedTtl
from loadtest.sim.views.nothing import Nothing
from loadtest.sim.views.routed import RoutedPrefixes
from loadtest.sim.virtual_time import VirtualTime
from policies.view import Residency, WorkerId
from router.placement.residency_source import ResidencySource


def advance(time, to_s):
    time.at(to_s, lambda: None)
    time.run()


def test_a_prefix_is_known_for_its_time_and_no_longer():
    time = VirtualTime()
    memory = FixedTtl(time, 10.0)
    memory.remember([1, 2, 3])
    advance(time, 9.0)
    assert memory.known([1, 2, 3, 4]) == 3
    memory.remember([1, 2])
    advance(time, 10.0)
    assert memory.known([1, 2, 3]) == 2, "only what was sent again has its time anew"
    advance(time, 19.0)
    assert memory.known([1, 2, 3]) == 0
    memory.remember([9])
    assert memory.statistics() == {"blocks": 1}, "what has run out is let go"


def test_an_lru_keeps_so_many_blocks_and_heads_longest():
    memory = BlindLru(4)
    memory.remember([1, 2, 3])
    memory.remember([11, 12])
    assert memory.known([1, 2, 3]) == 2
    assert memory.known([11, 12, 13]) == 2
    memory.remember([1, 2])
    memory.remember([21])
    assert (memory.known([1, 2]), memory.known([11, 12])) == (2, 1)
    assert memory.statistics() == {"blocks": 4}


def test_an_empty_view_knows_no_block():
    memory = Nothing()
    memory.remember([1])
    assert (memory.known([1]), memory.residency, memory.statistics()) == (0, Residency.UNKNOWN, {})


@pytest.fixture
def view():
    routed = RoutedPrefixes(lambda block_tokens: BlindLru(8))
    routed.add(0, WorkerId("a"), 4, None, False)
    routed.add(1, WorkerId("b"), 4, None, False)
    return routed


def tokens(view, prompt):
    return {slot: match.tokens for slot, match in view.match(prompt, [0, 1]).items()}


def test_a_prompt_is_believed_to_be_where_it_was_sent_from_then_on(view):
    prompt = Call(array("I", range(8)), array("I")).prompt()
    assert tokens(view, prompt) == {0: 0, 1: 0}
    view.reserve(0, prompt, 1)
    assert tokens(view, prompt) == {0: 4, 1: 0}, "the last token is always computed"
    assert tokens(view, Call(array("I", range(9)), array("I")).prompt()) == {0: 8, 1: 0}


def test_answers_and_failures_teach_nothing(view):
    prompt = Call(array("I", range(9)), array("I")).prompt()
    view.reserve(0, prompt, 1)
    view.first_token(0, 1)
    view.finished(0, prompt, 100, 0, ticket_id=1)
    view.release(0, 1)
    assert tokens(view, Call(array("I", range(40)), array("I")).prompt()) == {0: 8, 1: 0}


def test_another_block_size_clears_the_view_and_a_worker_that_left_is_forgotten(view):
    prompt = Call(array("I", range(9)), array("I")).prompt()
    view.reserve(0, prompt, 1)
    view.configure(0, block_size=4)
    assert tokens(view, prompt)[0] == 8
    view.configure(0, block_size=2)
    assert tokens(view, prompt)[0] == 0
    assert view.statistics() == {0: {"blocks": 0}, 1: {"blocks": 0}}
    view.remove(1)
    view.remove(1)
    assert list(view.match(prompt, [0])) == [0]


def test_a_view_has_the_interface_of_the_residency_map(view):
    source: ResidencySource = view
    assert source.match(Call(array("I", range(9)), array("I")).prompt(), [0])[0].residency is Residency.APPROXIMATE
