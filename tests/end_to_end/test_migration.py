"""Worker processes that are killed or shut down under streams: each client sees the answer of an undisturbed run."""

import asyncio
import json
import os
import signal
from contextlib import ExitStack

import httpx
import pytest

from loadtest.fleet.ports import free_ports
from loadtest.fleet.process import Process, warmroute
from tests.end_to_end.conftest import ANY_PORT, Gateway

pytestmark = pytest.mark.slow

STREAMS, WORKERS, BEFORE_S = 18, 3, 2.0
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SECRET = "SECRET-SYSTEM-PROMPT"
SETTINGS = (
    "policy: {rule: round_robin}\nroutes: [{name: default, layers: {migration: {limit: 1, drain_after_s: 0.5}}}]\n"
)
WORKER = ("--time-scale", "5", "--character-share", "0.2", "--no-kv-events")


def body(number):
    members = {"model": "warmroute-simulated", "stream": True, "max_tokens": 150, "temperature": 0, "ignore_eos": True}
    asked = {"messages": [{"role": "system", "content": SECRET}, {"role": "user", "content": f"Question {number}"}]}
    asked = {"prompt": f"{SECRET} {number}"} if number % 2 else asked
    return members | asked | {"stream_options": {"include_usage": True}}


def seen(lines):
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert [line for line in lines if line == "data: [DONE]"] == ["data: [DONE]"]
    choices = [event["choices"][0] for event in events if event.get("choices")]
    text = "".join(one["text"] if "text" in one else one["delta"].get("content") or "" for one in choices)
    assert SECRET not in text and len({event["id"] for event in events}) == 1
    return text, [one["finish_reason"] for one in choices if one["finish_reason"]], events[-1]["usage"]["total_tokens"]


async def answer(client, number):
    async with client.stream("POST", TEXT if number % 2 else CHAT, json=body(number)) as reply:
        return seen([line async for line in reply.aiter_lines()])


async def answers(client, disturb=None):
    asked = [asyncio.create_task(answer(client, number)) for number in range(STREAMS)]
    await asyncio.sleep(BEFORE_S)
    if disturb is not None:
        disturb()
    return await asyncio.gather(*asked)


@pytest.mark.parametrize(
    ("flags", "number", "trigger"),
    [
        ((), signal.SIGKILL, "cut"),
        ((), signal.SIGTERM, "abort"),
        (("--silent-shutdown",), signal.SIGTERM, "silence"),
    ],
)
async def test_no_stream_breaks(tmp_path, flags, number, trigger):
    first_port = free_ports(WORKERS)
    ports = [str(first_port + index) for index in range(WORKERS)]
    (tmp_path / "gateway.yaml").write_text(SETTINGS)
    urls = [flag for port in ports for flag in ("--worker", f"http://127.0.0.1:{port}")]
    with ExitStack() as stack:
        workers = [Process(warmroute("worker", "--port", port, *WORKER, *flags), f"worker {port}") for port in ports]
        for worker in workers:
            stack.callback(worker.stop)
        gateway = Process(warmroute("serve", *ANY_PORT, "--config", str(tmp_path / "gateway.yaml"), *urls), "gateway")
        stack.callback(gateway.stop)
        served = Gateway(gateway)
        gateway.wait_for(r"\bready\b.*workers_ready=3")
        async with httpx.AsyncClient(base_url=served.url, timeout=60) as client:
            expected = await answers(client)
            assert await answers(client, lambda: os.kill(workers[0].pid, number)) == expected
            metrics = (await client.get(f"{served.admin}/metrics")).text
    moved = f'warmroute_migrations_total{{outcome="resumed",trigger="{trigger}"}} '
    assert float(metrics.split(moved)[1].split("\n")[0]) >= 2
