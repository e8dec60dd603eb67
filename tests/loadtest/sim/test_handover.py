"""KV handovers on virtual time: worked out by hand where that is possible, else by what must hold in any run."""

from dataclasses import replace

import pytest

from loadtest.sim.handover import HandoverSetting
from loadtest.sim.outcome import Ending
from tests.support.simulation import Setting, simulate

NO_DELAYS = {"kv_event_s": 0.0, "request_s": 0.0, "response_s": 0.0}
ALWAYS = HandoverSetting(("prefill", "decode"), tokens_per_s=1_000.0, latency_s=0.1, even_if_dearer=True)


@pytest.fixture
def play(spec):
    def run(sessions, handover=ALWAYS, workers=2, **fields):
        return simulate(Setting((replace(spec, **fields),) * workers, **NO_DELAYS, handover=handover), sessions)

    return run


def test_one_call_on_two_workers_by_hand(play, make_call, make_session):
    (outcome,) = (run := play([make_session("s", make_call(range(8), [50, 51]))])).outcomes
    # 10 ms and 8 tokens on the first; 100 ms and 8 tokens of 1 ms on the way; 10 ms and 1 token, then 2 ms.
    assert (outcome.ttft_s, outcome.tpot_s) == (pytest.approx(0.018 + 0.108 + 0.011), pytest.approx(0.002))
    assert (outcome.ending, outcome.worker, outcome.prefilled_by) == (Ending.FINISHED, "worker-1", "worker-0")
    assert (outcome.predicted_tokens, outcome.cached_tokens, outcome.output_tokens) == (0, 0, 2)
    assert [one["prefill_tokens"] for one in run.workers] == [8, 1]


def test_mixed_workers_do_both_and_workers_beyond_the_roles_neither(play, make_call, make_session):
    sessions = [make_session(f"s{n}", make_call(range(10 * n, 10 * n + 8), [50]), start_s=n) for n in range(3)]
    outcomes = play(sessions, replace(ALWAYS, roles=("mixed", "mixed")), workers=3).outcomes
    pairs = {("worker-0", "worker-1"), ("worker-1", "worker-0")}
    assert {(one.worker, one.prefilled_by) for one in outcomes} <= pairs


def test_a_second_turn_moves_only_what_the_decode_worker_lacks(play, make_call, make_session):
    first, answer = range(8), [50, 51]
    second = make_call([*first, *answer, 60], [70], pause_s=1.0)
    _, warm = play([make_session("s", make_call(first, answer), second)]).outcomes
    # Both hold two blocks of four. Three tokens are computed, three move, and the last is computed again.
    assert warm.ttft_s == pytest.approx(0.013 + 0.103 + 0.011)
    assert (warm.predicted_tokens, warm.cached_tokens) == (8, 8)


def test_nothing_stays_in_use_when_all_have_ended_or_left(play, make_call, make_session):
    sessions = [
        make_session(f"s{number}", make_call(range(number, number + 8), [50] * 9, leaves_after_s=leaves_s))
        for number, leaves_s in enumerate([None, 0.005, 0.02, 0.1, 0.15, 0.2, 0.5, None])
    ]
    run = play(sessions)
    assert {one.ending for one in run.outcomes} == {Ending.FINISHED, Ending.LEFT} and len(run.outcomes) == 8
    assert [(one["kv_usage"], one["kept_blocks"], one["running"], one["waiting"]) for one in run.workers] == [
        (0.0, 0, 0, 0)
    ] * 2


@pytest.mark.parametrize(("answer_tokens", "moves_s"), [(4, 0.171), (15, 0.183)])
def test_space_is_waited_for_on_both_workers(play, make_call, make_session, answer_tokens, moves_s):
    """Eight blocks on each worker, and two prompts of five."""
    first = make_session("first", make_call(range(17), [50] * answer_tokens))
    second = make_session("second", make_call(range(30, 47), [60]), start_s=0.001)
    one, two = play([first, second]).outcomes
    # The first transfer keeps its blocks until 0.144 s. Then the second prompt takes 27 ms.
    assert one.ended_s == pytest.approx(0.144 + 0.011 + 0.002 * (answer_tokens - 1))
    # It moves when it is computed, and the decode worker has space: at the end of the long answer.
    assert two.ended_s == pytest.approx(moves_s + 0.117 + 0.011)


def test_an_answer_that_does_not_begin_within_the_lease_runs_on_one_worker(play, make_call, make_session):
    slow = replace(ALWAYS, latency_s=40.0)
    (outcome,) = (run := play([make_session("s", make_call(range(8), [50, 51]))], slow)).outcomes
    assert (outcome.ending, outcome.prefilled_by, outcome.worker) == (Ending.FINISHED, None, "worker-1")
    assert outcome.ttft_s == pytest.approx(0.018 + 25.0 + 0.018)
    assert [one["kept_blocks"] for one in run.workers] == [0, 0]


def test_a_prompt_that_fits_nowhere_is_rejected(play, make_call, make_session):
    (outcome,) = play([make_session("s", make_call(range(50), [50]))]).outcomes
    assert outcome.ending is Ending.REJECTED


@pytest.mark.parametrize("even_if_dearer", [True, False])
def test_two_workers_share_what_costs_less_or_everything(play, make_call, make_session, even_if_dearer):
    sessions = [make_session("s", make_call(range(8), [50]), make_call(range(20, 24), [50], pause_s=1.0))]
    outcomes = play(sessions, replace(ALWAYS, even_if_dearer=even_if_dearer)).outcomes
    assert [one.prefilled_by is not None for one in outcomes] == [even_if_dearer] * 2  # an idle worker needs no help
