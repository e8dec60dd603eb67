"""The harness: worked out by hand where that is possible, else by what must hold in any run."""

from random import Random

import pytest

from loadtest.sim.outcome import Ending
from tests.support.simulated_conversations import Shape, conversations, small_workers
from tests.support.simulation import Setting, simulate

NO_DELAYS = {"kv_event_s": 0.0, "request_s": 0.0, "response_s": 0.0}
SMALL = Shape(
    sessions=30,
    starts_per_s=8.0,
    prefixes=6,
    prefix_tokens=(500, 3_000),
    turns=(1, 3),
    pause_s=0.5,
    leaving_share=0.2,
    leaving_s=0.5,
)


def test_two_turns_by_hand(spec, make_call, make_session):
    """One worker: 8 prompt tokens cold, then 13 of which 2 blocks of 4 were computed before."""
    first, answer = range(8), [50, 51]
    second = [*first, *answer, 60, 61, 62]
    session = make_session("s", make_call(first, answer), make_call(second, [70], pause_s=1.0))
    outcomes = simulate(Setting((spec,), **NO_DELAYS), [session]).outcomes
    assert [(one.ending, one.predicted_tokens, one.cached_tokens) for one in outcomes] == [
        (Ending.FINISHED, 0, 0),
        (Ending.FINISHED, 8, 8),
    ]
    cold, warm = outcomes
    # 10 ms + 8 tokens, one decode step of 2 ms; a second later 10 ms + 5 tokens.
    assert (cold.sent_s, cold.ttft_s, cold.ended_s) == pytest.approx((0.0, 0.018, 0.020))
    assert cold.tpot_s == pytest.approx(0.002)
    assert (warm.sent_s, warm.ttft_s, warm.tpot_s) == (pytest.approx(1.020), pytest.approx(0.015), None)


def test_delays_add_up(spec, make_call, make_session):
    session = make_session("s", make_call(range(8), [50]))
    (outcome,) = simulate(Setting((spec,), request_s=0.25, response_s=0.5), [session]).outcomes
    assert outcome.ttft_s == pytest.approx(0.25 + 0.018 + 0.5)


def test_a_client_that_leaves_frees_its_worker(spec, make_call, make_session):
    session = make_session("s", make_call(range(8), [50] * 20, leaves_after_s=0.021), make_call(range(9), [60]))
    run = simulate(Setting((spec,), **NO_DELAYS), [session])
    left, after = run.outcomes
    assert (left.ending, left.output_tokens, left.ended_s) == (Ending.LEFT, 2, pytest.approx(0.021))
    assert (after.ending, after.cached_tokens) == (Ending.FINISHED, 8)
    assert run.workers[0]["finished_abort"] == 1


def test_a_client_that_leaves_at_once_is_never_served(spec, make_call, make_session):
    session = make_session("s", make_call(range(8), [50], leaves_after_s=0.1))
    run = simulate(Setting((spec,), request_s=0.2), [session])
    assert [(one.ending, one.cached_tokens, one.ttft_s) for one in run.outcomes] == [(Ending.LEFT, None, None)]
    assert run.workers[0]["prompt_tokens"] == 0


@pytest.mark.parametrize("events", [True, False])
@pytest.mark.parametrize("seed", [0, 1])
def test_everything_asked_is_accounted_for(events, seed):
    sessions = conversations(SMALL, seed)
    run = simulate(Setting(small_workers(), publishes_events=events, seed=seed), sessions)
    asked = {f"{session.id}/{number}": call for session in sessions for number, call in enumerate(session.calls)}
    assert {one.id for one in run.outcomes} == set(asked) and len(run.outcomes) == len(asked)
    ends = {}
    for one in sorted(run.outcomes, key=lambda one: one.sent_s):
        assert one.sent_s >= ends.get(one.session, 0.0), "turns follow each other"
        ends[one.session] = one.ended_s
        call = asked[one.id]
        assert one.prompt_tokens == len(call.prompt_ids)
        assert one.output_tokens <= len(call.output_ids)
        assert one.ending is Ending.LEFT or one.output_tokens == len(call.output_ids)
        assert one.ended_s - one.sent_s >= (one.ttft_s or 0.0)
        assert one.cached_tokens is None or one.cached_tokens < one.prompt_tokens
    total = {key: sum(worker[key] for worker in run.workers) for key in run.workers[0]}
    assert total["running"] == total["waiting"] == 0 and total["kv_usage"] == pytest.approx(0.0)
    began = [one for one in run.outcomes if one.cached_tokens is not None]
    assert sum(one.cached_tokens for one in began) == total["prefix_hits_tokens"]
    assert total["finished_length"] + total["finished_abort"] >= len(began)


def test_equal_seeds_give_equal_runs_and_other_seeds_others():
    def run(seed):
        return simulate(Setting(small_workers(), seed=seed), conversations(SMALL, seed))

    assert run(1) == run(1)
    assert run(1).outcomes != run(2).outcomes


def test_without_contention_the_exact_view_is_right_every_time():
    rng = Random(0)
    shape = Shape(sessions=20, starts_per_s=0.2, prefixes=4, prefix_tokens=(1_000, 2_000), pause_s=5.0)
    sessions = conversations(shape, rng.randrange(100))
    run = simulate(Setting(small_workers()), sessions)
    assert all(one.predicted_tokens == one.cached_tokens for one in run.outcomes)
    assert sum(one.cached_tokens for one in run.outcomes) > 0
