import asyncio
import contextlib
import os
import re
import signal
import sys
import time
from pathlib import Path

import httpx
import pytest

from backends.simulated.serving import run, serving, start
from backends.simulated.settings import WorkerSettings

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
ROOT = Path(__file__).parents[3]


async def open_request(client, body):
    """Open a raw connection and send one request, so that closing it is a plain socket close."""
    reader, writer = await asyncio.open_connection("127.0.0.1", client.running.bound.port)
    text = str(httpx.Request("POST", client.running.url + COMPLETIONS, json=body).read(), "utf-8")
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: w\r\ncontent-type: application/json\r\ncontent-length: {len(text)}"
    writer.write(f"{head}\r\n\r\n{text}".encode())
    return reader, writer


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
async def test_a_leaving_client_frees_the_engine_within_100_ms(worker_with, until, stream, phase):
    speed = 0.01 if phase == "prefill" else 1.0
    async with worker_with(time_scale=1.0, speed=speed) as client:
        body = {"prompt": list(range(300, 900)), "max_tokens": 10_000, "stream": stream}
        _, writer = await open_request(client, body)
        tokens = 0 if phase == "prefill" else 3
        await until(lambda: client.engine()["running"] == 1 and client.engine()["generation_tokens"] >= tokens)
        assert client.engine()["kv_usage"] > 0
        writer.close()
        took_s = await until(lambda: client.engine()["running"] == 0)
        assert took_s < 0.1
        assert client.engine()["kv_usage"] == 0
        assert client.worker.statistics()["metrics"]["finished"]["abort"] == 1
        await until(lambda: client.worker.server_load == 0)


async def test_a_leaving_client_removes_its_waiting_request(worker_with, until):
    async with worker_with(time_scale=1.0, max_num_seqs=1) as client:
        _, first = await open_request(client, {"prompt": "a", "max_tokens": 10_000})
        await until(lambda: client.engine()["running"] == 1)
        _, second = await open_request(client, {"prompt": "b", "max_tokens": 10_000})
        await until(lambda: client.engine()["waiting"] == 1)
        second.close()
        assert await until(lambda: client.engine()["waiting"] == 0) < 0.1
        assert client.engine()["running"] == 1
        first.close()


async def test_other_streams_continue_when_one_leaves(worker_with, until):
    async with worker_with(time_scale=0.01) as client:
        stay = asyncio.create_task(client.frames(COMPLETIONS, {"prompt": "a", "max_tokens": 200}))
        _, leaving = await open_request(client, {"prompt": "b", "max_tokens": 10_000, "stream": True})
        await until(lambda: client.engine()["running"] == 2)
        leaving.close()
        assert len(await stay) == 200


async def test_time_scale_is_kept_without_drift(worker_with):
    async with worker_with(time_scale=0.2, jitter=0.0) as client:
        began = time.monotonic()
        await client.chat("Hi", max_tokens=200)
        took_s = time.monotonic() - began
        clock = client.worker.statistics()["clock"]
        assert clock["steps"] == 200
        assert took_s == pytest.approx(clock["busy_s"] * 0.2, abs=0.1)


async def test_a_slow_reader_loses_nothing(worker_with, until):
    async with worker_with() as client:
        reader, writer = await open_request(client, {"prompt": "a", "max_tokens": 20_000, "stream": True})
        await until(lambda: client.engine()["running"] == 0 and client.engine()["generation_tokens"] == 20_000, 30)
        received = b""
        while b"[DONE]" not in received[-64:]:
            received += await reader.read(1 << 20)
        assert received.count(b"data: {") == 20_000
        writer.close()


STREAM = {"prompt": "a", "max_tokens": 10_000, "stream": True}


async def test_stop_ends_running_answers_with_abort():
    running = await start(WorkerSettings(time_scale=1.0))
    async with httpx.AsyncClient(base_url=running.url) as client:
        async with client.stream("POST", COMPLETIONS, json=STREAM) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            stopping = asyncio.create_task(running.stop())
            rest = [line async for line in lines if line]
            assert '"finish_reason":"abort"' in rest[-2]
            assert rest[-1] == "data: [DONE]"
        await stopping
        await running.stop()
        with pytest.raises(httpx.ConnectError):
            await client.get("/health")


async def read_and_kill(running):
    async with httpx.AsyncClient() as client, client.stream("POST", running.url + COMPLETIONS, json=STREAM) as answer:
        async for _ in answer.aiter_lines():
            await running.kill()


async def test_kill_cuts_connections_and_frees_the_port():
    async with serving(WorkerSettings(time_scale=1.0)) as running:
        with pytest.raises(httpx.TransportError):
            await read_and_kill(running)
        settings = WorkerSettings(time_scale=0.0, port=running.bound.port)
        async with serving(settings) as again, httpx.AsyncClient(base_url=again.url) as client:
            assert again.bound.port == running.bound.port
            assert (await client.get("/health")).status_code == 200


async def test_dead_engine_is_unhealthy(client):
    def fail(now_s):
        raise ZeroDivisionError

    client.worker.engine.step = fail
    answer = await client.post(COMPLETIONS, json={"prompt": "a"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (500, "InternalServerError")
    assert (await client.get("/health")).status_code == 503
    assert (await client.post(COMPLETIONS, json={"prompt": "a"})).status_code == 500


async def test_taken_ports_are_named():
    async with serving() as running:
        with pytest.raises(OSError, match=str(running.bound.port)):
            await start(WorkerSettings(port=running.bound.port))
        port = int(running.bound.kv_events_endpoint.rpartition(":")[2])
        with pytest.raises(OSError, match=str(port)):
            await start(WorkerSettings(kv_events_port=port))


async def test_run_until_cancelled():
    bound = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(run(WorkerSettings(), bound.set_result))
    where = await asyncio.wait_for(bound, 10)
    async with httpx.AsyncClient(base_url=where.url) as client:
        assert (await client.get("/health")).status_code == 200
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        with pytest.raises(httpx.ConnectError):
            await client.get("/health")


CODE = "import sys; from router.cli.main import main; sys.exit(main(sys.argv[1:]))"


async def command(*flags):
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        CODE,
        "worker",
        *flags,
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


async def test_command_serves_until_sigterm():
    process = await command("--port", "0", "--time-scale", "0", "--lora", "style")
    first = (await asyncio.wait_for(process.stdout.readline(), 20)).decode()
    url = re.search(r"http://\S+", first).group()
    assert b"tcp://127.0.0.1:" in await process.stdout.readline()
    async with httpx.AsyncClient(base_url=url) as client:
        answer = await client.post(CHAT, json={"messages": [{"role": "user", "content": "Hi"}], "model": "style"})
        assert answer.json()["usage"]["completion_tokens"] == 128
    process.send_signal(signal.SIGTERM)
    _, stderr = await asyncio.wait_for(process.communicate(), 10)
    assert (process.returncode, stderr) == (0, b"")


async def test_the_command_names_the_mistake():
    async with serving() as running:
        process = await command("--port", str(running.bound.port))
        _, stderr = await asyncio.wait_for(process.communicate(), 20)
        assert process.returncode == 1
        assert str(running.bound.port).encode() in stderr
        assert b"Traceback" not in stderr
    process = await command("--time-scale", "-1")
    _, stderr = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 2
    assert b"0 or more" in stderr
