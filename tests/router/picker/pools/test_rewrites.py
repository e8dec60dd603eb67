"""Rewrites of models by weight: which rule counts, and what the worker gets."""

import json
from collections import Counter

import pytest

from router.config.model import PickerConfig, PickerRewriteConfig
from router.config.problems import ConfigError
from router.picker.pools.pool_objects import ObjectsOfPool, PoolObjects
from router.picker.pools.rewrites import RewriteRule, Rewrites
from router.picker.settings import picker_config
from router.settings import load_with_places
from tests.support.gateway_stream import (
    BUFFERED,
    NONE,
    body,
    chat,
    echoed,
    model_facts,
    picked,
    picker_rig,
    set_headers,
)
from tests.support.gateway_stream import request_headers as headers

SPLIT = {"models": ["chat"], "targets": {"a": 3, "b": 1}}


def test_a_rule_with_the_name_comes_before_one_for_all_and_the_first_of_each_counts():
    rules = Rewrites(
        [RewriteRule([], {"rest": 1}), RewriteRule(["m"], {"one": 1}), RewriteRule(["m", "n"], {"two": 1})]
    )
    assert [rules.target(model, "key") for model in ("m", "n", "o", None)] == ["one", "two", "rest", "rest"]
    assert len(rules) == 3
    assert Rewrites([RewriteRule(["m"], {"one": 1})]).target(None, "key") is None


def test_draws_follow_the_weights_and_a_key_keeps_its_target():
    rules = Rewrites([RewriteRule(["m"], {"a": 3, "b": 1})])
    drawn = Counter(rules.target("m", f"session {number}") for number in range(2_000))
    assert abs(drawn["b"] - 500) < 3 * (2_000 * 0.25 * 0.75) ** 0.5
    assert len({rules.target("m", "one session") for _ in range(20)}) == 1


def test_requests_without_a_session_take_turns_by_weight():
    rules = Rewrites([RewriteRule(["m"], {"a": 3, "b": 1})])
    drawn = []
    for count in range(1, 401):
        drawn.append(rules.target("m", None))
        assert abs(drawn.count("b") - count / 4) <= 2


def test_rules_of_the_settings_come_before_those_of_a_pool_and_pools_do_not_share_theirs():
    objects = PoolObjects(PickerConfig(rewrites=(PickerRewriteConfig(models=("m",), targets={"set": 1}),)))
    objects.adopt("chat", ObjectsOfPool({}, [RewriteRule(["m", "n"], {"added": 1})]))
    assert [objects.target(model, "k", "chat") for model in ("m", "n")] == ["set", "added"]
    assert objects.target("n", "k", "embed") is None
    assert objects.target("n", "k", None) == "added", "without picker.pools all workers are one pool"
    objects.adopt("chat", ObjectsOfPool())
    assert objects.target("n", "k", "chat") is None


async def bodies_of(rig, count, **fields):
    """Return how many bodies came back with which model. Each answer says the length of its body."""
    found = Counter()
    for number in range(count):
        answer, *rest = await rig.ask(headers(headers=[("x-session-id", f"{number}")]), body(chat(**fields)))
        assert picked(answer)
        sent = echoed(rest)
        assert set_headers(answer)["content-length"] == str(len(sent))
        found[json.loads(sent)["model"]] += 1
    return found


async def test_the_worker_gets_another_model_by_weight():
    async with picker_rig(facts=model_facts("a", "b"), picker={"rewrites": [SPLIT]}) as rig:
        found = await bodies_of(rig, 60, model="chat")
        assert found.keys() == {"a", "b"} and found["a"] > found["b"]
        assert rig.picker.statistics()["rewrites"]["model"] == 60


async def test_a_buffered_body_is_replaced_and_an_alias_of_a_target_is_its_model():
    models = {"a": {"aliases": ["target"]}}
    rule = {"models": ["chat"], "targets": {"target": 1}}
    async with picker_rig(facts=model_facts("a", "b"), picker={"rewrites": [rule]}, models=models) as rig:
        answer = (await rig.ask(headers(mode=BUFFERED), body(chat(model="chat"))))[1]
        assert picked(answer)
        assert json.loads(answer.request_body.response.body_mutation.body)["model"] == "a"


async def test_a_rule_for_all_names_gives_a_model_to_a_request_without_one():
    rule = {"targets": {"b": 1}}
    async with picker_rig(facts=model_facts("a", "b"), picker={"rewrites": [rule]}) as rig:
        answer, *rest = await rig.ask(headers(), body(b'{"messages": []}'))
        assert picked(answer) and json.loads(echoed(rest))["model"] == "b"
        answer, *rest = await rig.ask(headers(path="/not/known"), body(b"\x00\x01"))
        assert picked(answer) and echoed(rest) == b"\x00\x01", "what is no JSON stays as it is"
        assert picked((await rig.ask(headers(mode=NONE)))[0])


def test_a_rule_without_a_target_is_a_mistake():
    with pytest.raises(ConfigError, match="a rewrite has no target"):
        picker_config(load_with_places({"picker.rewrites": '[{"models": ["m"], "targets": {}}]'}, {}, None))
