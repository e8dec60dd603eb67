import json
import os
import random
import signal
import threading
from contextlib import contextmanager

import httpx
import pytest

from backends.simulated.settings import shipped_model_dir
from router.security.keys import KeyEntry, digest_of
from tests.support.waiting import block_until

pytestmark = pytest.mark.slow

ABSENT = [f"127.0.0.1:{port}" for port in (1, 2, 3)]
"""Workers that nobody serves, to add and remove."""
RULES = ["lpwl", "random", "round_robin", "marginal_cost"]


@pytest.fixture(autouse=True)
def hang_up():
    """Let gateways obey SIGHUP, also where the tests run under nohup: what is ignored here, they would ignore, too."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@contextmanager
def load(url, model, key="unused"):
    """Keep asking, and give the answers that failed."""
    failed, done = [], threading.Event()
    body = {"model": model, "prompt": "a b c", "max_tokens": 3}

    def ask():
        with httpx.Client(timeout=20, headers={"authorization": f"Bearer {key}"}) as client:
            while not done.wait(0.01):
                answer = client.post(f"{url}/v1/completions", json=body)
                if answer.status_code != 200:
                    failed.append(answer.text)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    yield failed
    done.set()
    for thread in threads:
        thread.join()


def change(admin, rng) -> httpx.Response:
    known = admin.get("/admin/v1/desired-state").json()["settings"]["workers"]
    added = [worker for worker in ABSENT if worker in known]
    missing = [worker for worker in ABSENT if worker not in known]
    kind = rng.choice(["add", "remove", "drain", "undrain", "policy", "restore", "models", "limits", "tenants"])
    if kind == "add" and missing:
        labels = {"rack": str(rng.randrange(3))}
        return admin.post("/admin/v1/workers", json={"url": f"http://{rng.choice(missing)}", "labels": labels})
    if kind == "remove" and added:
        return admin.delete(f"/admin/v1/workers/{rng.choice(added)}")
    if kind in ("drain", "undrain") and added:
        return admin.post(f"/admin/v1/workers/{rng.choice(added)}/{kind}")
    if kind == "restore":
        kept = admin.get("/admin/v1/revisions?limit=5").json()["revisions"]
        return admin.post(f"/admin/v1/revisions/{rng.choice(kept)['number']}/restore")
    if kind == "models":
        models = {name: model(rng) for name in rng.sample(["m", "org/n"], rng.randrange(3))}
        return admin.put("/admin/v1/models", json={"models": models})
    if kind == "limits":
        name, limit = rng.choice(["tenants/default", "keys/a", "keys/b"]), rng.choice([6_000, 9_000])
        return admin.put(f"/admin/v1/limits/{name}", json={"requests_per_minute": limit * 1_000})
    if kind == "tenants":
        return admin.put("/admin/v1/tenants", json={"tenants": {"red": {"keys": rng.sample("ab", 1)}}})
    return admin.put("/admin/v1/policy", json={"rule": rng.choice(RULES)})


def model(rng) -> dict:
    """Return random settings of a model, at times with a tokenizer."""
    folder = str(shipped_model_dir()) if rng.randrange(3) else None
    return {"dir": folder, "slo": {"ttft": rng.choice([1, 2])}, "fallback": rng.choice([None, "z"])}


def running(admin) -> dict:
    """Return the fleet and the policy as the processes report them. Notes name processes that differ."""
    workers = admin.get("/admin/v1/workers").json()["workers"]
    assert not [note for worker in workers for note in worker["notes"] if "process" in note], workers
    return {worker["id"]: worker["labels"] for worker in workers}


def limits_in_force(admin) -> dict:
    accounts = admin.get("/admin/v1/limits").json()["accounts"]
    return {each["account"]: each["requests"]["per_minute"] for each in accounts}


def limits_wanted(settings) -> dict:
    """Return the limit of each account by the settings, with the key `a` and its tenant among them."""
    limits = settings["limits"]
    found = {f"key:{name}": each["requests_per_minute"] for name, each in limits["keys"].items()}
    default = limits["tenants"].get("default", {}).get("requests_per_minute")
    if default:
        found |= {f"tenant:{name}": default for name in settings["tenants"]}
        free = {"a", "b"} - {key for each in settings["tenants"].values() for key in each["keys"]}
        found |= {f"key:{name}": default for name in free if name not in limits["keys"]}
    return found


def test_two_hundred_changes_reach_both_processes_and_the_file(start, tmp_path):
    keys = json.dumps([KeyEntry(name, digest_of(name.encode())).line for name in "ab"])
    flags = ("--processes", "2", "--state-dir", str(tmp_path / "state"), "--set", f"auth.api_keys={keys}")
    system = start(serve_flags=flags)
    system.wait_for(lambda: system.admin.get("/readyz").json().get("processes_ready") == 2, what="both processes")
    rng = random.Random(5371)
    with load(system.url, system.model, "a") as failed:
        for number in range(200):
            answer = change(system.admin, rng)
            assert answer.is_success, answer.text
            wanted = system.admin.get("/admin/v1/desired-state").json()
            assert answer.headers["etag"].strip('"').endswith(f".{wanted['version']}")
            stored = json.loads((tmp_path / "state/state.json").read_text())["state"]
            assert stored["version"] == wanted["version"]
            assert stored["settings"] == wanted["settings"]
            if number % 10 == 0:
                now = running(system.admin)
                assert now == {name: each["labels"] for name, each in wanted["settings"]["workers"].items()}
                rule = system.admin.get("/admin/v1/policy").json()["rule"]
                assert rule == wanted["settings"]["policy"]["rule"]
                assert limits_in_force(system.admin) == limits_wanted(wanted["settings"])
        assert system.metric("warmroute_process_restarts_total") == 0
    assert failed == []


def shadow_and_split(admin):
    """Compare a policy with the one in use, then give it a tenth of the requests."""
    shadowed = {"routes": [{"name": "all", "shadow": ["lpwl"], "shadow_share": 1}]}
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
    with httpx.Client(base_url=site.admin) as admin, load(site.public, "warmroute-simulated") as failed:
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
    assert failed == []

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
    new = site.gateway(*flags)
    new.wait_for("admin port")
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


def test_a_watched_file_changes_the_gateway(site, tmp_path):
    file = tmp_path / "warmroute.yaml"
    file.write_text("policy: {rule: lpwl}\n")
    gateway = site.first("--config", str(file), "--watch")
    file.write_text("policy: {rule: random}\n")
    gateway.wait_for("settings reloaded.*the file has changed")
    assert httpx.get(f"{site.admin}/admin/v1/policy").json()["rule"] == "random"


def test_a_state_that_cannot_be_read_is_kept_and_does_not_stop_the_start(site, tmp_path):
    (tmp_path / "state.json").write_text("{")
    gateway = site.gateway("--state-dir", str(tmp_path))
    gateway.wait_for(r"starts from the settings.*state\.unread-.*not a state that this version can read")
    admin = gateway.wait_for(r"admin port.*(http://[^\s\"]+)")[1]
    (kept,) = tmp_path.glob("state.unread-*.json")
    assert kept.read_text() == "{"
    assert json.loads((tmp_path / "state.json").read_text())["state"]["version"] == 1
    assert "warmroute_state_files_set_aside 1.0" in httpx.get(f"{admin}/metrics").text
