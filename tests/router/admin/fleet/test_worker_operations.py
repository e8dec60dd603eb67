"""Operations on workers: the allow-list, selectors, results for each worker, and what a pause does to traffic."""

import pytest

from backends.vllm.operations import WorkerOperation
from router.config.model import Config
from router.workers.operations import WorkerOutcome

EVERY = ("pause", "resume", "reset-prefix-cache", "load-lora", "unload-lora")
SELECTED = "/admin/v1/worker-operations"


@pytest.fixture
def config():
    return Config(worker_operations=EVERY)


@pytest.fixture
async def fleet(client, system):
    for name, more in {
        "a": {"labels": {"rack": "1"}},
        "b": {"labels": {"rack": "1"}, "role": "decode"},
        "c": {},
    }.items():
        await client.post("/admin/v1/workers", json={"url": f"http://{name}:1", "name": name, **more})
    return system


def path(operation, worker="a:1"):
    return f"/admin/v1/workers/{worker}/{operation}"


async def test_a_paused_worker_gets_no_requests_until_it_is_resumed(client, fleet):
    answer = await client.post(f"{path('pause')}?wait_s=7")
    assert answer.json() == {"worker": "a:1", "outcome": "done", "name": "a", "detail": None}
    assert fleet.operated == [(WorkerOperation(operation="pause", wait_s=7), ["a:1"], ["a:1"])]
    assert fleet.maintained() == ["a:1"]
    await client.post(path("resume"))
    assert fleet.operated[1][2] == ["a:1"], "it is resumed before it gets requests"
    assert fleet.maintained() == []


@pytest.mark.parametrize("maintenance", [False, True])
async def test_a_worker_that_refuses_to_pause_is_as_before(client, fleet, problem, maintenance):
    await client.patch("/admin/v1/workers/a:1", json={"maintenance": maintenance})
    fleet.outcomes["a:1"] = WorkerOutcome("a:1", "refused", "not offered")
    assert problem(await client.post(path("pause")), 409) == ("worker_refused", "a:1: not offered")
    assert fleet.maintained() == (["a:1"] if maintenance else [])


async def test_a_worker_that_did_not_answer_may_be_paused_and_gets_no_requests(client, fleet, problem):
    fleet.outcomes["a:1"] = WorkerOutcome("a:1", "unknown", "no answer")
    assert problem(await client.post(path("pause")), 502)[0] == "worker_silent"
    assert fleet.maintained() == ["a:1"]


async def test_a_worker_that_refuses_to_resume_stays_in_maintenance(client, fleet, problem):
    await client.post(path("pause"))
    fleet.outcomes["a:1"] = WorkerOutcome("a:1", "refused", "busy")
    problem(await client.post(path("resume")), 409)
    assert fleet.maintained() == ["a:1"]


async def test_adapters_and_resets_are_passed_on(client, fleet):
    await client.post(path("reset-prefix-cache"))
    await client.post(path("load-lora"), json={"name": "x", "path": "/x"})
    await client.post(path("unload-lora"), json={"name": "x"})
    assert [wanted for wanted, *_ in fleet.operated] == [
        WorkerOperation(operation="reset-prefix-cache"),
        WorkerOperation(operation="load-lora", lora_name="x", lora_path="/x"),
        WorkerOperation(operation="unload-lora", lora_name="x"),
    ]
    assert fleet.maintained() == []


@pytest.mark.parametrize(
    ("selector", "workers"),
    [
        ({"all": True}, ["a:1", "b:1", "c:1"]),
        ({"labels": {"rack": "1"}}, ["a:1", "b:1"]),
        ({"role": "decode"}, ["b:1"]),
        ({"model": "m"}, ["b:1", "c:1"]),
        ({"model": "m", "labels": {"rack": "1"}}, ["b:1"]),
    ],
)
async def test_one_call_reaches_all_that_are_selected(client, fleet, selector, workers):
    fleet.models_of["m"] = ["b:1", "c:1"]
    answer = await client.post(SELECTED, json={"operation": "reset-prefix-cache", **selector})
    assert answer.status_code == 200
    assert [each["worker"] for each in answer.json()["results"]] == workers == fleet.operated[0][1]


async def test_a_partial_failure_is_reported_per_worker(client, fleet):
    fleet.outcomes["b:1"] = WorkerOutcome("b:1", "refused", "not offered")
    answer = await client.post(SELECTED, json={"operation": "pause", "all": True})
    assert answer.status_code == 207
    assert {each["name"]: (each["outcome"], each["detail"]) for each in answer.json()["results"]} == {
        "a": ("done", None),
        "b": ("refused", "not offered"),
        "c": ("done", None),
    }
    assert fleet.maintained() == ["a:1", "c:1"]


async def test_a_dry_run_asks_no_worker(client, fleet):
    body = {"operation": "pause", "all": True}
    answer = await client.post(f"{SELECTED}?dry_run=true", json=body)
    assert [each["outcome"] for each in answer.json()["results"]] == ["dry_run"] * 3
    assert (await client.post(f"{path('pause')}?dry_run=true")).json()["outcome"] == "dry_run"
    assert (fleet.operated, fleet.maintained()) == ([], [])


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"operation": "pause"}, 422, "name the workers"),
        ({"operation": "pause", "all": True, "role": "decode"}, 422, "name the workers"),
        ({"operation": "pause", "role": "none"}, 404, "no worker that the selector names"),
        ({"operation": "load-lora", "all": True, "lora_name": "x"}, 422, "load-lora needs lora_path"),
        ({"operation": "unload-lora", "all": True}, 422, "unload-lora needs lora_name"),
        ({"operation": "sleep", "all": True}, 422, "$.operation"),
        ({"operation": "pause", "all": True, "wait_s": 0}, 422, "$.wait_s"),
    ],
)
async def test_a_call_that_makes_no_sense_is_refused(client, fleet, problem, body, status, said):
    assert said in problem(await client.post(SELECTED, json=body), status)[1]
    assert not fleet.operated


async def test_a_worker_that_is_not_there_is_not_found(client, fleet, problem):
    assert problem(await client.post(path("pause", "d:1")), 404)[0] == "not_found"


async def test_operations_are_audited(client, fleet):
    await client.post(path("load-lora"), json={"name": "x", "path": "/x"})
    (entry,) = (await client.get("/admin/v1/audit?limit=1")).json()["entries"]
    assert (entry["operation"], entry["change"]["name"], entry["outcome"]) == ("load_lora", "x", "done")


class TestDefaultSetting:
    @pytest.fixture
    def config(self):
        return Config()

    @pytest.mark.parametrize("operation", ["pause", "resume", "load-lora", "unload-lora"])
    async def test_an_operation_that_is_not_listed_is_forbidden(self, client, fleet, problem, operation):
        body = {"load-lora": {"name": "x", "path": "/x"}, "unload-lora": {"name": "x"}}.get(operation)
        code, detail = problem(await client.post(path(operation), json=body), 403)
        assert code == "operation_not_allowed"
        assert f"{operation} is not in the setting worker_operations (it has reset-prefix-cache)" in detail
        chosen = {"operation": operation, "all": True}
        assert problem(await client.post(SELECTED, json=chosen), 403)[0] == "operation_not_allowed"
        assert not fleet.operated

    async def test_a_cache_reset_is_allowed(self, client, fleet):
        assert (await client.post(path("reset-prefix-cache"))).status_code == 200
