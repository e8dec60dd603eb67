import httpx
import msgspec
import pytest

from router.admin.app import build_admin
from router.config.model import Config, ModelConfig, RateLimitsConfig
from tests.router.admin.conftest import FakeSystem


@pytest.fixture
def system() -> FakeSystem:
    return FakeSystem(msgspec.convert({"models": {"m": {"aliases": ["chat"]}, "org/n": {}}}, Config))


async def test_models_are_listed_in_pages(client):
    first = await client.get("/admin/v1/models?limit=1")
    assert first.json()["models"]["m"]["aliases"] == ["chat"]
    rest = await client.get("/admin/v1/models", params={"limit": 1, "cursor": first.json()["next"]})
    assert (list(rest.json()["models"]), rest.json()["next"]) == (["org/n"], None)
    assert rest.headers["etag"]


async def test_a_name_may_have_slashes(client):
    changed = await client.patch("/admin/v1/models/org/n", json={"fallback": "m"})
    assert (changed.status_code, changed.json()["fallback"]) == (200, "m")
    assert (await client.get("/admin/v1/models")).json()["models"]["org/n"] == changed.json()
    assert (await client.delete("/admin/v1/models/org/n")).status_code == 204
    assert list((await client.get("/admin/v1/models")).json()["models"]) == ["m"]


async def test_a_change_reaches_the_process(client, system):
    await client.patch("/admin/v1/models/n", json={"aliases": ["other"], "default": True})
    assert system.models["n"] == ModelConfig(aliases=("other",), default=True)
    assert system.running.settings.models == system.control.state.settings.models


async def test_a_dry_run_shows_the_change_and_gives_the_tag_to_make_it(client):
    dry = await client.delete("/admin/v1/models/m?dry_run=true")
    assert [one["path"] for one in dry.json()["differences"]] == ["models[m]"]
    for status in (204, 412):
        removed = await client.delete("/admin/v1/models/m", headers={"if-match": dry.headers["etag"]})
        assert removed.status_code == status


async def test_a_change_that_is_not_valid_is_refused_with_its_place(client, problem):
    _, detail = problem(await client.patch("/admin/v1/models/n", json={"aliases": ["chat"]}), 422)
    assert detail == "models.n.aliases[0]: 'chat' is an alias of m and of n; remove it from one of the two"
    _, detail = problem(await client.patch("/admin/v1/models/n", json={"dir": "/nowhere"}), 422)
    assert detail.startswith("models.n.dir: no folder '/nowhere'")
    _, detail = problem(await client.patch("/admin/v1/models/", json={}), 422)
    assert "a model's name is empty" in detail
    assert problem(await client.patch("/admin/v1/models/n", json={"alias": []}), 422)[0] == "invalid_value"


async def test_an_unknown_name_is_a_404(client, problem):
    code, detail = problem(await client.delete("/admin/v1/models/x"), 404)
    assert (code, detail) == ("not_found", "there is no model 'x'; GET /admin/v1/models lists all")


async def test_a_restore_brings_models_back(client, system):
    before = system.control.state.settings.models
    await client.delete("/admin/v1/models/m")
    assert (await client.post("/admin/v1/revisions/1/restore")).status_code == 200
    assert system.running.settings.models == before


KEYED = {
    "auth": {"api_keys": [f"{name} sha256:{number:064x}" for number, name in enumerate(("a", "b"))]},
    "tenants": {"red": {"keys": ["a"]}},
}


@pytest.fixture
async def keyed():
    system = FakeSystem(msgspec.convert(KEYED, Config))
    transport = httpx.ASGITransport(build_admin(system, guarded=False))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        yield system, client


