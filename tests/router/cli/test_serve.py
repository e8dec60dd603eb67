import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import sys

import httpx
import pytest

from backends.simulated.serving import serving
from backends.simulated.settings import WorkerSettings


class Served:
    """A running ``warmroute serve``, its log read as JSON."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.log: list[dict] = []

    async def until(self, event: str) -> dict:
        """The next log line with this event."""
        while line := await asyncio.wait_for(self.process.stderr.readline(), 30):
            self.log.append(json.loads(line))
            if self.log[-1]["event"] == event:
                return self.log[-1]
        raise AssertionError(f"no {event!r} in {self.log}")

    async def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return await asyncio.wait_for(self.process.wait(), 30)


@pytest.fixture
async def serve(tmp_path):
    """Start the command on ports of the system's choice."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(*arguments: str, before=None) -> Served:
            environment = {name: value for name, value in os.environ.items() if not name.startswith("WARMROUTE_")}
            common = ["--host", "127.0.0.1", "--port", "0", "--admin-port", "0", "--log-format", "json"]
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "warmroute", "serve", *common, *arguments,
                cwd=tmp_path, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
                preexec_fn=before,
            )  # fmt: skip
            stack.push_async_callback(ended, process)
            return Served(process)

        yield start


async def ended(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.communicate()


async def test_from_start_to_stop(serve):
    async with serving(WorkerSettings(time_scale=0)) as worker, httpx.AsyncClient() as client:
        gateway = await serve("--worker", worker.url, "--policy", "lpwl")
        public = (await gateway.until("public port listening"))["url"]
        admin = (await gateway.until("admin port listening"))["url"]
        await gateway.until("self-test")
        assert (await client.get(f"{admin}/readyz")).json()["workers_ready"] == 1
        (listed,) = (await client.get(f"{admin}/admin/v1/workers")).json()["workers"]
        assert listed["candidates"][0]["residency"] == "exact"
        assert (await client.get(f"{admin}/admin/v1/policy")).json()["name"] == "lpwl"
        assert "warmroute_" in (await client.get(f"{admin}/metrics")).text
        body = {"model": listed["models"][0]["id"], "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
        assert (await client.post(f"{public}/v1/chat/completions", json=body)).status_code == 200
        (decision,) = (await client.get(f"{admin}/admin/v1/decisions")).json()["decisions"]
        assert decision["worker"] == listed["id"]
        explained = (await client.post(f"{admin}/admin/v1/explain", json={"body": body})).json()
        assert explained["choice"] == listed["id"]
        assert explained["candidates"][0]["cached_tokens"] >= 0
        assert await gateway.stop() == 0
    assert not any("traceback" in line for line in gateway.log)


async def test_a_dead_worker_does_not_stop_it(serve, dead_port):
    gateway = await serve("--worker", f"127.0.0.1:{dead_port}")
    admin = (await gateway.until("admin port listening"))["url"]
    async with httpx.AsyncClient() as client:
        response = await client.get(f"{admin}/readyz")
    assert (response.status_code, response.json()["code"]) == (503, "not_ready")
    assert await gateway.stop(signal.SIGINT) == 0


async def test_a_taken_port_is_said(serve):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        gateway = await serve("--admin-port", str(taken.getsockname()[1]))
        out, err = await asyncio.wait_for(gateway.process.communicate(), 30)
    assert (gateway.process.returncode, out) == (1, b"")
    assert b"cannot listen" in err and b"admin port 127.0.0.1:" in err
    assert b"Traceback" not in err


async def test_too_few_open_files_are_said(serve):
    gateway = await serve(before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (512, 1_024)))
    first = await gateway.until("public port listening")
    warning = gateway.log[0]
    assert warning is not first
    assert warning["level"] == "warning"
    assert "RLIMIT_NOFILE allows 1024" in warning["event"]
    assert await gateway.stop() == 0
