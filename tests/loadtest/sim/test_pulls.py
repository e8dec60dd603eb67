"""Pulls on virtual time: worked out by hand where that is possible, else by what must hold in any run."""

from dataclasses import replace

import pytest

from loadtest.sim.gateway import Delays
from loadtest.sim.outcome import Ending
from loadtest.sim.pulls import PullSetting, pull_rule
from loadtest.sim.run import Setting, simulate
from policies.spec import PolicySpec

NO_DELAYS = Delays(request_s=0.0, response_s=0.0, kv_event_s=0.0, load_interval_s=1.0)
ALWAYS = PullSetting(100, "above=0", tokens_per_s=1_000.0, latency_s=0.1)


@pytest.fixture
def play(spec):
    def run(sessions, pulls=ALWAYS, workers=2, delays=NO_DELAYS, **fields):
        setting = Setting((replace(spec, **fields),) * workers, PolicySpec("round_robin"), delays=delays, pulls=pulls)
        return simulate(setting, sessions)

    return run


@pytest.fixture
def twice(make_call, make_session):
    """Return two sessions with one prompt, the second a second later."""
    return [make_session(f"s{number}", make_call(range(9), [50, 51]), start_s=float(number)) for number in range(2)]


def test_one_pull_by_hand(play, twice):
    first, second = (run := play(twice)).outcomes
    # 10 ms and 9 tokens; then 100 ms and 8 tokens of 1 ms on the way, 10 ms and 1 token.
    assert (first.worker, first.ttft_s) == ("worker-0", pytest.approx(0.019))
    assert (second.worker, second.ttft_s) == ("worker-1", pytest.approx(0.108 + 0.011))
    assert [one["prefill_tokens"] for one in run.workers] == [9, 1]


def test_without_pulls_each_worker_computes_the_prompt(play, twice):
    run = play(twice, replace(ALWAYS, rule="never"))
    assert [one["prefill_tokens"] for one in run.workers] == [9, 9]


def test_the_gateways_rule_pulls_where_the_network_is_faster(play, twice):
    slow, fast = replace(ALWAYS, rule="cost"), PullSetting(100, tokens_per_s=1e9, latency_s=0.0)
    assert [one["prefill_tokens"] for one in play(twice, slow).workers] == [9, 9]
    assert [one["prefill_tokens"] for one in play(twice, fast).workers] == [9, 1]


def test_a_prompt_that_has_left_the_gpu_comes_from_host_memory(play, make_call, make_session):
    calls = [make_call(range(start, start + 25), [50], pause_s=1.0) for start in (0, 100, 0)]
    (one,) = play([make_session("s", *calls)], workers=1).workers
    assert one["prefill_tokens"] == 25 + 25 + 1


def test_nothing_stays_in_use_when_clients_leave(play, make_call, make_session):
    sessions = [make_session("first", make_call(range(9), [50, 51]))]
    sessions += [
        make_session(f"s{number}", make_call(range(9), [50] * 9, leaves_after_s=leaves_s), start_s=1.0 + number)
        for number, leaves_s in enumerate([0.001, 0.05, 0.104, 0.11, 0.12, None])
    ]
    run = play(sessions)
    assert {one.ending for one in run.outcomes} == {Ending.FINISHED, Ending.LEFT} and len(run.outcomes) == 7
    assert [(one["kv_usage"], one["kept_blocks"], one["running"], one["waiting"]) for one in run.workers] == [
        (0.0, 0, 0, 0)
    ] * 2


def test_a_client_that_leaves_just_before_there_is_room_pulls_nothing(play, make_call, make_session):
    sessions = [
        make_session("holds", make_call(range(9), [50])),
        make_session("fills", make_call(range(100, 125), [50, 51]), start_s=1.0),
        make_session("between", make_call(range(200, 204), [50]), start_s=1.005),
        make_session("leaves", make_call(range(9), [50] * 9, leaves_after_s=0.06), start_s=1.01),
    ]
    run = play(sessions, delays=replace(NO_DELAYS, request_s=0.05))
    assert [one.ending for one in run.outcomes if one.id == "leaves/0"] == [Ending.LEFT]
    assert [one["prefill_tokens"] for one in run.workers] == [9 + 4, 25]
    assert [one["kv_usage"] for one in run.workers] == [0.0, 0.0]


@pytest.mark.parametrize("rule", ["sometimes", "above=", "above=-1", "above=much"])
def test_an_unknown_rule_is_named(rule):
    with pytest.raises(ValueError, match=f"'{rule}' is no pull rule; write cost, never or above=N"):
        pull_rule(rule)
