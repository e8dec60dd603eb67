import httpx
import msgspec
import pytest

from policies.view import FleetView, RequestView, Residency, WorkerId, WorkerView
from router.admin.app import build_admin
from router.config.model import Config
from router.placement.named_policies import named_policies
from tests.router.admin.conftest import FakeSystem

ROUTES = {"routes": [{"name": "eval", "match": {"header": {"x-team": "eval"}}, "shadow": ["lpwl"]}, {"name": "rest"}]}
VIEW = WorkerView(WorkerId("a:1"), Residency.EXACT, 16, 48, 0, 0, 0, 0, 0.5, 1.0, 0.0, learned=True)


@pytest.fixture
def routed():
    config = msgspec.convert(ROUTES, Config)
    system = FakeSystem(config)
    system.core.policies.adopt(*named_policies(config.policy, config.policies, config.routes, lambda *_: None))
    return system


async def ask(system, path):
    transport = httpx.ASGITransport(build_admin(system, guarded=False))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        return await client.get(path)


async def test_routes_are_listed_in_order(routed):
    reply = await ask(routed, "/admin/v1/routes")
    one, other = reply.json()["routes"]
    assert (one["name"], other["name"]) == ("eval", "rest")
    assert (one["match"]["header"], one["shadow"]) == ({"x-team": "eval"}, ["lpwl"])


async def test_an_unknown_route_is_a_problem(routed):
    reply = await ask(routed, "/admin/v1/routes/evil/shadow")
    assert (reply.status_code, reply.json()["code"]) == (404, "not_found")


async def test_a_route_without_shadow_policies_compares_none(routed):
    assert (await ask(routed, "/admin/v1/routes/rest/shadow")).json()["shadows"] == []


async def test_shadows_are_compared_over_a_window(routed):
    shadows = routed.core.policies.shadows_of("eval")
    fleet = FleetView(routed.now_s(), (VIEW,))
    decision = routed.core.policies.default.decide(RequestView("r", "m", 64, 16, ()), fleet)
    for _ in range(4):
        shadows.decide(RequestView("r", "m", 64, 16, ()), fleet, decision)
    document = (await ask(routed, "/admin/v1/routes/eval/shadow?window_s=60")).json()
    (found,) = document["shadows"]
    assert (document["route"], document["policies"], document["window_s"]) == ("eval", ["default"], 60)
    assert (found["name"], found["agreement"], found["totals"]["decisions"]) == ("lpwl", 1.0, 4)
    assert (found["predicted_ttft_s"], found["shadow_ttft_s"]) == (1.5, 1.5)
    assert found["reported_ttft_s"] is None


async def change(system, method, path, body=None):
    transport = httpx.ASGITransport(build_admin(system, guarded=False))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        return await client.request(method, path, json=body)


async def test_policies_and_routes_change_through_the_api(routed):
    assert (await change(routed, "PUT", "/admin/v1/policies/batch", {"rule": "lpwl"})).status_code == 200
    assert (await ask(routed, "/admin/v1/policies")).json()["policies"]["batch"]["rule"] == "lpwl"
    routes = {"routes": [{"name": "long", "match": {"prompt_tokens": ">9"}, "policy": "batch"}, {"name": "rest"}]}
    dry = await change(routed, "PUT", "/admin/v1/routes?dry_run=true", routes)
    assert [one["path"] for one in dry.json()["differences"]] == ["routes"]
    assert [one["name"] for one in (await ask(routed, "/admin/v1/routes")).json()["routes"]] == ["eval", "rest"]
    reply = await change(routed, "PUT", "/admin/v1/routes", routes)
    assert [one["name"] for one in reply.json()["routes"]] == ["long", "rest"]
    assert reply.headers["etag"]
    refused = await change(routed, "DELETE", "/admin/v1/policies/batch")
    assert refused.status_code == 422
    assert "no policy is called batch" in refused.json()["detail"]
    assert (await change(routed, "PUT", "/admin/v1/routes", {"routes": []})).status_code == 200
    assert (await change(routed, "DELETE", "/admin/v1/policies/batch")).status_code == 204
    assert (await change(routed, "DELETE", "/admin/v1/policies/batch")).status_code == 404


@pytest.mark.parametrize(
    "body",
    [{"routes": [{"name": "UPPER"}]}, {"routes": [{"nam": "a"}]}, {"routes": [{"name": "a", "policy": "none"}]}, {}],
)
async def test_wrong_routes_are_refused_as_a_whole(routed, body):
    reply = await change(routed, "PUT", "/admin/v1/routes", body)
    assert reply.status_code == 422
    assert [one["name"] for one in (await ask(routed, "/admin/v1/routes")).json()["routes"]] == ["eval", "rest"]
