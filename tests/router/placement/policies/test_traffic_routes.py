from collections import Counter
from importlib.metadata import EntryPoint

import msgspec
import pytest

from policies import registry
from router.config.model import Config, RouteConfig
from router.placement.policies.traffic_routes import DEFAULT, RouteFacts, TrafficRoutes, bounds_of
from router.placement.settings import check

FACTS = RouteFacts("llama", "/v1/chat/completions", {b"x-team": b"eval"}, "alice", "red", 1_000, True, 0)


def routes(*described):
    return TrafficRoutes(msgspec.convert(list(described), tuple[RouteConfig, ...]))


def matches(**match):
    return routes({"name": "one", "match": match}, {"name": "rest"}).match(FACTS).name == "one"


@pytest.mark.parametrize(
    ("match", "other"),
    [
        ({"model": "llama"}, {"model": "qwen"}),
        ({"model": "lla*"}, {"model": "lla"}),
        ({"path": "/v1/chat/completions"}, {"path": "/v1/completions"}),
        ({"path": "/v1/*"}, {"path": "/v2/*"}),
        ({"header": {"X-Team": "eval"}}, {"header": {"x-team": "chat"}}),
        ({"header": {"x-team": "*"}}, {"header": {"x-user": "*"}}),
        ({"header": {"x-team": "ev*"}}, {"header": {"x-team": "ch*"}}),
        ({"api_key": "alice"}, {"api_key": "bob"}),
        ({"tenant": "red"}, {"tenant": "blue"}),
        ({"prompt_tokens": ">999"}, {"prompt_tokens": ">1000"}),
        ({"prompt_tokens": "1000-2000"}, {"prompt_tokens": "1001-2000"}),
        ({"prompt_tokens": "<=1000"}, {"prompt_tokens": "<1000"}),
        ({"stream": True}, {"stream": False}),
        ({"priority": "0"}, {"priority": ">=1"}),
        ({"model": "llama", "stream": True}, {"model": "llama", "stream": False}),
    ],
)
def test_a_condition_selects_by_its_property(match, other):
    assert matches(**match)
    assert not matches(**other)


def test_the_first_match_wins():
    table = routes(
        {"name": "eval", "match": {"header": {"x-team": "eval"}}},
        {"name": "long", "match": {"prompt_tokens": ">10"}},
        {"name": "rest"},
    )
    assert table.match(FACTS).name == "eval"
    assert table.match(msgspec.structs.replace(FACTS, headers={})).name == "long"
    assert table.match(msgspec.structs.replace(FACTS, headers={}, prompt_tokens=3)).name == "rest"


def test_without_routes_one_route_takes_all():
    table = routes()
    assert table.only is not None
    assert (table.only.name, table.only.policy_of("r", None)) == (DEFAULT, DEFAULT)


def test_a_split_follows_its_weights_and_keeps_a_session_on_one_policy():
    (route,) = routes({"name": "ab", "split": {"chat": 90, "batch": 10}}).all
    drawn = Counter(route.policy_of(f"r{number}", f"s{number}") for number in range(10_000))
    assert 850 < drawn["batch"] < 1_150
    for session in range(50):
        assert len({route.policy_of(f"r{request}", f"s{session}") for request in range(20)}) == 1
    assert {route.policy_of(f"r{request}", None) for request in range(200)} == {"chat", "batch"}


def test_two_routes_divide_sessions_differently():
    one, two = routes({"name": "one", "split": {"a": 1, "b": 1}}, {"name": "two", "split": {"a": 1, "b": 1}}).all
    sessions = [f"s{number}" for number in range(1_000)]
    agree = sum(one.policy_of("r", session) == two.policy_of("r", session) for session in sessions)
    assert 400 < agree < 600


@pytest.mark.parametrize("text", ["", "abc", ">", "10-", "9-3", "> 1.5", "1e3", "==4"])
def test_a_wrong_comparison_is_an_error(text):
    with pytest.raises(ValueError, match=r"comparison|no number"):
        bounds_of(text)


def findings(**settings):
    return [(".".join(map(str, place)), problem) for place, problem, _ in check(msgspec.convert(settings, Config))]


@pytest.mark.parametrize(
    ("settings", "place", "problem"),
    [
        ({"policies": {"default": {}}}, "policies.default", "the section policy"),
        ({"policies": {"b": {"rule": "lpwn"}}}, "policies.b.rule", "no such policy"),
        ({"policies": {"b": {"hold": {"x": 1}}}}, "policies.b.hold.x", "no such parameter"),
        ({"routes": [{"name": "a"}, {"name": "a"}]}, "routes.1.name", "both called a"),
        ({"routes": [{"name": "a", "policy": "batch"}]}, "routes.0.policy", "no policy is called batch"),
        ({"routes": [{"name": "a", "split": {"batch": 1}}]}, "routes.0.split.batch", "no policy is called batch"),
        ({"routes": [{"name": "a", "policy": "default", "split": {"default": 1}}]}, "routes.0.split", "both set"),
        ({"routes": [{"name": "a", "shadow": ["lpwn"]}]}, "routes.0.shadow.0", "no policy and no rule"),
        ({"routes": [{"name": "a", "shadow": ["lpwl", "lpwl"]}]}, "routes.0.shadow", "named twice"),
        ({"routes": [{"name": "a"}, {"name": "b"}]}, "routes.0", "no later route is used"),
        ({"routes": [{"name": "a", "match": {"stream": True}}]}, "routes.0.match", "does not match every request"),
        ({"routes": [{"name": "a", "match": {"priority": "x"}}]}, "routes.0.match.priority", "not a comparison"),
        (
            {"routes": [{"name": "a", "match": {"header": {"X Y": "*"}}}, {"name": "b"}]},
            "routes.0.match.header.X Y",
            "h",
        ),
    ],
)
def test_a_mistake_in_routes_is_named_with_its_place(settings, place, problem):
    found = dict(findings(**settings))
    assert problem in found[place]


def test_routes_that_are_valid_have_no_finding():
    settings = {
        "policies": {"batch": {"rule": "lpwl"}},
        "routes": [
            {"name": "long", "match": {"prompt_tokens": ">32000"}, "policy": "batch", "shadow": ["lpwl", "default"]},
            {"name": "rest", "split": {"default": 9, "batch": 1}},
        ],
    }
    assert findings(**settings) == []


def test_a_shadow_rule_that_cannot_be_built_is_named_with_its_place(monkeypatch):
    entries = [EntryPoint("gone", "tests_no_such_module:Gone", registry.GROUP)]
    monkeypatch.setattr(registry, "entry_points", lambda group: entries)
    ((place, problem),) = findings(routes=[{"name": "a", "shadow": ["lpwl", "gone"]}])
    assert place == "routes.0.shadow.1"
    assert "tests_no_such_module:Gone cannot be loaded" in problem
