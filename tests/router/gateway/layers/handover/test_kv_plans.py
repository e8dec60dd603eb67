import asyncio
import json

import pytest

from policies.handover_cost import MoveCost
from router.gateway.layers.handover.handover import KvHandover
from router.gateway.layers.handover.kv_plans import KvPlans
from router.gateway.layers.handover.kv_pull import KvPull, Pulls
from router.gateway.layers.handover.pairs import Handovers
from router.metrics.registry import Registry
from router.placement.decision_log.decisions import DecisionRecord
from router.placement.handover.plan import LegPlan
from router.placement.request import Request
from router.requests.metrics import GatewayMetrics
from tests.router.placement.conftest import make_facts, make_prompt
from tests.router.placement.handover.test_pulls import TOKENS, Site

SETTINGS = {"connector": "shared_store", "transfer_tokens_per_s": 1e12}
PLAIN = {"model": "m", "prompt": "x"}


class Fleet:
    """A prefill worker, and a decode worker with streams. So a pair pays, and a pull does where `held` says so."""

    def __init__(self, held=False):
        self.site = Site(make_facts, {1: "prefill", 2: "decode"}, **SETTINGS)
        for number in range(3):
            ids = make_prompt(range(5_000, 6_000))
            stream = Request(f"s{number}", "/v1/completions", "m", ids, 10, 0.0)
            self.site.core.tickets.first_token(self.site.core.dispatcher.dispatch(stream, 0.0), 0.0)
        if held:
            self.site.hold(1)
        config, metrics = self.site.config, GatewayMetrics(Registry())
        loop = asyncio.get_running_loop()
        handovers = Handovers(config, self.site.core, self.site.fleet, loop, metrics, 5.0)
        self.kv_plans = KvPlans(self.site.core.planner, handovers, Pulls(config, self.site.core, metrics.pulls))
        self.before = self.site.decisions

    def begin(self, body=PLAIN, path="/v1/completions"):
        request = Request("r", path, "m", make_prompt(range(TOKENS)), TOKENS, 0.0)
        return self.kv_plans.begin(request, {}, json.dumps(body).encode(), 0.0, None, trusted=False)

    @property
    def decided(self):
        return self.site.decisions - self.before


@pytest.mark.parametrize(("held", "plan"), [(False, KvHandover), (True, KvPull)])
async def test_the_cheaper_of_pull_and_pair_is_begun(held, plan):
    fleet = Fleet(held)
    assert isinstance(fleet.begin(), plan)
    assert fleet.decided == held


@pytest.mark.parametrize(("delay_s", "kind"), [(0.4, "handover"), (0.2, "pull")])
async def test_the_price_of_kv_space_alone_does_not_decide_between_pull_and_pair(monkeypatch, delay_s, kind):
    planner = Fleet().site.core.planner
    pull = MoveCost(0, 0, 100, 100, 0.1, 0.0, cost_s=6.0, alone_s=12.0, delay_s=delay_s)  # it saves more than the pair
    pair = MoveCost(0, 0, 100, 100, 0.0, 0.0, cost_s=0.3, alone_s=4.0, delay_s=0.3)
    monkeypatch.setattr(planner, "pull", lambda *_, **__: LegPlan("pull", (), None, pull))
    monkeypatch.setattr(planner, "pair", lambda *_, **__: LegPlan("handover", (), None, pair))
    assert planner.plan(None, 0.0, lambda plan: True).kind == kind


async def test_the_body_of_a_pull_beside_a_pair_is_read_once(monkeypatch):
    monkeypatch.setattr("router.gateway.layers.handover.kv_plans.outermost", None)
    assert isinstance(Fleet(held=True).begin(), KvPull)


async def test_a_body_that_the_pairs_connector_does_not_allow_may_be_pulled():
    """With thinking, a store's prefill would be refused, so the pair is no plan beside which the pull could lose."""
    message = {"model": "m", "messages": [], "max_tokens": 9, "thinking": {"type": "enabled", "budget_tokens": 5}}
    fleet = Fleet(held=True)
    assert isinstance(fleet.begin(message, "/v1/messages"), KvPull)
    assert Fleet().begin(message, "/v1/messages") is None


async def test_a_body_that_needs_one_worker_leaves_the_policys_only_decision():
    fleet = Fleet(held=True)
    assert isinstance(fleet.begin(PLAIN | {"echo": True}), DecisionRecord)
    assert fleet.decided == 1
    assert Fleet().begin(PLAIN | {"echo": True}) is None
