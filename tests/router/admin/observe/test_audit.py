import json
import logging

import httpx
import pytest

from router.admin import audit_log
from router.admin.app import build_admin
from router.admin.audit_log import STRANGERS_KEPT, summary_of
from router.admin.fleet.workers import NewWorker
from router.admin.settings.policy import NewPolicy
from router.discovery.discovery import Discovery
from router.security.token import AdminTokens, TokenSettings
from tests.router.admin.test_roles import LINES, token_of


def connect(app, token=None, client=("10.0.0.9", 4711)):
    transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=client)
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8001", headers=headers)


@pytest.fixture
def guarded(system):
    """The port with tokens of three roles."""
    return build_admin(system, AdminTokens(TokenSettings(None, None, LINES)))


async def entries(client, **query):
    answer = await client.get("/admin/v1/audit", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()["entries"]


async def test_a_change_is_recorded_with_caller_peer_body_and_outcome(guarded, system):
    async with connect(guarded, token_of("alice")) as alice:
        chosen = await alice.put("/admin/v1/policy", json={"rule": "lpwl"})
        assert chosen.status_code == 200
        (entry,) = await entries(alice)
    assert entry.pop("at").endswith("+00:00")
    assert entry.pop("duration_s") >= 0
    assert entry == {
        "number": 1,
        "who": "alice",
        "peer": "10.0.0.9:4711",
        "operation": "set_policy",
        "method": "PUT",
        "target": "/admin/v1/policy",
        "change": {"rule": "lpwl", "params": {}, "hold": None, "lanes": None},
        "differences": [{"path": "policy.rule", "before": "marginal_cost", "after": "lpwl"}],
        "version": chosen.headers["etag"],
        "outcome": "done",
        "status": 200,
        "code": None,
        "detail": None,
    }


async def test_a_refused_change_is_recorded_with_the_reason_and_logged_as_a_warning(guarded, system, caplog):
    async with connect(guarded, token_of("roller"), ("::1", 9)) as roller:
        await roller.put("/admin/v1/policy", json={"rule": "lpwl"})
        await roller.post("/admin/v1/workers/nobody:1/drain?wait_s=1")
        await roller.post("/admin/v1/workers/nobody:1/drain?wait=1")
        listed = await entries(roller)
    assert [(one["operation"], one["outcome"], one["status"], one["code"]) for one in listed] == [
        ("drain_worker", "refused", 400, "unknown_parameter"),
        ("drain_worker", "refused", 404, "not_found"),
        ("set_policy", "refused", 403, "role_not_allowed"),
    ]
    assert {(one["who"], one["peer"]) for one in listed} == {("roller", "[::1]:9")}
    last = [record for record in caplog.records if record.name == "warmroute.audit"][-1]
    assert (last.levelname, last.code, last.status) == ("WARNING", "unknown_parameter", 400)
    assert listed[1]["target"] == "/admin/v1/workers/nobody:1/drain?wait_s=1"
    assert "nobody:1" in listed[1]["detail"]


async def test_a_caller_without_a_token_is_recorded_apart(guarded):
    async with connect(guarded, token_of("alice")) as alice, connect(guarded, "x" * 20) as stranger:
        await alice.put("/admin/v1/policy", json={"rule": "lpwl"})
        for _ in range(STRANGERS_KEPT + 5):
            assert (await stranger.delete("/admin/v1/workers/a:1")).status_code == 401
        listed = await entries(alice, limit=1_000)
    assert len(listed) == STRANGERS_KEPT + 1
    assert {(one["who"], one["operation"], one["code"]) for one in listed[:-1]} == {(None, None, "unauthorized")}
    assert listed[-1]["who"] == "alice"


async def test_registrations_are_recorded_with_their_caller_and_push_out_no_operator(system, monkeypatch):
    monkeypatch.setattr(audit_log, "REGISTRATIONS_KEPT", 5)
    guarded = build_admin(system, AdminTokens(TokenSettings(None, None, LINES)))
    system.discovery = Discovery(system.config, system.control, lambda: None, {})
    async with connect(guarded, token_of("alice")) as alice, connect(guarded, token_of("sidecar")) as sidecar:
        await alice.put("/admin/v1/policy", json={"rule": "lpwl"})
        for port in range(1, 11):
            body = {"url": f"http://10.0.0.5:{port}"}
            assert (await sidecar.put(f"/admin/v1/registrations/10.0.0.5:{port}", json=body)).status_code == 201
        latest, *_ = await entries(alice, limit=1)
        listed = await entries(alice)
    assert (latest["who"], latest["operation"], latest["status"]) == ("sidecar", "register_worker", 201)
    assert (len(listed), listed[-1]["who"], listed[-1]["operation"]) == (6, "alice", "set_policy")


async def test_a_dry_run_and_a_bug_are_recorded_as_such(client, system, monkeypatch):
    assert (await client.put("/admin/v1/policy?dry_run=true", json={"rule": "lpwl"})).status_code == 200
    monkeypatch.setattr(system.control, "make", lambda *_: 1 / 0)
    assert (await client.put("/admin/v1/policy", json={"rule": "random"})).status_code == 500
    bug, dry = await entries(client)
    assert (dry["outcome"], dry["status"], dry["differences"]) == ("dry_run", 200, [])
    assert (bug["outcome"], bug["status"], bug["detail"]) == ("failed", 500, "ZeroDivisionError")


async def test_reads_are_not_recorded(client, system):
    system.join("http://a:1")
    for path in ("/admin/v1/workers", "/admin/v1/policy", "/admin/v1/audit", "/livez"):
        await client.get(path)
    await client.post("/admin/v1/explain", json={"body": {}})
    assert await entries(client) == []


async def test_a_drain_that_waits_in_vain_is_done(client, system):
    worker = system.join("http://a:1")
    system.requests[worker] = 3
    assert (await client.post(f"/admin/v1/workers/{worker}/drain?wait_s=1")).status_code == 409
    (entry,) = await entries(client)
    assert (entry["outcome"], entry["code"]) == ("done", "worker_busy")


async def test_the_ring_is_bounded(system, monkeypatch):
    monkeypatch.setattr(audit_log, "KEPT", 5)
    async with connect(build_admin(system), client=("127.0.0.1", 1)) as client:
        for _ in range(8):
            await client.put("/admin/v1/policy", json={"rule": "lpwl"})
        assert [one["number"] for one in await entries(client)] == [8, 7, 6, 5, 4]


async def test_the_audit_comes_in_pages_that_stay(client, system):
    worker = system.join("http://a:1")
    for action in ("drain", "undrain", "drain"):
        await client.post(f"/admin/v1/workers/{worker}/{action}")
    first = (await client.get("/admin/v1/audit?limit=2")).json()
    await client.post(f"/admin/v1/workers/{worker}/undrain")
    second = (await client.get("/admin/v1/audit", params={"cursor": first["next"]})).json()
    assert [one["number"] for one in first["entries"]] == [3, 2]
    assert ([one["number"] for one in second["entries"]], second["next"]) == ([1], None)


async def test_secrets_are_in_no_entry_and_no_log_line(client, caplog):
    caplog.set_level(logging.INFO, "warmroute")
    body = {"url": "http://a:1", "api_key": "the-secret-key", "labels": {"lane": "prefill"}}
    assert (await client.post("/admin/v1/workers", json=body)).status_code == 201
    (entry,) = await entries(client)
    assert (entry["change"]["api_key"], entry["change"]["labels"]) == ("***", {"lane": "prefill"})
    (record,) = [record for record in caplog.records if record.name == "warmroute.audit"]
    assert "the-secret-key" not in str(vars(record))
    assert json.loads(record.change)["url"] == "http://a:1"
    assert (record.operation, record.outcome, record.levelname) == ("add_worker", "done", "INFO")


async def test_a_long_body_and_a_long_target_are_cut(client):
    await client.put("/admin/v1/policy", json={"rule": "lpwl", "params": {"x": "y" * 10_000}})
    await client.delete(f"/admin/v1/workers/{'w' * 5_000}")
    removed, chosen = await entries(client)
    assert chosen["change"]["omitted_bytes"] > 10_000
    assert len(removed["target"]) == audit_log.MOST_CHARACTERS
    assert len(removed["detail"]) == audit_log.MOST_CHARACTERS


def test_a_summary_has_no_secret_at_any_depth():
    assert summary_of(NewWorker(url="u", api_key="secret"))["api_key"] == "***"
    assert summary_of(NewWorker(url="u"))["api_key"] is None
    assert summary_of(NewPolicy(rule="n", params={"a": [{"api_key": "secret"}]}))["params"] == {
        "a": [{"api_key": "***"}]
    }


async def test_a_child_process_keeps_no_audit(system):
    async with connect(build_admin(system, guarded=False)) as supervisor:
        await supervisor.put("/admin/v1/policy", json={"rule": "lpwl"})
        assert await entries(supervisor) == []
