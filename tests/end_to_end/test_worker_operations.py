import httpx
import pytest

pytestmark = pytest.mark.slow

ALLOWED = '["pause", "resume", "reset-prefix-cache", "load-lora", "unload-lora"]'


@pytest.fixture(scope="module")
def system(start_shared):
    flags = ("--time-scale", "0.02", "--dev-mode", "--runtime-lora", "--no-kv-events")
    return start_shared(worker_flags=flags, serve_flags=("--processes", "2", "--set", f"worker_operations={ALLOWED}"))


def complete(system, prompt="a b c " * 60, model=None):
    """Ask once on a connection of its own, so that both processes get requests."""
    body = {"model": model or system.model, "prompt": prompt, "max_tokens": 1}
    return httpx.post(f"{system.url}/v1/completions", json=body, timeout=20)


def operate(system, **body):
    return system.admin.post("/admin/v1/worker-operations", json=body)


def test_both_processes_keep_requests_from_a_paused_worker(system):
    paused, other = list(system.workers())
    assert operate(system, operation="pause", workers=[paused]).status_code == 200
    assert httpx.get(f"http://{paused}/is_paused").json() == {"is_paused": True}
    answers = [complete(system) for _ in range(24)]
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.headers["x-warmroute-worker"] for answer in answers} == {other}
    assert operate(system, operation="resume", workers=[paused]).status_code == 200
    system.wait_for(lambda: {worker["state"] for worker in system.workers().values()} == {"ready"})
    assert httpx.get(f"http://{paused}/is_paused").json() == {"is_paused": False}


def test_both_processes_forget_what_a_reset_removed(system):
    for _ in range(24):
        complete(system)
    system.wait_idle()
    blocks = [worker["candidates"][0]["blocks"] for worker in system.workers().values()]
    assert max(blocks) > 0
    answer = operate(system, operation="reset-prefix-cache", all=True)
    assert (answer.status_code, [each["outcome"] for each in answer.json()["results"]]) == (200, ["done", "done"])
    assert [worker["candidates"][0]["blocks"] for worker in system.workers().values()] == [0, 0]


def test_both_processes_find_a_loaded_adapter(system, tmp_path):
    assert complete(system, model="support").status_code == 404
    answer = operate(system, operation="load-lora", model=system.model, lora_name="support", lora_path=str(tmp_path))
    assert answer.status_code == 200
    served = lambda worker: {model["id"] for model in worker["models"]}  # noqa: E731
    system.wait_for(lambda: all("support" in served(worker) for worker in system.workers().values()))
    system.wait_for(lambda: {complete(system, model="support").status_code for _ in range(12)} == {200})
    first = next(iter(system.workers()))
    unload = {"operation": "unload-lora", "workers": [first], "lora_name": "support"}
    assert [operate(system, **unload).status_code for _ in range(2)] == [200, 207]
