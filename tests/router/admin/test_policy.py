import pytest

from policies.registry import policy_names
from policies.spec import PolicySpec


async def test_the_policy_in_use_and_those_to_choose_from(client):
    document = (await client.get("/admin/v1/policy")).json()
    assert (document["rule"], document["params"]) == ("marginal_cost", {})
    assert [one["rule"] for one in document["available"]] == policy_names()
    assert all(one["summary"] for one in document["available"])


async def test_a_policys_statistics_are_shown(client, system):
    assert (await client.get("/admin/v1/policy")).json()["statistics"] == {"prefill_lanes": {}}
    await client.put("/admin/v1/policy", json={"rule": "lpwl"})
    assert (await client.get("/admin/v1/policy")).json()["statistics"] == {}


async def test_a_policy_that_cannot_say_how_it_is_shows_nothing(client, system):
    class Mute:
        decide = None

        def statistics(self):
            raise ValueError("no")

    system.dispatcher.set_policy(Mute(), PolicySpec("lpwl"))
    assert (await client.get("/admin/v1/policy")).json()["statistics"] == {}
    assert "statistics raised ValueError" in system.dispatcher.statistics()["last_error"]


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
    ],
)
async def test_a_policy_that_cannot_be_built_changes_nothing(client, system, problem, body, said):
    assert said in problem(await client.put("/admin/v1/policy", json=body), 422)[1]
    assert system.dispatcher.policy_spec.rule == "marginal_cost"


async def test_wrappers_are_chosen_with_the_rule_and_shown_with_their_parameters(client, system):
    usual = (await client.get("/admin/v1/policy")).json()
    assert usual["hold"] == {"prefills": 2.0, "kv_space": 6.0, "max_s": None} and usual["lanes"] == {
        "stream_weight": None
    }
    wanted = {"rule": "lpwl", "hold": {"max_s": 5.0}, "lanes": True}
    changed = (await client.put("/admin/v1/policy", json=wanted)).json()
    assert (changed["rule"], changed["hold"]["max_s"], changed["lanes"]) == ("lpwl", 5.0, {"stream_weight": None})
    assert changed["statistics"] == {"prefill_lanes": {}}
    plain = (await client.put("/admin/v1/policy", json={"rule": "lpwl"})).json()
    assert (plain["hold"], plain["lanes"]) == (False, False)
    off = (await client.put("/admin/v1/policy", json={"rule": "marginal_cost", "hold": False, "lanes": False})).json()
    assert (off["hold"], off["lanes"], off["statistics"]) == (False, False, {})


async def test_the_wrappers_and_their_parameters_are_listed(client):
    document = (await client.get("/admin/v1/policy")).json()
    assert set(document["wrappers"]["hold"]["params"]) == {"prefills", "kv_space", "max_s"}
    assert set(document["wrappers"]["lanes"]["params"]) == {"stream_weight"}
    assert {one["rule"] for one in document["available"] if one["hold"] or one["lanes"]} == {"marginal_cost"}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"rule": "lpwl", "hold": 3}, "$.hold"),
        ({"rule": "lpwl", "hold": {"prefils": 1}}, "policy.hold.prefils: no such parameter; write one of prefills"),
        ({"rule": "lpwl", "hold": {"max_s": 0}}, "policy.hold.max_s: 0 will not do"),
        ({"rule": "lpwl", "lanes": {"stream_weight": -1}}, "write a number at least 0"),
    ],
)
async def test_a_wrapper_that_cannot_be_built_changes_nothing(client, system, problem, body, said):
    assert said in problem(await client.put("/admin/v1/policy", json=body), 422)[1]
    assert system.dispatcher.policy_spec.rule == "marginal_cost"
