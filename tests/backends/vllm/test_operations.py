"""Operations against the embedded worker, which speaks vLLM's paths, and against a server that answers otherwise."""

from contextlib import AsyncExitStack

import httpx
import pytest

from backends.simulated.serving import serving
from backends.simulated.settings import WorkerSettings
from backends.vllm.control import ProbeError, RefusedError, WorkerClient
from backends.vllm.operations import MAX_REASON_CHARACTERS, WorkerOperation, operate
from backends.worker import parse_endpoint
from tests.router.workers.conftest import answering

PAUSE, RESUME = WorkerOperation(operation="pause", wait_s=5), WorkerOperation(operation="resume")
RESET = WorkerOperation(operation="reset-prefix-cache")


def load(name="x", path="/none"):
    return WorkerOperation(operation="load-lora", lora_name=name, lora_path=path)


def unload(name="x"):
    return WorkerOperation(operation="unload-lora", lora_name=name)


@pytest.fixture
async def client():
    async with WorkerClient() as client:
        yield client


@pytest.fixture
async def running_worker():
    """Start embedded workers that answer without waiting."""
    async with AsyncExitStack() as stack:

        async def start(**settings):
            return await stack.enter_async_context(serving(WorkerSettings(time_scale=0.0, **settings)))

        yield start


async def models(url):
    async with httpx.AsyncClient() as client:
        return [card["id"] for card in (await client.get(f"{url}/v1/models")).json()["data"]]


async def test_every_operation_is_carried_out(running_worker, client, tmp_path):
    worker = await running_worker(dev_mode=True, runtime_lora=True)
    endpoint = parse_endpoint(worker.url)
    await operate(client, endpoint, PAUSE)
    assert worker.worker.pause_mode == "wait"
    await operate(client, endpoint, RESUME)
    assert worker.worker.pause_mode is None
    await operate(client, endpoint, RESET)
    await operate(client, endpoint, load(path=str(tmp_path)))
    assert "x" in await models(worker.url)
    await operate(client, endpoint, unload())
    assert "x" not in await models(worker.url)


@pytest.mark.parametrize(
    ("wanted", "setting"),
    [
        (PAUSE, "VLLM_SERVER_DEV_MODE=1"),
        (RESET, "VLLM_SERVER_DEV_MODE=1"),
        (load(), "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"),
    ],
)
async def test_a_worker_that_does_not_offer_it_is_named_with_the_fix(running_worker, client, wanted, setting):
    worker = await running_worker()
    with pytest.raises(RefusedError, match="does not offer it") as error:
        await operate(client, parse_endpoint(worker.url), wanted)
    assert setting in error.value.reason


async def test_a_refusal_has_the_workers_reason(running_worker, client):
    worker = await running_worker(runtime_lora=True)
    for wanted, said in ((load(), "No adapter found for /none"), (unload(), "The lora adapter 'x' cannot be found")):
        with pytest.raises(RefusedError, match=said):
            await operate(client, parse_endpoint(worker.url), wanted)


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, b'{"success":false}', "the cache is in use"),
        (200, b"<html>", "the cache is in use"),
        (500, b'{"error":"Failed to do it"}', "answered 500: Failed to do it"),
        (404, b'{"detail":"Not Found"}', "does not offer it"),
        (400, b'{"error":{"message":["no text"]}}', "answered 400"),
        (502, b"[" * 100_000, "answered 502"),
        (500, b'{"message":"' + b"x" * 3_000 + b'"}', "answered 500: xxx"),
        (500, b'{"message":"' + b"x" * 100_000 + b'"}', "answered 500"),
    ],
)
async def test_any_answer_becomes_a_short_reason(status, body, said):
    async with answering(lambda request: httpx.Response(status, content=body)) as (client, endpoint):
        with pytest.raises(RefusedError, match=said) as error:
            await operate(client, endpoint, RESET)
    assert len(error.value.reason) < MAX_REASON_CHARACTERS + 100


async def test_an_older_worker_answers_a_reset_without_a_body():
    async with answering(lambda request: httpx.Response(200)) as (client, endpoint):
        await operate(client, endpoint, RESET)


async def test_a_worker_that_is_not_there_may_or_may_not_have_done_it(running_worker, client):
    worker = await running_worker()
    await worker.stop()
    with pytest.raises(ProbeError, match="cannot connect") as error:
        await operate(client, parse_endpoint(worker.url), RESET)
    assert not isinstance(error.value, RefusedError)
