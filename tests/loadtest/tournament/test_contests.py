from dataclasses import replace
from itertools import product

import pytest

from backends.engine.profile import load_profile
from loadtest.lab.cell import Slo
from loadtest.lab.saturation import Saturation, SaturationError
from loadtest.tournament import study
from loadtest.tournament.contests import CONTESTS, FULL, QUICK
from loadtest.workload.source import parse_source
from policies.registry import BUILT_IN


@pytest.mark.parametrize("contest", CONTESTS, ids=lambda one: one.name)
def test_every_contest_has_a_fleet_a_service_level_and_blocks_that_divide_its_cache(contest):
    profile = load_profile(contest.fleet.profile)
    assert contest.slo in (Slo(2000.0, 100.0), Slo(2000.0, 200.0))
    assert profile.kv_tokens > 100 * (contest.block_tokens or 512)
    if not contest.recorded:
        assert parse_source(contest.trace).draw(0, 60.0).sessions


def test_a_recorded_one_is_found_packed_or_not(tmp_path):
    contest = CONTESTS[0]
    assert contest.source(None) is None and contest.source(tmp_path) is None
    (tmp_path / "conversation_trace.jsonl.zst").touch()
    assert contest.source(tmp_path) == str(tmp_path / "conversation_trace.jsonl.zst")
    assert CONTESTS[1].source(None) == CONTESTS[1].trace


def test_the_whole_has_every_rule_and_warms_up_as_the_lab_does():
    assert set(FULL.policies) == set(BUILT_IN)
    found = CONTESTS[1].study(CONTESTS[1].trace, FULL)
    models = found.setting.models
    assert (found.setting.window_s, models.warm_up_s, models.block_tokens) == (1200.0, 240.0, 256)


def test_every_rule_load_and_seed_is_a_cell_and_cells_of_a_plan_are_neighbours():
    extent = replace(QUICK, policies=("lpwl", "random"), first_seed=7)
    found = CONTESTS[1].study(CONTESTS[1].trace, extent)
    cells = found.cells(Saturation("lpwl", 4.0, 10.0))
    assert [(one.seed, one.load, one.policy) for one in cells] == list(
        product((7, 8, 9), QUICK.loads, ("lpwl", "random"))
    )
    assert {one.load: one.rate for one in cells} == {0.6: pytest.approx(2.4), 0.95: pytest.approx(3.8)}


def test_round_robin_may_hold_the_level_at_no_rate(monkeypatch):
    def search(like, policy, run):
        if policy == "round_robin":
            raise SaturationError("too slow")
        return Saturation(policy, 1.0, 2.0)

    monkeypatch.setattr(study, "saturation", search)
    one = CONTESTS[1].study(CONTESTS[1].trace, QUICK)
    assert (one.saturation(list), one.round_robin(list)) == (Saturation("lpwl", 1.0, 2.0), None)
