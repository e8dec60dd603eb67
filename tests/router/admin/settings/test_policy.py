import pytest

from policies.registry import policy_names
from policies.spec import PolicySpec


async def test_the_policy_in_use_and_those_to_choose_from(client):
    document = (await client.get("/admin/v1/policy")).json()
    assert (document["rule"], document["params"]) == ("marginal_cost", {})
    assert [one["rule"] for one in document["available"]] == policy_names()
    assert all(one["summary"] for one in document["available"])
    assert set(document["wrappers"]["hold"]["params"]) == {"prefills", "kv_space", "max_s"}
    assert set(document["wrappers"]["lanes"]["params"]) == {"stream_weight"}
    assert {one["rule"] for one in document["available"] if one["hold"] or one["lanes"]} == {"marginal_cost"}


async def test_a_policys_statistics_are_shown(client, system):
    assert (await client.get("/admin/v1/policy")).json()["statistics"] == {"prefill_lanes": {}}
    await client.put("/admin/v1/policy", json={"rule": "lpwl", "hold": False, "lanes": False})
    assert (await client.get("/admin/v1/policy")).json()["statistics"] == {}


async def test_a_policy_that_cannot_say_how_it_is_shows_nothing(client, system):
    class Mute:
        decide = None

        def statistics(self):
            raise ValueError("no")

    system.core.policies.default.adopt(Mute(), PolicySpec("lpwl"))
    assert (await client.get("/admin/v1/policy")).json()["statistics"] == {}
    assert "statistics raised ValueError" in system.core.statistics()["last_error"]


async def test_change_takes_effect_on_the_next_request(client, system):
    for port in (1, 2, 3):
        system.join(f"http://a:{port}")
    response = await client.put("/admin/v1/policy", json={"rule": "round_robin", "params": {}})
    assert response.json()["rule"] == "round_robin"
    assert {system.serve(f"r{n}") for n in range(3)} == {"a:1", "a:2", "a:3"}
    latest = (await client.get("/admin/v1/decisions")).json()["decisions"][0]
    assert latest["policy"] == "round_robin"
    assert (await client.get("/admin/v1/policy")).json()["rule"] == "round_robin"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"rule": "lpvl"}, "lpwl"),
        ({"rule": "round_robin", "params": {"zz": 1}}, "'zz'"),
        ({"rule": "round_robin", "params": []}, "$.params"),
        ({"rule": "lpwl", "hold": 3}, "$.hold"),
        ({"rule": "lpwl", "hold": {"prefils": 1}}, "policy.hold.prefils: no such parameter; write one of prefills"),
        ({"rule": "lpwl", "hold": {"max_s": 0}}, "policy.hold.max_s: 0 will not do"),
        ({"rule": "lpwl", "lanes": {"stream_weight": -1}}, "write a number at least 0"),
    ],
)
async def test_a_policy_that_cannot_be_built_changes_nothing(client, system, problem, body, said):
    assert said in problem(await client.put("/admin/v1/policy", json=body), 422)[1]
    assert system.core.policies.default.spec.rule == "marginal_cost"


async def test_wrappers_are_chosen_with_the_rule_and_shown_with_their_parameters(client, system):
    usual = (await client.get("/admin/v1/policy")).json()
    assert usual["hold"] == {"prefills": 2.0, "kv_space": 6.0, "max_s": None} and usual["lanes"] == {
        "stream_weight": None
    }
    wanted = {"rule": "lpwl", "hold": {"max_s": 5.0}, "lanes": True}
    changed = (await client.put("/admin/v1/policy", json=wanted)).json()
    assert (changed["rule"], changed["hold"]["max_s"], changed["lanes"]) == ("lpwl", 5.0, {"stream_weight": None})
    assert changed["statistics"] == {"prefill_lanes": {}}
    kept = (await client.put("/admin/v1/policy", json={"rule": "chwbl"})).json()
    assert (kept["rule"], kept["hold"], kept["lanes"]) == ("chwbl", changed["hold"], changed["lanes"])
    off = (await client.put("/admin/v1/policy", json={"rule": "marginal_cost", "hold": False, "lanes": False})).json()
    assert (off["hold"], off["lanes"], off["statistics"]) == (False, False, {})


def changes(answer):
    return {one["path"]: (one.get("before"), one.get("after")) for one in answer.json()["differences"]}


async def test_the_wrappers_stay_with_another_rule_and_the_dry_run_shows_what_changes(client, system):
    url = "/admin/v1/policy?dry_run=true"
    kept = changes(await client.put(url, json={"rule": "round_robin"}))
    assert kept == {"policy.rule": ("marginal_cost", "round_robin")}
    off = changes(await client.put(url, json={"rule": "round_robin", "hold": False, "lanes": False}))
    assert off["policy.hold"] == ({"prefills": 2.0, "kv_space": 6.0}, False)
    assert off["policy.lanes"] == ({"stream_weight": 0.1}, False)
    await client.put("/admin/v1/policy", json={"rule": "round_robin"})
    now = (await client.get("/admin/v1/policy")).json()
    assert now["hold"] and now["lanes"]
    assert set(changes(await client.put(url, json={"rule": "marginal_cost"}))) == {"policy.rule"}


async def test_what_is_switched_off_stays_off_and_what_was_off_by_default_follows_the_rule(client, system):
    await client.put("/admin/v1/policy", json={"rule": "lpwl", "hold": False, "lanes": True})
    tried = changes(await client.put("/admin/v1/policy?dry_run=true", json={"rule": "marginal_cost"}))
    assert "policy.hold" not in tried
    await client.put("/admin/v1/policies/batch", json={"rule": "lpwl"})
    tried = changes(await client.put("/admin/v1/policies/batch?dry_run=true", json={"rule": "marginal_cost"}))
    assert tried["policies[batch].hold"] == (False, {"prefills": 2.0, "kv_space": 6.0})


async def test_a_parameter_is_compared_with_its_default(client):
    url = "/admin/v1/policy?dry_run=true"
    tried = changes(await client.put(url, json={"rule": "marginal_cost", "params": {"stream_weight": 3.0}}))
    before, after = tried["policy.params.stream_weight"]
    assert 0 < before < after == 3.0
    assert tried["policy.lanes"] == ({"stream_weight": before}, {"stream_weight": 3.0})
    hold = changes(await client.put(url, json={"rule": "marginal_cost", "hold": {"max_s": 5.0}}))
    assert hold == {
        "policy.hold": ({"prefills": 2.0, "kv_space": 6.0}, {"prefills": 2.0, "kv_space": 6.0, "max_s": 5.0})
    }
    same = changes(await client.put(url, json={"rule": "marginal_cost", "hold": True}))
    assert same == {"policy.hold": (None, True)}
