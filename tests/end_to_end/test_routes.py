import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

ROUTES = [
    {
        "name": "eval",
        "match": {"header": {"x-team": "eval"}},
        "policy": "spread",
        "limits": {"max_requests": 2},
        "queue": {"max_requests": 2, "status": 429},
    },
    {"name": "rest", "split": {"default": 1, "spread": 1}, "shadow": ["random"], "shadow_share": 1.0},
]


@pytest.fixture(scope="module")
def routed(start_shared):
    policies = json.dumps({"spread": {"rule": "round_robin"}})
    flags = ("--processes", "2", "--set", f"routes={json.dumps(ROUTES)}", "--set", f"policies={policies}")
    return start_shared(serve_flags=flags)


def ask(system, session=None, team=None, tokens=4):
    headers = {} if session is None else {"x-session-id": session}
    headers |= {} if team is None else {"x-team": team}
    body = {"model": system.model, "messages": [{"role": "user", "content": f"hello {session}"}], "max_tokens": tokens}
    return httpx.post(f"{system.url}/v1/chat/completions", json=body, headers=headers, timeout=30)


def decisions(system, count):
    return system.admin.get(f"/admin/v1/decisions?limit={count}").json()["decisions"]


def test_a_session_stays_on_one_policy_and_shadows_are_compared(routed):
    before = routed.metric("warmroute_route_decisions_total")
    for _ in range(3):
        for session in range(12):
            assert ask(routed, session=f"s{session}").status_code == 200
    by_session: dict[str, set[str]] = {}
    for decision in decisions(routed, 36):
        assert decision["route"] == "rest"
        assert decision["prompt_tokens_exact"] is True
        by_session.setdefault(decision["policy"], set())
    assert set(by_session) == {"marginal_cost", "spread"}
    assert routed.metric("warmroute_route_decisions_total") == before + 36
    (shadow,) = routed.admin.get("/admin/v1/routes/rest/shadow").json()["shadows"]
    assert shadow["totals"]["decisions"] == 36
    assert 0 < shadow["agreement"] < 1
    assert shadow["totals"]["hits"] == 36


def test_explain_names_route_and_policy(routed):
    body = {"model": routed.model, "messages": [{"role": "user", "content": "hello"}]}
    question = {"path": "/v1/chat/completions", "headers": {"x-team": "eval"}, "body": body}
    found = routed.admin.post("/admin/v1/explain", json=question).json()
    assert (found["route"], found["policy"], found["rule"]) == ("eval", "spread", "round_robin")


def test_a_route_keeps_to_its_limit_over_all_processes(routed):
    with ThreadPoolExecutor(12) as pool:
        eval_ones = [pool.submit(ask, routed, team="eval", tokens=3_000) for _ in range(10)]
        other = pool.submit(ask, routed, tokens=4)
        assert other.result().status_code == 200
        statuses = sorted(one.result().status_code for one in eval_ones)
    assert set(statuses) == {200, 429}
    assert 2 <= statuses.count(200) <= 6
    assert routed.metric("warmroute_route_refusals_total") == statuses.count(429)
    routed.wait_idle()
    assert routed.metric("warmroute_route_running_requests") == 0


def test_routes_and_policies_change_while_requests_run(routed):
    with ThreadPoolExecutor(8) as pool:
        long_ones = [pool.submit(ask, routed, session=f"s{number}", tokens=1_500) for number in range(6)]
        assert routed.admin.put("/admin/v1/policies/chat", json={"rule": "lpwl"}).status_code == 200
        refused = routed.admin.put("/admin/v1/routes", json={"routes": [{"name": "all", "policy": "none"}]})
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_value")
        reply = routed.admin.put("/admin/v1/routes", json={"routes": [{"name": "all", "policy": "chat"}]})
        assert reply.status_code == 200
        assert [ask(routed).status_code for _ in range(4)] == [200] * 4
        assert [one.result().status_code for one in long_ones] == [200] * 6
    latest = routed.admin.get("/admin/v1/decisions?limit=4").json()["decisions"]
    assert {(one["route"], one["policy"]) for one in latest} == {("all", "chat")}
    revisions = routed.admin.get("/admin/v1/revisions").json()["revisions"]
    assert routed.admin.post(f"/admin/v1/revisions/{revisions[-1]['number']}/restore").status_code == 200
    assert ask(routed, team="eval").status_code == 200
    (decision,) = routed.admin.get("/admin/v1/decisions?limit=1").json()["decisions"]
    assert (decision["route"], decision["policy"]) == ("eval", "spread")
    assert routed.admin.get("/admin/v1/policies").json()["policies"].keys() == {"spread"}
