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


@pytest.fixture
def operate(client):
    def post(operation, *workers, **more):
        return client.post(SELECTED, json={"operation": operation, "workers": workers or ["a:1"], **more})

    return post


async def test_a_paused_worker_gets_no_requests_until_it_is_resumed(operate, fleet):
    answer = await operate("pause", wait_s=7)
    (result,) = answer.json()["results"]
    assert (answer.status_code, result) == (200, {"worker": "a:1", "outcome": "done", "name": "a", "detail": None})
    assert fleet.operated == [(WorkerOperation(operation="pause", wait_s=7), ["a:1"], ["a:1"])]
    assert fleet.maintained() == ["a:1"]
    await operate("resume")
    assert fleet.operated[1][2] == ["a:1"], "it is resumed before it gets requests"
    assert fleet.maintained() == []


@pytest.mark.parametrize("maintenance", [False, True])
async def test_a_worker_that_refuses_to_pause_is_as_before(client, operate, fleet, maintenance):
    await client.patch("/admin/v1/workers/a:1", json={"maintenance": maintenance})
    fleet.outcomes["a:1"] = WorkerOutcome("a:1", "refused", "not offered")
    answer = await operate("pause")
    assert (answer.status_code, answer.json()["results"][0]["detail"]) == (207, "not offered")
    assert fleet.maintained() == (["a:1"] if maintenance else [])


async def test_a_worker_that_did_not_answer_may_be_paused_and_gets_no_requests(operate, fleet):
    fleet.outcomes["a:1"] = WorkerOutcome("a:1", "unknown", "no answer")
    assert (await operate("pause")).json()["results"][0]["outcome"] == "unknown"
    assert fleet.maintained() == ["a:1"]


async def test_a_worker_that_refuses_to_resume_stays_in_maintenance(operate, fleet):
    await operate("pause")
    fleet.outcomes["a:1"] = WorkerOutcome("a:1", "refused", "busy")
    assert (await operate("resume")).status_code == 207
    assert fleet.maintained() == ["a:1"]


async def test_adapters_and_resets_are_passed_on(operate, fleet):
    await operate("reset-prefix-cache")
    await operate("load-lora", lora_name="x", lora_path="/x")
    await operate("unload-lora", lora_name="x")
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
        ({"workers": ["c:1", "a:1", "c:1"]}, ["c:1", "a:1"]),
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
    assert (fleet.operated, fleet.maintained()) == ([], [])


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"operation": "pause"}, 422, "name the workers"),
        ({"operation": "pause", "all": True, "role": "decode"}, 422, "name the workers"),
        ({"operation": "pause", "all": True, "workers": ["a:1"]}, 422, "name the workers"),
        ({"operation": "pause", "workers": ["a:1", "d:1"]}, 404, "there is no worker 'd:1'"),
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


async def test_operations_are_audited(client, operate, fleet):
    await operate("load-lora", lora_name="x", lora_path="/x")
    (entry,) = (await client.get("/admin/v1/audit?limit=1")).json()["entries"]
    assert (entry["operation"], entry["change"]["lora_name"], entry["outcome"]) == ("operate_workers", "x", "done")


class TestDefaultSetting:
    @pytest.fixture
    def config(self):
        return Config()

    @pytest.mark.parametrize("operation", ["pause", "resume", "load-lora", "unload-lora"])
    async def test_an_operation_that_is_not_listed_is_forbidden(self, operate, fleet, problem, operation):
        code, detail = problem(await operate(operation, lora_name="x", lora_path="/x"), 403)
        assert code == "operation_not_allowed"
        assert f"{operation} is not in the setting worker_operations (it has reset-prefix-cache)" in detail
        assert not fleet.operated

    async def test_a_cache_reset_is_allowed(self, operate, fleet):
        assert (await operate("reset-prefix-cache")).status_code == 200
