import httpx
import msgspec
import pytest

from router.admin.app import build_admin
from router.config.model import HandoverConfig
from router.placement.decision_log.decisions import HandoverLeg, Seam
from router.placement.learning.speed import PRIOR_TOKEN_S
from tests.router.admin.conftest import FakeSystem

BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


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


async def test_a_page_lists_all_candidates_of_its_first_decisions(client, system, monkeypatch):
    monkeypatch.setattr("router.admin.observe.decisions.LISTED_AT_MOST", 3)
    for worker in ("a", "b"):
        system.join(f"http://{worker}:1")
    for number in range(4):
        system.serve(f"r{number}")

    async def listed(query=""):
        page = (await client.get(f"/admin/v1/decisions?limit=3{query}")).json()
        return [len(one["candidates"]) for one in page["decisions"]], page["next"]

    counts, cursor = await listed()
    assert counts == [2, 2, 1]
    assert (await listed(f"&cursor={cursor}"))[0] == [2]


async def test_a_part_of_a_handover_names_the_other_worker(client, system):
    system.join("http://a:1")
    system.serve("r1")
    system.core.log.latest(1)[0].leg = HandoverLeg("decode", 7, "a:2")
    (decision,) = (await client.get("/admin/v1/decisions")).json()["decisions"]
    assert decision["handover"] == {"leg": "decode", "plan": 7, "with_worker": "a:2"}


async def test_an_answer_that_went_on_names_both_workers(client, system):
    system.join("http://a:1")
    system.serve("r1")
    record = system.core.log.latest(1)[0]
    record.migration = "tracked"
    record.add_seam(Seam("cut", "b:2", 7, "a:1", "resumed"))
    (decision,) = (await client.get("/admin/v1/decisions")).json()["decisions"]
    assert decision["migration"] == "tracked"
    assert decision["seams"] == [
        {"trigger": "cut", "from_worker": "b:2", "to_worker": "a:1", "kept_tokens": 7, "outcome": "resumed"}
    ]


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
    before = system.core.statistics()["workers"]
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
    assert system.core.statistics()["workers"] == before
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


async def test_explain_with_no_worker_says_why_and_nothing_of_pairs_without_a_connector(client):
    answer = (await client.post("/admin/v1/explain", json={"body": BODY})).json()
    assert (answer["choice"], answer["candidates"], answer["handover"]) == (None, [], None)
    assert answer["reason"]


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


@pytest.fixture
def connected(config):
    return FakeSystem(msgspec.structs.replace(config, handover=HandoverConfig(connector="nixl_pull", latency_s=0.0)))


async def handover_of(system, body=BODY, path="/v1/chat/completions"):
    transport = httpx.ASGITransport(build_admin(system))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8001") as client:
        answer = await client.post("/admin/v1/explain", json={"path": path, "body": body})
    assert answer.status_code == 200, answer.text
    return answer.json()["handover"]


def join(system, **roles):
    for name, role in roles.items():
        system.join(f"http://{name}:1")
        system.fleet.describe(f"{name}:1", {}, 1.0, None, role)


async def test_explain_shows_the_best_pairs_and_single_workers_by_term(connected):
    join(connected, a="prefill", b="decode", c="mixed")
    before = connected.core.statistics()["workers"]
    idle = await handover_of(connected)
    assert (idle["pays"], idle["reason"]) == (False, "one worker costs no more than the best pair")
    for number in range(6):
        ticket = connected.core.dispatcher.dispatch(connected.request(f"stream-{number}"), connected.clock_s)
        connected.core.tickets.first_token(ticket, connected.clock_s)
    busy = await handover_of(connected)
    assert (busy["pays"], busy["reason"]) == (True, "a pair costs less than one worker")
    (pair,) = busy["pairs"]
    assert (pair["prefill"], pair["decode"]) == ("a:1", "b:1")
    assert {one["worker"] for one in busy["alone"]} == {"b:1", "c:1"}
    for one in (pair, *busy["alone"]):
        assert sum(one["terms"].values()) == pytest.approx(one["cost_s"])
        assert set(one["terms"]) <= set(busy["terms"])
    assert before["a:1"] == connected.core.statistics()["workers"]["a:1"]


async def test_explain_says_why_a_request_has_no_pair(connected, monkeypatch):
    join(connected, b="decode")
    assert "prefill" in (await handover_of(connected))["reason"]
    join(connected, a="prefill")
    assert (await handover_of(connected, {**BODY, "n": 2}))["reason"].startswith(
        "two workers cannot share this request"
    )
    request = connected.request("r")
    monkeypatch.setattr(connected, "request", lambda _: msgspec.structs.replace(request, answers=2))
    assert (await handover_of(connected))["reason"] == "two workers cannot share this request"


@pytest.mark.parametrize(("connector", "reason"), [("nixl_pull", "no prefill worker"), ("nixl_push", "two workers")])
async def test_explain_knows_which_apis_a_connector_serves(config, connector, reason):
    system = FakeSystem(msgspec.structs.replace(config, handover=HandoverConfig(connector=connector)))
    join(system, b="decode")
    request = msgspec.structs.replace(system.request("r"), path="/v1/responses")
    system.request = lambda _: request
    found = await handover_of(system, {"model": "m", "input": "hello"}, "/v1/responses")
    assert found["reason"].startswith(reason)
