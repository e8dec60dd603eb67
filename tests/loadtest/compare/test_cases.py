from statistics import fmean

import pytest

from loadtest.compare.cases import CASES
from loadtest.compare.modelled import asked, play
from loadtest.compare.settings import Unplayable, cells
from tests.loadtest.compare.conftest import parsed

BURST = "shared-prompt-burst"


def test_a_case_settles_all_but_the_workers():
    args = parsed("--case", BURST)
    assert (args.policy, args.seeds, args.rate, args.time_scale) == (CASES[BURST].policy, 10, 1.0, 4.0)
    assert (args.backend, args.out) == ("embedded", None)
    [[held, placed], *_] = cells(args, None)
    assert (held.policy, placed.policy) == ("marginal_cost", "marginal_cost:hold=false")
    assert (held.setting.window_s, held.setting.models.kv_tokens, held.setting.fleet.workers) == (60.0, 65_536, 4)


def test_a_group_shares_its_system_prompt():
    args = parsed("--case", "twelve-groups")
    assert [peer.name for peer in args.peer] == list(CASES["twelve-groups"].peer)
    plan = asked(cells(args, None)[0][0]).plan
    assert plan.calls == 192
    assert 6 <= len({session.calls[0].prompt.pieces[0] for session in plan.sessions}) <= 12
    [peer] = parsed("--case", "one-group", "--peer", "smg:round_robin").peer
    assert peer.name == "smg:round_robin"


def test_flags_change_a_case():
    args = parsed("--case", BURST, "--seeds", "2", "--load", "0.5", "--workers", "2", "--policy", "lpwl")
    assert (args.seeds, args.load, args.rate, args.workers, args.policy) == (2, 0.5, None, 2, ["lpwl"])
    assert args.kv_tokens == 65_536


def test_without_a_case_the_usual_settings_count():
    args = parsed("--trace", "generator:rag", "--policy", "lpwl")
    assert (args.load, args.rate, args.seeds, args.window_s, args.warm_up_s) == (0.85, None, 3, 90.0, 20.0)
    assert (args.profile, args.workers, args.kv_tokens, args.time_scale) == ("llama-3.1-70b-4xh100", 4, None, 1.0)


def test_a_trace_without_rules_is_refused():
    with pytest.raises(Unplayable, match="add --policy"):
        parsed("--trace", "generator:rag")


def test_the_burst_is_96_chats_of_four_turns_over_one_prompt():
    plan = asked(cells(parsed("--case", BURST), None)[0][0]).plan
    assert len(plan.sessions) == 96 and {len(session.calls) for session in plan.sessions} == {4}
    assert len({call.prompt.pieces[0] for session in plan.sessions for call in session.calls}) == 1
    assert plan.sessions[-1].start_s == pytest.approx(96 / 5, rel=0.3)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["vllm", "embedded"])
def test_the_burst_waits_for_no_hold(backend):
    """In virtual time, ten seeds: mean TTFT with hold is at most 1.02 of without."""
    args = parsed("--case", BURST, "--backend", backend)
    ratios = []
    for held, placed in cells(args, None):
        ratios.append(play(held, args.time_scale).all.ttft_mean_ms / play(placed, args.time_scale).all.ttft_mean_ms)
    assert fmean(ratios) <= 1.02, ratios