async def test_tenants_and_limits_reach_the_process(keyed):
    system, client = keyed
    made = await client.patch("/admin/v1/tenants/blue", json={"keys": ["b"], "max_queued_requests": 3})
    assert (made.status_code, made.json()["max_queued_requests"]) == (200, 3)
    for path in ("limits/tenants/blue", "limits/keys/b"):
        changed = await client.patch(f"/admin/v1/{path}", json={"requests_per_minute": 60})
        assert changed.json()["requests_per_minute"] == 60
    assert list(system.tenants) == ["red", "blue"]
    assert system.limited.tenants["blue"] == system.limited.keys["b"] == RateLimitsConfig(requests_per_minute=60)
    assert list((await client.get("/admin/v1/limits/tenants")).json()["limits"]) == ["blue"]
    assert (await client.delete("/admin/v1/limits/keys/b")).status_code == 204
    assert system.limited.keys == {}


async def test_a_tenant_with_limits_is_not_removed_before_them(keyed, problem):
    _, client = keyed
    await client.patch("/admin/v1/limits/tenants/red", json={"tokens_per_minute": 9})
    _, detail = problem(await client.delete("/admin/v1/tenants/red"), 422)
    assert detail == "limits.tenants.red: tenants has no tenant named 'red'; write one of default"
    assert (await client.delete("/admin/v1/limits/tenants/red")).status_code == 204
    assert (await client.delete("/admin/v1/tenants/red")).status_code == 204


async def test_limits_and_tenants_that_are_not_valid_name_the_place(keyed, problem):
    _, client = keyed
    _, detail = problem(await client.patch("/admin/v1/limits/keys/a", json={"burst_tokens": 9}), 422)
    assert detail.startswith("limits.keys.a.burst_tokens: limits.keys.a.burst_tokens is set, and no tokens_per_minute")
    _, detail = problem(await client.patch("/admin/v1/limits/keys/z", json={}), 422)
    assert "auth.api_keys has no key named 'z'" in detail
    _, detail = problem(await client.patch("/admin/v1/tenants/blue", json={"keys": ["a"]}), 422)
    assert "key a is in tenants red and blue" in detail
    _, detail = problem(await client.delete("/admin/v1/limits/keys/b"), 404)
    assert detail == "there is no limit of key 'b'; GET /admin/v1/limits/keys lists all"


async def test_all_limits_are_replaced_at_once(keyed):
    _, client = keyed
    await client.patch("/admin/v1/limits/tenants/red", json={"requests_per_minute": 6})
    wanted = {"limits": {"default": {"tokens_per_minute": 9}}}
    dry = await client.put("/admin/v1/limits/tenants?dry_run=true", json=wanted)
    assert [one["path"] for one in dry.json()["differences"]] == ["limits.tenants[red]", "limits.tenants[default]"]
    changed = await client.put("/admin/v1/limits/tenants", json=wanted)
    assert list(changed.json()["limits"]) == ["default"]


async def test_differences_name_limits_by_their_settings(keyed):
    _, client = keyed
    await client.patch("/admin/v1/limits/tenants/default", json={"requests_per_minute": 60})
    dry = await client.patch("/admin/v1/limits/tenants/default?dry_run=true", json={"requests_per_minute": 6})
    (one,) = dry.json()["differences"]
    assert one == {"path": "limits.tenants[default].requests_per_minute", "before": 60, "after": 6}
    state = (await client.get("/admin/v1/desired-state")).json()
    assert state["settings"]["limits"]["tenants"]["default"]["requests_per_minute"] == 60
    assert [one["path"] for one in state["changed_by_api"]] == ["limits.tenants[default]"]


async def test_a_merge_patch_changes_some_fields(client, problem):
    changed = await client.patch("/admin/v1/models/m", json={"slo": {"ttft": 2}, "fallback": "org/n"})
    assert (changed.json()["aliases"], changed.json()["slo"]["ttft"]) == (["chat"], 2.0)
    back = await client.patch("/admin/v1/models/m", json={"aliases": None, "slo": {"tpot": 0.1}})
    assert (back.json()["aliases"], back.json()["slo"]) == ([], {"ttft": 2.0, "tpot": 0.1})
    dry = await client.patch("/admin/v1/models/m?dry_run=true", json={"slo": None})
    assert [one["path"] for one in dry.json()["differences"]] == ["models[m].slo.ttft", "models[m].slo.tpot"]
    assert problem(await client.patch("/admin/v1/models/m", json={"alias": []}), 422)[0] == "invalid_value"
