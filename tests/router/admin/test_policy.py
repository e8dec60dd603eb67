import pytest

from policies.registry import policy_names


async def test_the_policy_in_use_and_those_to_choose_from(client):
    document = (await client.get("/admin/v1/policy")).json()
    assert (document["name"], document["params"]) == ("marginal_cost", {})
    assert [one["name"] for one in document["available"]] == policy_names()
    assert all(one["summary"] for one in document["available"])


async def test_a_policys_statistics_are_shown(client, system):
    assert (await client.get("/admin/v1/policy")).json()["statistics"] == {"prefill_lanes": {}}
    await client.put("/admin/v1/policy", json={"name": "lpwl"})
    assert (await client.get("/admin/v1/policy")).json()["statistics"] == {}


async def test_a_policy_that_cannot_say_how_it_is_shows_nothing(client, system):
    class Mute:
        decide = None

        def statistics(self):
            raise ValueError("no")

    system.dispatcher.set_policy(Mute(), "mute", {})
    assert (await client.get("/admin/v1/policy")).json()["statistics"] == {}
    assert "statistics raised ValueError" in system.dispatcher.statistics()["last_error"]


async def test_change_takes_effect_on_the_next_request(client, system):
    for port in (1, 2, 3):
        system.join(f"http://a:{port}")
    response = await client.put("/admin/v1/policy", json={"name": "round_robin", "params": {}})
    assert response.json()["name"] == "round_robin"
    assert {system.serve(f"r{n}") for n in range(3)} == {"a:1", "a:2", "a:3"}
    latest = (await client.get("/admin/v1/decisions")).json()["decisions"][0]
    assert latest["policy"] == "round_robin"
    assert (await client.get("/admin/v1/policy")).json()["name"] == "round_robin"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"name": "lpvl"}, "lpwl"),
        ({"name": "round_robin", "params": {"zz": 1}}, "'zz'"),
        ({"name": "round_robin", "params": []}, "$.params"),
    ],
)
async def test_a_policy_that_cannot_be_built_changes_nothing(client, system, problem, body, said):
    assert said in problem(await client.put("/admin/v1/policy", json=body), 422)[1]
    assert system.dispatcher.policy_name == "marginal_cost"
