"""Properties of every rule with hold and lanes around it, for any views and events, while there is a lane."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.registry import BUILT_IN, build_policy, terms_of
from policies.spec import PolicySpec
from policies.view import FleetView
from policies.wrappers.lane_plan import Plan
from policies.wrappers.prefill_lanes import ModelLane
from router.placement.policies.policy_runner import PolicyRunner
from tests.policies.test_properties import fleets, pasts, requests
from tests.support.examples import examples


@st.composite
def plans(draw):
    return Plan(draw(st.sampled_from([0.5, 100.0])), 2, draw(st.floats(0, 50)), draw(st.floats(0, 50)), 0.5)


def wrapped(rule, events, plan, lane):
    """Return the rule with both wrappers, after some events, with this lane for the model of all requests."""
    hold = build_policy(PolicySpec(rule, hold=True, lanes=True), random.Random(3))
    for event in events:
        hold.observe(event)
    model_lane = hold.inner._model_lanes["m"] = ModelLane(0.1)
    model_lane.plan, model_lane.lane = plan, frozenset(lane)
    return hold


@given(request=requests, fleet=fleets(), events=pasts(), plan=plans(), data=st.data())
def test_views_and_columns_lead_any_wrapped_rule_to_one_valid_choice(request, fleet, events, plan, data):
    lane = data.draw(st.lists(st.sampled_from(fleet.ids), unique=True))
    columns = FleetView(fleet.now_s, None, fleet.roster, fleet.columns)
    for rule in BUILT_IN:
        one = wrapped(rule, events, plan, lane).decide(request, fleet)
        other = wrapped(rule, events, plan, lane).decide(request, columns)
        for decision in (one, other):
            assert sorted(decision.ranked) == sorted(fleet.ids), rule
            assert len(decision.costs) <= len(fleet.ids) and decision.hold_s >= 0.0, rule
            named = {term for worker in decision.terms for term in decision.terms[worker]}
            assert named <= set(terms_of(PolicySpec(rule, lanes=True))), rule
        assert one.ranked[0] == other.ranked[0], rule
        assert (one.reason, one.hold_s > 0.0) == (other.reason, other.hold_s > 0.0), rule


@pytest.mark.parametrize("rule", BUILT_IN)
@settings(max_examples=examples(8))
@given(request=requests, fleet=fleets(), plan=plans(), data=st.data())
def test_explain_copies_a_wrapped_rule(rule, request, fleet, plan, data):
    lane = data.draw(st.lists(st.sampled_from(fleet.ids), unique=True))
    runner = PolicyRunner(wrapped(rule, (), plan, lane), PolicySpec(rule, hold=True, lanes=True))
    explained = runner.explain(request, fleet)
    decided = runner.decide(request, fleet)
    assert runner.last_error is None
    assert (tuple(explained.ranked), explained.reason) == (tuple(decided.ranked), decided.reason)
