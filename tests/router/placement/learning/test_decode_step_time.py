"""The growth of a decode step with the context that a worker holds is learned from answers."""

import random

import pytest

from router.placement.learning.decode_step_time import Output, StepEstimate, WorkCounter, decode_externality_s
from router.placement.learning.prefill_estimate import ENOUGH
from router.placement.load.ledger import LoadAccount
from router.placement.load.running import LoadReservation

FIXED_S, CONTEXT_TOKEN_S = 8e-3, 40e-9


def answers(count, rng, fixed_s=FIXED_S, context_token_s=CONTEXT_TOKEN_S, held=1.0, noise=0.05):
    """Return tuples of gaps, context tokens, prefill seconds and decode seconds."""
    for _ in range(count):
        gaps, context_tokens, prefill_s = rng.randint(5, 400), rng.uniform(0, 400_000), rng.expovariate(1.0)
        steps_s = gaps * (fixed_s + context_token_s * context_tokens)
        yield gaps, context_tokens, prefill_s, (steps_s + held * prefill_s) * (1 + rng.uniform(-noise, noise))


@pytest.fixture
def estimate():
    return StepEstimate()


@pytest.fixture
def rng():
    return random.Random(0)


@pytest.mark.parametrize("held", [0.0, 1.0])
def test_growth_is_found_whether_prefills_hold_decodes_up_or_not(estimate, rng, held):
    for answer in answers(200, rng, held=held):
        estimate.observe(*answer)
    assert estimate.context_token_s == pytest.approx(CONTEXT_TOKEN_S, rel=0.15)


def test_nothing_is_said_before_there_are_answers_enough(estimate, rng):
    for number, answer in enumerate(answers(ENOUGH, rng)):
        assert estimate.context_token_s is None, number
        estimate.observe(*answer)
    assert estimate.context_token_s > 0.0


def test_growth_is_not_made_up(estimate, rng):
    """Under a constant load, the data cannot distinguish the fixed part from the part of the context."""
    for _ in range(20):
        estimate.observe(100, 50_000.0, 0.0, 1.0)
    assert estimate.context_token_s == 0.0


def test_a_stalled_answer_moves_little_and_a_slower_worker_much(estimate, rng):
    for answer in answers(200, rng):
        estimate.observe(*answer)
    estimate.observe(50, 300_000.0, 0.0, 600.0)
    assert estimate.context_token_s < 3 * CONTEXT_TOKEN_S
    for answer in answers(150, rng, 2 * FIXED_S, 2 * CONTEXT_TOKEN_S):
        estimate.observe(*answer)
    assert estimate.context_token_s == pytest.approx(2 * CONTEXT_TOKEN_S, rel=0.2)


@pytest.mark.parametrize("answer", [(0, 1_000.0, 0.0, 1.0), (-1, 1_000.0, 0.0, 1.0), (10, 1_000.0, 0.0, 0.0)])
def test_answers_without_gaps_or_time_teach_nothing(estimate, answer):
    estimate.observe(*answer)
    assert estimate.count == 0


def test_whatever_is_observed_growth_stays_finite_and_not_negative(estimate, rng):
    for _ in range(500):
        times = [rng.choice([0.0, 1e-9, 1e-3, 1.0, 1e6]) for _ in range(2)]
        estimate.observe(rng.choice([1, 2, 10**6]), rng.choice([0.0, 1.0, 1e9]), *times)
    assert 0.0 <= estimate.context_token_s < float("inf")


def test_passing_counts_token_seconds_and_prefills():
    passing = WorkCounter()
    passing.began(100, 50, 1_250.0, 10.0)
    passing.set_context(120, 12.0)  # 100 of the prompt, 20 of the answer
    passing.began(80, 10, 750.0, 12.5)
    assert passing.read(13.0) == (2 * 100.0 + 0.5 * 120 + 0.5 * 200, 60.0, 2_000.0)
    passing.ended(90, 13.0)
    passing.ended(130, 14.0)  # more than the context that is left
    assert passing.read(20.0)[0] == 360.0 + 110.0
    assert passing.read(19.0)[0] == 470.0  # an earlier time changes nothing


def test_an_account_counts_what_its_decodes_hold():
    account = LoadAccount()
    first, second = LoadReservation(100, 100, 0.0), LoadReservation(40, 60, 2.0)
    account.reserve(first)
    account.prefilled(first, 1.0)
    account.progressed(first, 10)
    account.answer_began(second, 1.0)
    account.reserve(second)  # 100 tokens for one second, and 110 from here on
    account.prefilled(second, 3.0)
    account.release(first, 4.0)  # 170 for one
    account.release(second, 6.0)  # 70 for two: the first answer's tokens stay until the next update
    assert account.work_beside(second, 6.0) == (100.0 + 110.0 + 170.0 + 2 * 70.0, 40.0, 40 * (20 + 20.0))


def test_decode_externality_counts_both_sides_while_they_overlap():
    """Answers of 100 tokens overlap for 50; ours brings 1,000 and half of its answer, ten others hold 20,000."""
    output = Output(100.0, 100.0)
    assert (output.overlap_tokens(), output.held_tokens(1_000)) == (50.0, 1_050.0)
    assert decode_externality_s(1e-6, 50.0, 1_050.0, 10, 20_000) == pytest.approx(1e-6 * 50 * (20_000 + 10 * 1_050))
    assert Output(10.0, 190.0).overlap_tokens() == pytest.approx(9.5)
    assert Output(0.0, 0.0).overlap_tokens() == 0.0
