import random
from importlib.metadata import EntryPoint
from typing import Literal

import msgspec
import pytest

from policies import registry
from policies.params import Params
from policies.registry import PolicyError, build_policy, describe, policy_names
from policies.spec import PolicySpec
from policies.view import Decision


class Sticky:
    """Always the first worker.

    More words.
    """

    class params_type(Params, frozen=True):  # noqa: N801
        offset: int
        labels: list[str] = msgspec.field(default_factory=list)
        mode: Literal["soft", "hard"] = "soft"

    terms = {"distance": "Network hops to the worker."}  # noqa: RUF012

    def __init__(self, params, rng):
        self.offset = params.offset

    def decide(self, request, fleet):
        return Decision((fleet.workers[self.offset].id,), "sticky")


class Broken:
    def __init__(self, params, rng):
        raise RuntimeError("no")


class Untyped:
    params_type = dict

    def __init__(self, params, rng):
        pass


class Mute:
    def __init__(self, params, rng):
        pass


@pytest.fixture
def _plugins(monkeypatch):
    here = "tests_policies_plugins"
    entries = [
        EntryPoint(name, f"{here}:{name}", registry.GROUP) for name in ("Sticky", "Broken", "Mute", "Untyped", "lpwl")
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: entries if group == registry.GROUP else [])
    classes = {"Sticky": Sticky, "Broken": Broken, "Mute": Mute, "Untyped": Untyped}

    def load(entry):
        if entry.name not in classes:
            raise ImportError(entry.name)
        return classes[entry.name]

    monkeypatch.setattr(EntryPoint, "load", load)


def test_names_and_descriptions():
    names = policy_names()
    assert names[0] == "marginal_cost"
    rules = """round_robin random least_requests least_tokens power_of_two chwbl session_affinity cache_aware smg_spill
        aibrix_prefix preble dualmap dynamo_default dynamo_two_tier llmd_blend llmd_sticky lmetric lpwl"""
    assert set(rules.split()) < set(names)
    for name in names:
        assert describe(name)["summary"]
        assert all(about["meaning"].endswith((".", "...")) for about in describe(name)["params"].values())
    assert describe("cache_aware")["params"]["cache_threshold"] == {
        "type": "a number at least 0 at most 1",
        "default": 0.3,
        "meaning": "Share of the prompt that the best match must exceed to count.",
    }


@pytest.mark.parametrize(
    ("name", "params", "words"),
    [
        ("nearest", {}, ["nearest", "no such policy", "write one of", "marginal_cost"]),
        ("lpwl", {"alpha": 1}, ["lpwl", "alpha", "takes no parameters"]),
        ("cache_aware", {"alpha": 1}, ["alpha", "write one of", "cache_threshold"]),
        ("cache_aware", {"cache_threshold": "0.5"}, ["cache_threshold", "'0.5'", "a number", "such as 0.3"]),
        ("cache_aware", {"cache_threshold": 1.5}, ["cache_threshold", "1.5", "at most 1"]),
        ("cache_aware", {"max_tree_blocks": 2.5}, ["max_tree_blocks", "a whole number"]),
    ],
)
def test_errors_name_the_parameter_and_the_fix(name, params, words):
    with pytest.raises(PolicyError) as caught:
        build_policy(PolicySpec(name, params), random.Random(0))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.usefixtures("_plugins")
def test_third_party_policies():
    assert policy_names()[-4:] == ["Broken", "Mute", "Sticky", "Untyped"]
    assert build_policy(PolicySpec("Sticky", {"offset": 1}), random.Random(0)).offset == 1
    assert describe("Sticky") == {
        "rule": "Sticky",
        "hold": False,
        "lanes": False,
        "summary": "Always the first worker.",
        "terms": {"distance": "Network hops to the worker."},
        "params": {
            "offset": {"type": "a whole number"},
            "labels": {"type": "a list", "default": []},
            "mode": {"type": "'hard' or 'soft'", "default": "soft"},
        },
    }
    for name, params, words in [
        ("Sticky", {}, "'offset': is required; write a whole number"),
        ("Broken", {}, "its constructor raised RuntimeError"),
        ("Mute", {}, "has no decide"),
        ("Untyped", {}, "params_type .* derive it from policies.params.Params"),
    ]:
        with pytest.raises(PolicyError, match=words):
            build_policy(PolicySpec(name, params), random.Random(0))
    assert type(build_policy(PolicySpec("lpwl"), random.Random(0))).__name__ == "Lpwl"  # ours wins over a namesake


@pytest.mark.usefixtures("_plugins")
def test_a_plugin_that_cannot_be_loaded(monkeypatch):
    entries = [EntryPoint("gone", "nowhere:Gone", registry.GROUP)]
    monkeypatch.setattr(registry, "entry_points", lambda group: entries)
    with pytest.raises(PolicyError, match="cannot be loaded"):
        build_policy(PolicySpec("gone"), random.Random(0))
    with pytest.raises(PolicyError, match="cannot be loaded"):
        describe("gone")
