from itertools import pairwise

import pytest

from backends.simulated.settings import shipped_model_dir
from loadtest.fidelity.prompts import prompt_ids
from loadtest.fidelity.scenarios import SCENARIOS, one_at_a_time

CACHE_TOKENS = 65_536


@pytest.mark.parametrize("name", SCENARIOS)
def test_equal_seeds_give_equal_arrivals(name):
    assert SCENARIOS[name](3) == SCENARIOS[name](3)
    assert SCENARIOS[name](3) != SCENARIOS[name](4)


@pytest.mark.parametrize("name", SCENARIOS)
def test_arrivals_come_in_order_and_have_ids_of_their_own(name):
    scenario = SCENARIOS[name](0)
    assert len({arrival.id for arrival in scenario.arrivals}) == len(scenario.arrivals)
    if not scenario.one_at_a_time:
        times = [arrival.at_s for arrival in scenario.arrivals]
        assert times == sorted(times)


def test_a_later_turn_holds_the_earlier_ones_with_answers_no_clock_would_give():
    turns = [arrival for arrival in one_at_a_time(0).arrivals if arrival.id.startswith("talk-0-")]
    assert [arrival.id for arrival in turns] == [f"talk-0-{index}" for index in range(4)]
    for earlier, later in pairwise(turns):
        assert later.messages[: len(earlier.messages)] == earlier.messages
        answer = later.messages[len(earlier.messages)]
        assert answer["role"] == "assistant"
        assert answer["content"][0].isdigit()


def test_the_body_fixes_the_answers_length():
    arrival = one_at_a_time(0).arrivals[0]
    body = arrival.body("m")
    assert (body["model"], body["max_tokens"], body["ignore_eos"]) == ("m", arrival.answer_tokens, True)


def test_sequential_prompts_exceed_the_cache():
    scenario = one_at_a_time(0)
    ids = prompt_ids(scenario, shipped_model_dir())
    last_turns = [ids[arrival.id] for arrival in scenario.arrivals if arrival.id.endswith("-3")]
    assert sum(map(len, last_turns)) > 1.2 * CACHE_TOKENS
    assert set(ids) == {arrival.id for arrival in scenario.arrivals}
