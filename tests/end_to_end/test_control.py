import os
import signal

import httpx
import pytest

from tests.end_to_end.conftest import Clients
from tests.support.waiting import block_until

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def hang_up():
    """Let gateways obey SIGHUP, also where the tests run under nohup: what is ignored here, they would ignore, too."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def shadow_and_split(admin):
    """Compare a policy with the one in use, then give it a tenth of the requests."""
    shadowed = {"routes": [{"name": "all", "shadow": ["lpwl"]}]}
    assert admin.put("/admin/v1/routes", json=shadowed).status_code == 200

    def compared():
        return admin.get("/admin/v1/routes/all/shadow").json()["shadows"][0]

    block_until(lambda: compared()["totals"]["decisions"] >= 20, within_s=20)
    assert compared()["agreement"] == 1.0, "only one worker serves"
    assert admin.put("/admin/v1/policies/batch", json={"rule": "lpwl"}).status_code == 200
    split = {"routes": [{"name": "all", "split": {"default": 90, "batch": 10}}]}
    assert admin.put("/admin/v1/routes", json=split).status_code == 200

    def policies():
        return {one["policy"] for one in admin.get("/admin/v1/decisions?limit=200").json()["decisions"]}

    block_until(lambda: "batch" in policies(), within_s=20)


def test_an_operators_day(site, tmp_path):
    file = tmp_path / "warmroute.yaml"
    settings = "workers:\n  - http://{worker}\npolicy:\n  rule: {rule}\n"
    file.write_text(settings.format(worker=site.worker, rule="lpwl"))

    def begin(*flags):
        return site.first("--config", str(file), "--state-dir", str(tmp_path / "state"), *flags)

    gateway = begin()
    with httpx.Client(base_url=site.admin) as admin, Clients(site, 2) as clients:
        policy = admin.get("/admin/v1/policy")
        tried = admin.put("/admin/v1/policy?dry_run=true", json={"rule": "random"})
        assert [one["path"] for one in tried.json()["differences"]] == ["policy.rule"]
        based_on = {"if-match": policy.headers["etag"]}
        assert admin.put("/admin/v1/policy", json={"rule": "random"}, headers=based_on).status_code == 200
        assert admin.put("/admin/v1/policy", json={"rule": "lpwl"}, headers=based_on).status_code == 412
        assert admin.post("/admin/v1/workers", json={"url": "http://127.0.0.1:1"}).status_code == 201
        assert admin.post("/admin/v1/revisions/1/restore").status_code == 200
        assert admin.get("/admin/v1/policy").json()["rule"] == "lpwl"
        assert admin.post("/admin/v1/revisions/3/restore").status_code == 200
        shadow_and_split(admin)

        file.write_text("workers:\n  - http://127.0.0.1:2\npolicy:\n  ruel: lpwl\n")
        os.kill(gateway.pid, signal.SIGHUP)
        gateway.wait_for(r"not reloaded.*warmroute.yaml:4:3: unknown setting policy.ruel; did you mean policy.rule\?")
        file.write_text(settings.format(worker=site.worker, rule="round_robin"))
        os.kill(gateway.pid, signal.SIGHUP)
        gateway.wait_for("a change of the admin API was replaced.*policy")
        gateway.wait_for("settings reloaded")
        before = admin.get("/admin/v1/desired-state").json()
        assert before["settings"]["policy"]["rule"] == "round_robin"
        assert list(before["settings"]["workers"]) == [site.worker, "127.0.0.1:1"]
    assert clients.failures == []

    os.kill(gateway.pid, signal.SIGTERM)
    assert gateway.wait(20) == 0
    begin()
    after = httpx.get(f"{site.admin}/admin/v1/desired-state").json()
    assert after == before, "the state as it was left"
    history = httpx.get(f"{site.admin}/admin/v1/revisions").json()["revisions"]
    sources = [one["source"] for one in history]
    assert sources == ["reload", "api", "api", "api", "restore", "restore", "api", "api", "start"]


def test_a_handover_passes_the_state_on_and_a_lost_successor_gives_it_back(site, tmp_path):
    flags = ("--state-dir", str(tmp_path / "state"), "--set", "timeouts.takeover_ready_s=2")
    old = site.first(*flags)
    with httpx.Client() as admin:
        admin.post(f"{site.admin}/admin/v1/workers", json={"url": "http://127.0.0.1:1", "labels": {"rack": "7"}})
        admin.put(f"{site.admin}/admin/v1/policy", json={"rule": "random"})
    new = site.serving(*flags)
    with httpx.Client() as admin:
        state = admin.get(f"{site.admin}/admin/v1/desired-state").json()
        assert (state["version"], state["settings"]["policy"]["rule"]) == (3, "random")
        assert state["settings"]["workers"]["127.0.0.1:1"]["labels"] == {"rack": "7"}
        changed = admin.put(f"{site.admin}/admin/v1/policy", json={"rule": "round_robin"})
        assert (changed.status_code, changed.headers["x-warmroute-kept"]) == (200, "state_dir")
    new.kill()
    old.wait_for("serving again")
    with httpx.Client() as admin:
        state = admin.get(f"{site.admin}/admin/v1/desired-state").json()
        assert (state["version"], state["settings"]["policy"]["rule"]) == (4, "round_robin")
        assert admin.put(f"{site.admin}/admin/v1/policy", json={"rule": "lpwl"}).status_code == 200
