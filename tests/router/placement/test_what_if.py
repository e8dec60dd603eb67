from random import Random

import pytest

from policies.registry import PolicyError, build_policy, policy_names
from policies.spec import PolicySpec
from router.placement.decision_log.decisions import DecisionLog, memory_of
from router.placement.decision_log.summary import Summary
from router.placement.decision_log.what_if import WhatIfRunsError
from router.placement.load.fleet_load import ARRAYS_FROM
from router.placement.policies.policy_runner import PolicyRunner
from router.placement.policies.shadow import RouteShadows
from tests.router.placement.conftest import VirtualFleet
from tests.router.placement.test_decision_log import conversations

BLOCKS = 2_000
"""Of each cache: enough for the conversations. The caches of 85 workers of the usual size take 341 MB."""


def played(rule="round_robin", workers=3, requests=None, **options):
    fleet = VirtualFleet(rule, workers=workers, seed=3, num_blocks=BLOCKS, **options)
    fleet.run(conversations() if requests is None else requests)
    return fleet.core


def asked(core, rule, **options):
    with core.what_ifs.begin(PolicySpec(rule, **options)) as what_if:
        summary = Summary()
        for one in filter(None, what_if):
            summary.add(one, 1_000)
    return what_if, summary


LARGE = [(rule, ARRAYS_FROM + 5) for rule in ("dynamo_default", "preble")]


@pytest.mark.parametrize(("rule", "workers"), [*((rule, 3) for rule in policy_names()), *LARGE])
def test_a_policy_that_began_with_the_log_chooses_the_same_again(rule, workers):
    core = played(rule, workers, hold=False, lanes=False)
    what_if, summary = asked(core, rule, hold=False, lanes=False)
    if rule in ("random", "power_of_two"):  # the random source of the recorded policy is not that of a new one
        assert 0 < summary.same < summary.decisions
        return
    assert (what_if.kept, summary.decisions, what_if.without_prompt, what_if.failures) == (48, 48, 0, 0)
    assert summary.first == []


def test_another_rule_would_have_gone_elsewhere():
    core = played()
    _, summary = asked(core, "lpwl")
    assert 0 < summary.elsewhere <= summary.decisions == 48
    assert summary.replayed.ttft_s < summary.recorded.ttft_s
    assert summary.replayed.prompt_tokens == summary.recorded.prompt_tokens
    one = summary.first[-1]
    assert one.recorded != one.replayed and one.request_id in {each.request.id for each in core.log.latest(48)}


def test_a_what_if_changes_neither_the_policy_nor_the_log():
    core = played("marginal_cost")
    before = [record.to_builtins() for record in core.log.latest(100)], core.statistics()
    asked(core, "preble")
    assert ([record.to_builtins() for record in core.log.latest(100)], core.statistics()) == before


def test_decisions_without_all_candidates_are_not_made_again():
    core = played()
    log = DecisionLog(48, candidates_kept=4 * 30)
    for record in reversed(core.log.latest(48)):
        log.add(record)
    core.what_ifs._log = log
    what_if, summary = asked(core, "lpwl")
    assert (what_if.kept, summary.decisions) == (48, 10)


def test_views_that_a_shadow_policy_makes_are_counted():
    fleet = VirtualFleet("lpwl", workers=ARRAYS_FROM + 5, seed=3, num_blocks=BLOCKS)
    shadow = PolicyRunner(build_policy(PolicySpec("preble"), Random(0)), PolicySpec("preble"), called="preble")
    fleet.core.policies.adopt({}, {"default": RouteShadows([shadow])})
    fleet.run(conversations()[:4])
    records = fleet.core.log.latest(4)
    assert len(records) == 4 and all(record.fleet.has_views for record in records)
    assert fleet.core.log.whole.taken == sum(memory_of(record.fleet) for record in records)


def test_hashes_of_prompts_are_bounded_and_missing_ones_are_counted():
    core = played()
    records = core.log.latest(48)
    hashes = sum(len(record.request.block_hashes) for record in records[:10])
    log = DecisionLog(48, hashes_kept=hashes)
    for record in reversed(records):
        log.add(record)
    assert [bool(record.request.block_hashes) for record in log.latest(48)] == [True] * 10 + [False] * 38
    core.what_ifs._log = log
    what_if, summary = asked(core, "chwbl")
    assert (summary.decisions, what_if.without_prompt) == (48, 38)


def test_hashes_that_leave_the_log_are_counted_no_longer():
    records = played().log.latest(48)
    most = max(len(record.request.block_hashes) for record in records)
    log = DecisionLog(1, hashes_kept=most)
    for record in reversed(records):
        log.add(record)
        assert record in log.with_prompt and log.latest(1)[0].request.block_hashes
    assert len(log) == 1


def test_one_runs_at_a_time_and_a_wrong_rule_ends_its_turn():
    core = played()
    with core.what_ifs.begin(PolicySpec("lpwl")), pytest.raises(WhatIfRunsError):
        asked(core, "random")
    with pytest.raises(PolicyError):
        asked(core, "nothing")
    assert asked(core, "random")[1].decisions == 48


def test_what_no_policy_chose_is_not_made_again():
    core = played()
    for record in core.log.latest(8):
        record.by_policy = False
    what_if, summary = asked(core, "lpwl")
    assert (what_if.kept, summary.decisions) == (48, 40)
