async def test_served_requests_are_the_load_of_the_plan(client, system):
    system.join("http://a:1")
    system.join("http://a:2")
    for number in range(60):
        system.serve(f"r{number}", 100 + 7 * number)
        system.clock_s += 0.1
    answer = await client.get("/admin/v1/planner")
    assert answer.status_code == 200
    document = answer.json()
    assert (document["requests"], document["connector"]) == (60, None)
    (plan,) = document["plans"]
    assert (plan["models"], plan["needs"]) == (["m"], None)
    assert plan["now"] == {"prefill": 0, "decode": 0, "mixed": 2}
    assert sum(plan["recommended"].values()) == 2
    assert plan["load"]["output_tokens"] == 5
    assert [pool["role"] for pool in plan["pools"]] == ["prefill", "decode", "mixed"]
    assert plan["pools"][2]["price_s"] > 0.0
    assert plan["recommended_delay_s"] <= plan["delay_s"]


async def test_without_traffic_the_plan_says_what_it_needs(client, system):
    assert (await client.get("/admin/v1/planner")).json()["plans"] == []
    system.join("http://a:1")
    (plan,) = (await client.get("/admin/v1/planner")).json()["plans"]
    assert plan["needs"] == "50 prefills at a learned speed; there were 0 of 0"


async def test_without_a_process_that_answers_the_call_is_to_be_repeated(client, system, problem, monkeypatch):
    async def none():
        return None

    monkeypatch.setattr(system, "role_plan", none)
    assert problem(await client.get("/admin/v1/planner"), 503)[0] == "no_process"
