import random

import pytest

from router.placement.learning.output_length import KEPT, OutputLengths
from router.placement.learning.prefill_estimate import ENOUGH
from router.placement.request import Request, SessionKind


@pytest.fixture
def asks():
    def request(model="m", path="/v1/chat/completions", kind=SessionKind.SINGLE, **fields):
        return Request("r", path, model, None, 100, 0.0, kind=kind, **fields)

    return request


@pytest.fixture
def output_lengths():
    return OutputLengths()


def learn(output_lengths, request, tokens, times=200):
    for _ in range(times):
        output_lengths.observe(request, 0.01 * (tokens - 1), tokens)


def decode_s(output_lengths, request):
    return output_lengths.decode_s(output_lengths.expected_tokens(request))


def test_what_was_seen_is_expected_up_to_the_limit(output_lengths, asks):
    output_lengths.observe(asks(), None, None)
    assert (decode_s(output_lengths, asks()), output_lengths.expected_tokens(asks())) == (0.0, 0.0)
    output_lengths.observe(asks(), None, 300)
    assert decode_s(output_lengths, asks()) == 0.0
    assert output_lengths.expected_tokens(asks()) == 300
    learn(output_lengths, asks(), 100)
    assert decode_s(output_lengths, asks()) == pytest.approx(1.0, rel=0.1)
    assert output_lengths.expected_tokens(asks(max_tokens=10)) == 10
    assert decode_s(output_lengths, asks(max_tokens=10)) == pytest.approx(0.1, rel=0.01)


@pytest.mark.parametrize(
    "other",
    [{"model": "n"}, {"path": "/v1/completions"}, {"kind": SessionKind.AGENT}],
    ids=["model", "route", "kind of session"],
)
def test_each_model_route_and_kind_of_session_has_lengths_of_its_own(output_lengths, asks, other):
    for _ in range(100):
        learn(output_lengths, asks(), 1_000, times=1)
        learn(output_lengths, asks(**other), 50, times=1)
    assert output_lengths.expected_tokens(asks()) == pytest.approx(1_000, rel=0.1)
    assert output_lengths.expected_tokens(asks(**other)) == pytest.approx(50, rel=0.6)
    assert 200 < output_lengths.mean_tokens < 800


def test_a_new_kind_begins_with_what_the_wider_group_has(output_lengths, asks):
    learn(output_lengths, asks(), 400)
    agent = asks(kind=SessionKind.AGENT)
    assert output_lengths.expected_tokens(agent) == pytest.approx(400, rel=0.01)
    learn(output_lengths, agent, 40, times=1)
    assert 200 < output_lengths.expected_tokens(agent) < 400
    learn(output_lengths, agent, 40, times=20)
    assert output_lengths.expected_tokens(agent) < 100
    assert output_lengths.expected_tokens(asks(model="new")) == pytest.approx(output_lengths.mean_tokens)


def test_a_hint_counts_for_more_than_what_was_seen_and_less_than_the_limit(output_lengths, asks):
    assert output_lengths.expected_tokens(asks(hinted_tokens=70)) == 70
    learn(output_lengths, asks(), 400)
    assert output_lengths.expected_tokens(asks(hinted_tokens=3_000)) == 3_000
    assert output_lengths.expected_tokens(asks(hinted_tokens=3_000, max_tokens=500)) == 500
    assert decode_s(output_lengths, asks(hinted_tokens=0)) == 0.0


def test_groups_are_bounded_and_the_last_used_stay(output_lengths, asks):
    learn(output_lengths, asks(), 400, times=20)
    for number in range(KEPT):
        output_lengths.observe(asks(model=f"made up {number}"), None, 10)
        if number % 100 == 0:
            output_lengths.observe(asks(), None, 400)
    assert len(output_lengths._means) <= KEPT
    assert output_lengths.expected_tokens(asks()) > 300


def test_answers_met_on_their_way_are_the_longer_ones(output_lengths, asks):
    for _ in range(ENOUGH - 1):
        output_lengths.observe(asks(), 2.0, 100)
    assert output_lengths.remaining_s() == 0.0
    for _ in range(1_000):
        output_lengths.observe(asks(), 2.0, 100)
    assert output_lengths.remaining_s() == pytest.approx(1.0)
    rng = random.Random(0)
    for _ in range(1_000):
        output_lengths.observe(asks(), rng.choice([1.0, 1.0, 1.0, 17.0]), 100)
    assert output_lengths.remaining_s() == pytest.approx((3 * 1.0 + 17.0**2) / (2 * 20.0), rel=0.15)
