import asyncio
import os
import time

import msgspec
import psutil
import pytest

from router.admin.planner import run
from router.config.model import DecisionLogConfig
from tests.router.placement.test_decision_log import recorded

CANDIDATES = [{"profile": "llama-3.1-8b-a100"}]
QUESTION = {"candidates": CANDIDATES, "ttft_ms": 500, "attainment": 0.5, "policies": ["lpwl"]}


@pytest.fixture
def log(system, tmp_path):
    path = tmp_path / "decisions.jsonl"
    path.write_bytes(b"".join(recorded("round_robin")[0].lines))
    system.config = msgspec.structs.replace(system.config, decision_log=DecisionLogConfig(path=str(path), share=0.5))
    return path


async def ended(client):
    while (document := (await client.get("/admin/v1/planner")).json())["state"] == "running":  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    return document


async def test_without_a_log_the_setting_is_named(client, problem):
    for answer in (await client.get("/admin/v1/planner"), await client.post("/admin/v1/planner", json=QUESTION)):
        code, detail = problem(answer, 409)
        assert code == "no_decision_log" and "set decision_log.path" in detail


async def test_a_log_without_traffic_in_the_last_hour_is_no_log(client, problem, log):
    os.utime(log, (time.time() - 4_000,) * 2)
    assert "nothing was written" in problem(await client.post("/admin/v1/planner", json=QUESTION), 409)[1]


@pytest.mark.slow
async def test_a_plan_is_made_beside_the_loop_and_kept_with_its_age(client, system, problem, log):
    system.join("http://gpu:1")
    assert (await client.get("/admin/v1/planner")).json()["state"] == "none"
    begun = await client.post("/admin/v1/planner", json=QUESTION)
    assert (begun.status_code, begun.json()["state"], begun.json()["plan"]) == (202, "running", None)
    again = await client.post("/admin/v1/planner", json=QUESTION)
    assert problem(again, 409)[0] == "planner_running" and again.headers["retry-after"] == "10"
    document = await ended(client)
    assert document["state"] == "done", document["problem"]
    assert document["plan"]["traffic"]["calls"] == 48 and document["workers"] >= 1
    assert document["cpu_s"] > 0 and document["age_s"] >= 0
    assert "the profile of gpu:1" in document["unknown"][0] and "decision_log.share is 0.5" in document["unknown"][1]


@pytest.mark.parametrize(
    ("question", "says"),
    [
        (QUESTION | {"ttft_ms": None}, "give ttft_ms, tpot_ms or e2el_ms"),
        (QUESTION | {"candidates": [{"profile": "b300"}]}, "no profile 'b300'"),
        (QUESTION | {"candidates": []}, "$.candidates"),
        (QUESTION | {"cpu_s": 5}, "$.cpu_s"),
        (QUESTION | {"speed": 5}, "unknown field `speed`"),
    ],
)
async def test_a_wrong_question_is_refused(client, problem, log, question, says):
    code, detail = problem(await client.post("/admin/v1/planner", json=question), 422)
    assert code == "invalid_value" and says in detail


async def test_what_the_simulator_refuses_is_the_problem(client, log):
    await client.post("/admin/v1/planner", json=QUESTION | {"policies": ["fastest"]})
    document = await ended(client)
    assert (document["state"], document["plan"]) == ("failed", None)
    assert "fastest" in document["problem"] and "300 s of CPU time" in document["problem"]


async def test_a_run_ends_with_its_limit_and_with_the_gateway(monkeypatch):
    monkeypatch.setattr(run, "WALL_FACTOR", 0.1)
    question = msgspec.convert(QUESTION | {"cpu_s": 10}, run.PlanQuestion)
    planner = run.PlannerRuns()
    slow = ["--trace", "generator:no_reuse:rate_per_s=500", "--goodput", "ttft:5", "--candidate", "llama-3.1-8b-a100"]
    late = planner.start(question, slow, ())
    await planner._task
    assert "used up its time" in late.problem
    monkeypatch.setattr(run, "WALL_FACTOR", 4)
    before = set(psutil.Process().children())
    planner.start(question, slow, ())
    while not (children := set(psutil.Process().children()) - before):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    planner._task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await planner._task
    assert planner.latest.ended_s is not None
    assert psutil.wait_procs(children, timeout=5)[1] == []
