"""The planner of a running gateway, on the traffic that it has just served."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest

pytestmark = pytest.mark.slow

ENOUGH = {"candidates": [{"profile": "llama-3.1-8b-a100", "price_per_hour": 1.5}], "ttft_ms": 60_000, "attainment": 0.5}


@pytest.fixture(scope="module", params=["1", "2"])
def served(start_shared, tmp_path_factory, request):
    log = tmp_path_factory.mktemp("log") / "decisions.jsonl"
    flags = ("--processes", request.param, "--set", f"decision_log.path={log}")
    system = start_shared(serve_flags=flags)

    def ask(number):
        body = {"model": system.model, "prompt": f"{number % 5} said " * 200, "max_tokens": 4}
        return httpx.post(f"{system.url}/v1/completions", json=body, timeout=20).status_code

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(ask, range(60))) == {200}
    system.wait_idle()
    return system


def planner(system, *words):
    command = [sys.executable, "-m", "warmroute", "planner", *words, "--url", system.running.admin_url]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_the_traffic_of_all_processes_is_planned_for(served):
    words = ("--candidate", "llama-3.1-8b-a100:price=1.5", "--goodput", "ttft:60000", "--attainment", "0.5")
    assert "no plan was made" in planner(served, "show").stdout
    done = planner(served, "start", *words, "--wait", "-o", "json")
    document = json.loads(done.stdout)
    assert (document["state"], done.returncode) == ("done", 0), document["problem"]
    assert document["plan"]["traffic"]["calls"] == 60
    assert (document["workers"], document["plan"]["fleets"][0]["cost_per_hour"]) == (1, 1.5)
    assert {one["policy"] for one in document["plan"]["fleets"]} == {"marginal_cost", "round_robin"}
    assert document["cpu_s"] > 0 and any(name in document["unknown"][0] for name in served.workers())
    shown = planner(served, "show").stdout
    assert "60 calls in" in shown and "Take 1 workers." in shown and "Not known: the profile of" in shown


def test_one_plan_at_a_time_with_a_low_priority_beside_traffic(served):
    first = served.admin.post("/admin/v1/planner", json=ENOUGH)
    second = served.admin.post("/admin/v1/planner", json=ENOUGH)
    assert (first.status_code, first.json()["state"], second.status_code) == (202, "running", 409)
    assert second.json()["code"] == "planner_running"
    served.wait_for(lambda: any(one.nice() >= 10 for one in psutil.process_iter(["cmdline"]) if plans(one)), 60)
    state = served.wait_for(lambda: finished(served), 240, "the plan")
    assert state["state"] == "done"


def plans(process):
    words = process.info["cmdline"] or ()
    return "plan" in words and "--last-s=3600.0" in words


def finished(system):
    document = system.admin.get("/admin/v1/planner").json()
    return None if document["state"] == "running" else document
