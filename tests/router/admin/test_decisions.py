import pytest

from router.placement.speed import PRIOR_TOKEN_S

BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


async def test_without_decisions_the_list_is_empty(client):
    assert (await client.get("/admin/v1/decisions")).json() == {"decisions": [], "next": None}


async def test_latest_first_with_reason_and_outcome(client, system):
    system.join("http://a:1")
    system.join("http://a:2")
    for number in range(5):
        system.serve(f"r{number}")
        system.clock_s += 1
    decisions = (await client.get("/admin/v1/decisions?limit=3")).json()["decisions"]
    assert [one["request_id"] for one in decisions] == ["r4", "r3", "r2"]
    newest = decisions[0]
    assert newest["outcome"] == "finished"
    assert newest["age_s"] == pytest.approx(1)
    assert newest["at"].endswith("+00:00")
    assert newest["reason"]
    assert {one["worker"] for one in newest["candidates"]} == {"a:1", "a:2"}
    assert (newest["residency"], newest["reported_cached_tokens"], newest["difference"]) == ("approximate", 0, None)


@pytest.mark.parametrize("limit", ["0", "-1", "x", "", "1.5", "10001", "9" * 40, "\u0661"])
async def test_a_limit_out_of_range_is_refused(client, problem, limit):
    assert "from 1 to 10000" in problem(await client.get("/admin/v1/decisions", params={"limit": limit}), 422)[1]


async def test_explain_names_every_candidate_and_the_choice_and_reserves_nothing(client, system):
    system.join("http://a:1")
    system.join("http://a:2")
    for number in range(20):
        system.serve(f"r{number}", 100 + 7 * number)
        system.clock_s += 1
    log = (await client.get("/admin/v1/decisions")).json()["decisions"]
    before = system.dispatcher.statistics()["workers"]
    question = {"path": "/v1/chat/completions", "headers": {"X-Session-ID": "s"}, "body": BODY}
    answer = (await client.post("/admin/v1/explain", json=question)).json()
    assert answer["choice"] in {"a:1", "a:2"}
    assert answer["policy"] == "marginal_cost"
    assert answer["prompt_tokens"] == 100
    assert {one["worker"] for one in answer["candidates"]} == {"a:1", "a:2"}
    for one in answer["candidates"]:
        assert one["cached_tokens"] + one["uncached_tokens"] == 100
        assert 0 < one["first_token_s"] == pytest.approx(one["queue_wait_s"] + one["prefill_s"])
        assert one["terms"]
    assert system.dispatcher.statistics()["workers"] == before
    assert [one["request_id"] for one in (await client.get("/admin/v1/decisions")).json()["decisions"]] == [
        one["request_id"] for one in log
    ]
    path, headers, _ = system.asked[0]
    assert (path, headers) == ("/v1/chat/completions", {"x-session-id": "s"})


async def test_times_follow_from_a_prior_before_a_speed_is_learned(client, system):
    system.join("http://a:1")
    (candidate,) = (await client.post("/admin/v1/explain", json={"body": BODY})).json()["candidates"]
    assert candidate["speed"] == "prior"
    assert candidate["queue_wait_s"] == 0.0
    assert candidate["first_token_s"] == candidate["prefill_s"] == candidate["uncached_tokens"] * PRIOR_TOKEN_S > 0.0
    assert candidate["cost"] is not None


async def test_the_bytes_arrive_as_they_were_written(client, system):
    system.join("http://a:1")
    raw = b'{"body":{"model" : "m",  "messages":[]}}'
    await client.post("/admin/v1/explain", content=raw, headers={"content-type": "application/json"})
    assert system.asked[0][2] == b'{"model" : "m",  "messages":[]}'
    await client.post("/admin/v1/explain", json={"body": '{"model": "\u00e4"}'})
    assert system.asked[1][2] == '{"model": "\u00e4"}'.encode()


async def test_explain_with_no_worker_says_why(client):
    answer = (await client.post("/admin/v1/explain", json={"body": BODY})).json()
    assert answer["choice"] is None
    assert answer["reason"]
    assert answer["candidates"] == []


async def test_explain_answers_with_the_public_ports_error(client, problem):
    assert problem(await client.post("/admin/v1/explain", json={"body": [1]}), 400)[0] == "invalid_json"
    assert "slash" in problem(await client.post("/admin/v1/explain", json={"path": "v1", "body": {}}), 422)[1]


async def test_a_worker_is_found_by_its_id_and_by_its_name(client, system):
    system.join("http://a:1")
    system.fleet.describe("a:1", {}, 1.0, "left", "mixed")
    system.serve("r")
    for worker, number in (("a:1", 1), ("left", 1), ("right", 0)):
        found = (await client.get("/admin/v1/decisions", params={"worker": worker})).json()["decisions"]
        assert len(found) == number
