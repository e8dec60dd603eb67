"""Objectives and rewrites of a pool, as Kubernetes has them."""

import asyncio

import pytest

from backends.discovery.kubernetes import reflector
from router.config.model import KubernetesSourceConfig
from router.picker.pools.kubernetes import GROUPS, OBJECTIVES, REWRITES, follow_objects, objects_of
from tests.backends.discovery.kubernetes.api_server import ApiServerStub
from tests.support.gateway_stream import picker_rig
from tests.support.waiting import eventually


def objective(name, priority=None, pool="llama"):
    spec = {"poolRef": {"name": pool}, **({} if priority is None else {"priority": priority})}
    return {"metadata": {"name": name}, "spec": spec}


def rewrite(name, *rules, pool="llama", created="2026-01-02T00:00:00Z"):
    return {
        "metadata": {"name": name, "creationTimestamp": created},
        "spec": {"poolRef": {"name": pool}, "rules": list(rules)},
    }


def rule(*models, **weights):
    return {
        "matches": [{"model": {"type": "Exact", "value": model}} for model in models],
        "targets": [{"modelRewrite": name, "weight": weight} for name, weight in weights.items()],
    }


def test_objectives_of_other_pools_and_without_a_priority_do_not_count():
    found = objects_of("llama", [objective("a", -1), objective("b"), objective("c", 9, pool="other")], [])
    assert found.priorities == {"a": -1, "b": 0}


def test_of_two_objectives_with_one_name_the_first_group_counts():
    assert objects_of("llama", [objective("a", 1), objective("a", 2)], []).priorities == {"a": 1}


def test_older_rewrites_come_first_and_rules_in_their_order():
    young = rewrite("a", rule("m", x=1), created="2026-03-01T00:00:00Z")
    old = rewrite("b", rule("m", "n", y=1), rule(z=1))
    found = objects_of("llama", [], [young, old, rewrite("c", rule("m", w=1), pool="other")])
    assert [(one.models, one.targets.names) for one in found.rules] == [
        (("m", "n"), ("y",)),
        ((), ("z",)),
        (("m",), ("x",)),
    ]


def test_targets_without_weights_are_equal():
    plain = {"targets": [{"modelRewrite": "x"}, {"modelRewrite": "y"}]}
    (found,) = objects_of("llama", [], [rewrite("a", plain)]).rules
    drawn = [found.targets.draw(str(number)) for number in range(400)]
    assert abs(drawn.count("x") - 200) < 60


@pytest.mark.parametrize(
    "spoilt",
    [
        {"matches": [{"model": {}}], "targets": [{"modelRewrite": "x"}]},
        {"matches": [], "targets": []},
        {"targets": [{"modelRewrite": "x", "weight": 0}]},
        {"targets": "x"},
    ],
)
def test_a_rule_that_cannot_be_used_is_left_out_and_named(spoilt, caplog):
    assert objects_of("llama", [], [rewrite("odd", spoilt, rule("m", x=1))]).rules[0].models == ("m",)
    (record,) = caplog.records
    assert record.object == "odd"


@pytest.fixture
async def api(monkeypatch):
    monkeypatch.setattr(reflector, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(reflector, "LONGEST_PAUSE_S", 0.1)
    stub = ApiServerStub()
    await stub.start()
    yield stub
    await stub.stop()


async def test_changes_are_followed_and_a_kind_may_be_missing(api, caplog):
    caplog.set_level("INFO")
    adopted = []
    source = KubernetesSourceConfig(pool="llama", namespace="default", api_url=api.url)
    task = asyncio.ensure_future(follow_objects(source, lambda pool, found: adopted.append((pool, found))))
    try:
        await eventually(lambda: len({call["path"] for call in api.calls}) == 2 * len(GROUPS))
        await eventually(lambda: caplog.text.count("not read") == 2 * len(GROUPS))  # the cluster has neither kind
        api.put(OBJECTIVES, objective("batch", -1))
        await eventually(lambda: adopted and adopted[-1][1].priorities == {"batch": -1})
        api.put(REWRITES, rewrite("canary", rule("m", x=1)))
        await eventually(lambda: adopted[-1][1].rules and adopted[-1][0] == "llama")
        api.delete(OBJECTIVES, "batch")
        await eventually(lambda: not adopted[-1][1].priorities)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_picker_follows_the_objects_of_the_pool_that_is_its_source(api):
    api.objects |= {"pods": {}, "inferencepools": {}}
    api.put(OBJECTIVES, objective("batch", -7))
    wanted = {"pool": "llama", "namespace": "default", "api_url": api.url}
    async with picker_rig(discovery={"sources": {"pool": {"kubernetes": wanted}}}) as rig:
        await eventually(lambda: rig.picker._parts.objects.priority("batch", None) == -7)
    assert all(task.done() for task in rig.picker._following)
