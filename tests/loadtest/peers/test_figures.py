import pytest

from loadtest.drive.chat import Timing
from loadtest.peers.figures import Usage, figures, ratios, reusable_share, spread
from loadtest.peers.report import by_contender
from loadtest.peers.workers import Counters
from loadtest.workload.conversations import Conversation, Turn


def timing(ttft_s=0.1, prompt=100, cached=0, answer=11, error=None):
    return Timing(
        0.0, ttft_s, ttft_s + 1.0, prompt_tokens=prompt, cached_tokens=cached, completion_tokens=answer, error=error
    )


def usage(*workers):
    return Usage(
        duration_s=10.0,
        router_cpu_s=0.04,
        client_cpu_s=0.02,
        busy_cpu_s=10.0,
        machine_cpu_s=20.0,
        client_lag_p99_s=0.002,
        workers=workers,
    )


def conversation(number, system, turns):
    return Conversation(f"c{number}", float(number), system, "", (Turn("?", 0.0, 4),) * turns)


def test_shares_and_cpu_are_over_what_was_answered():
    timings = [timing(0.1, 100, 80), timing(0.3, 300, 160), timing(error="gone", prompt=1_000)]
    run = figures("a:b", 1, timings, usage(Counters(300, 200, 0.5), Counters(100, 40, 0.1)))
    assert (run.requests, run.errors) == (3, 1)
    assert (run.prompt_tokens, run.prefill_tokens, run.cached_share) == (400, 160, 0.6)
    assert run.looked_up_share == 240 / 400
    assert run.imbalance == pytest.approx(100 / 80)
    assert run.ttft_mean_ms == pytest.approx(200)
    assert run.tpot_p50_ms == pytest.approx(100)
    assert (run.router_cpu_ms, run.workers_cpu_ms) == (pytest.approx(20), pytest.approx(300))
    assert (run.busy_share, run.own_share) == (0.5, pytest.approx(0.66 / 20))


def test_a_run_without_an_answer_has_no_shares():
    run = figures("a:b", 1, [timing(error="gone")], usage(Counters(0, 0, 0.0)))
    assert (run.cached_share, run.looked_up_share, run.imbalance, run.router_cpu_ms) == (0, 0, 0, 0)


def test_an_endless_cache_finds_the_group_and_the_turns_before():
    plays = [conversation(0, "x", 2), conversation(1, "y", 1), conversation(2, "x", 1)]
    timings = [timing(prompt=100, answer=13), timing(prompt=150), timing(prompt=100), timing(prompt=90)]
    # the second turn finds 100 + 13 - 1 tokens, the third conversation 70 of its group's, each in whole blocks of 16
    assert reusable_share(plays, timings, system_tokens=70) == (112 + 64) / 440


def test_no_bound_is_given_when_a_request_failed():
    plays = [conversation(0, "x", 2)]
    assert reusable_share(plays, [timing(error="gone")], 70) is None
    assert reusable_share(plays, [timing(), timing(error="gone")], 70) is None


def test_ratios_are_taken_within_a_round():
    slow = [figures("slow", number, [timing(0.4 * number)], usage()) for number in (1, 2, 3)]
    fast = [figures("fast", number, [timing(0.1)], usage()) for number in (2, 1)]
    assert ratios(fast, slow, "ttft_mean_ms") == pytest.approx([0.125, 0.25])
    assert ratios(fast, [], "ttft_mean_ms") == []
    assert ratios(fast, slow, "prefill_tokens") == [1.0, 1.0]
    assert spread([3.0, 1.0, 2.0]) == (2.0, 1.0, 3.0)


def test_runs_with_failures_are_left_out_of_the_tables():
    good = figures("a", 1, [timing()], usage())
    bad = figures("b", 1, [timing(error="gone")], usage())
    assert by_contender(["b", "a"], [bad, good]) == {"a": [good]}
