import asyncio
import contextlib
import json
import os
import pty
import resource
import select
import signal
import socket
import subprocess
import sys

import httpx
import pytest

from backends.simulated.serving import serving
from backends.simulated.settings import WorkerSettings
from loadtest.fleet.process import Process, warmroute
from router.process.banner import NO_WORKERS


class Served:
    """A running ``warmroute serve``, its log read as JSON."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.log: list[dict] = []

    async def until(self, event: str) -> dict:
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


async def test_a_gateway_serves_from_start_to_stop(serve):
    async with serving(WorkerSettings(time_scale=0)) as worker, httpx.AsyncClient() as client:
        gateway = await serve("--worker", worker.url, "--policy", "lpwl")
        public = (await gateway.until("public port listening"))["url"]
        admin = (await gateway.until("admin port listening"))["url"]
        ready = await gateway.until("ready")
        assert (ready["workers"], ready["workers_ready"], ready["views"]) == (1, 1, {"exact": 1})
        assert (len(ready["models"]), ready["policy"]) == (1, "lpwl")
        curl = await asyncio.create_subprocess_shell(
            f"{ready['try']} --fail --silent", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        answer, _ = await curl.communicate()
        assert public in ready["try"] and json.loads(answer)["object"] == "chat.completion"
        assert (await client.get(f"{admin}/readyz")).json()["workers_ready"] == 1
        (listed,) = (await client.get(f"{admin}/admin/v1/workers")).json()["workers"]
        assert listed["candidates"][0]["residency"] == "exact"
        assert (await client.get(f"{admin}/admin/v1/policy")).json()["rule"] == "lpwl"
        assert "warmroute_" in (await client.get(f"{admin}/metrics")).text
        body = {"model": listed["models"][0]["id"], "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
        assert (await client.post(f"{public}/v1/chat/completions", json=body)).status_code == 200
        decision, _ = (await client.get(f"{admin}/admin/v1/decisions")).json()["decisions"]
        assert decision["worker"] == listed["id"]
        explained = (await client.post(f"{admin}/admin/v1/explain", json={"body": body})).json()
        assert explained["choice"] == listed["id"]
        assert explained["candidates"][0]["cached_tokens"] >= 0
        assert await gateway.stop() == 0
    assert not any("traceback" in line for line in gateway.log)


def test_on_a_terminal_the_log_is_coloured_text_with_one_line_for_people(tmp_path):
    parent, terminal = pty.openpty()
    with running_worker() as url:
        command = [sys.executable, "-m", "warmroute", "serve", "--worker", url, "--port", "0", "--admin-port", "0"]
        environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR",)}
        environment = {name: value for name, value in environment.items() if not name.startswith("WARMROUTE_")}
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=terminal, cwd=tmp_path, env=environment)
        os.close(terminal)
        text = read_until(parent, b"; try: curl http://127.0.0.1:")
        process.terminate()
        process.wait(30)
    os.close(parent)
    assert "INFO    warmroute.process: public port listening url=" in text
    assert "\x1b[1;32m1 worker ready, 1 model, policy marginal_cost, exact views, prompts tokenised here\x1b[0m" in text


@contextlib.contextmanager
def running_worker():
    worker = Process(warmroute("worker", "--port", "0", "--time-scale", "0"), "worker")
    try:
        yield worker.wait_for(r"worker (http://\S+)")[1]
    finally:
        worker.stop()


def read_until(descriptor: int, awaited: bytes) -> str:
    shown = b""
    while awaited not in shown:
        assert select.select([descriptor], [], [], 30)[0], shown
        shown += os.read(descriptor, 65_536)
    return shown.decode()


async def test_budgets_and_an_open_admin_port_are_said_and_a_dead_worker_does_not_stop_the_start(serve, dead_port):
    asked = f"limits.max_buffered_body_bytes={1 << 50}"
    gateway = await serve("--worker", f"127.0.0.1:{dead_port}", "--set", asked, "--admin-host", "0.0.0.0")
    stated = await gateway.until("memory budgets")
    assert stated["limit_bytes"] > 0 and stated["source"] in ("cgroup v2", "cgroup v1", "half of RAM")
    assert stated["max_buffered_body_bytes"] == 1 << 50
    warning = json.loads(await gateway.process.stderr.readline())["event"]
    assert "lower limits.max_buffered_body_bytes, or raise the limit" in warning
    admin = (await gateway.until("admin port listening"))["url"]
    assert any("without a token" in line["event"] and line["level"] == "warning" for line in gateway.log)
    async with httpx.AsyncClient() as client:
        unready = await client.get(f"{admin}/readyz")
        config = (await client.get(f"{admin}/admin/v1/config")).json()
        page = (await client.get(f"{admin}/metrics")).text
    assert (unready.status_code, unready.json()["code"]) == (503, "not_ready")
    assert config["residency"]["memo_bytes"] == stated["memo_bytes"]
    read = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    assert float(read[f'warmroute_memory_limit_bytes{{source="{stated["source"]}"}}']) == stated["limit_bytes"]
    assert await gateway.stop(signal.SIGINT) == 0


async def refused(gateway: Served) -> str:
    out, err = await asyncio.wait_for(gateway.process.communicate(), 30)
    assert (gateway.process.returncode, out) == (1, b"")
    assert b"Traceback" not in err
    return err.decode()


@pytest.mark.parametrize("side", ["", pytest.param("admin-", marks=pytest.mark.nightly)])
async def test_a_taken_port_is_named(serve, side):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = await refused(await serve(f"--{side}port", str(port)))
    where = f"{side.strip('-') or 'public'} port 127.0.0.1:{port}"
    assert f"cannot listen: {where}: address already in use; stop the process that uses it, or set another port" in said
    assert f"(--{side}port, " in said


async def test_two_processes_on_a_unix_socket_warn_once_without_workers(serve, tmp_path):
    path = tmp_path / "public.sock"
    gateway = await serve("--uds", str(path), "--processes", "2")
    ready = {(await gateway.until("process ready"))["process_index"] for _ in range(2)}
    assert ready == {0, 1}
    said = {line["event"]: line for line in gateway.log}
    assert said[NO_WORKERS]["level"] == "warning" and "--worker URL" in NO_WORKERS
    assert [line["event"] for line in gateway.log].count(NO_WORKERS) == 1
    assert said["public port listening"]["url"] == f"unix:{path}"
    transport = httpx.AsyncHTTPTransport(uds=str(path))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        assert (await client.get("/livez")).status_code == 200
    assert await gateway.stop() == 0
    assert not path.exists()
    assert NO_WORKERS not in (await gateway.process.stderr.read()).decode()


async def test_a_key_opens_a_worker_and_stays_out_of_sight(serve, guarded):
    key = "sk-5371"
    async with guarded(key) as worker, httpx.AsyncClient() as client:
        workers = json.dumps([{"url": worker.url, "api_key": key}])
        gateway = await serve("--set", f"workers={workers}", "--log-level", "debug")
        admin = (await gateway.until("admin port listening"))["url"]
        assert "401" not in (await gateway.until("self-test"))["reason"]
        (listed,) = (await client.get(f"{admin}/admin/v1/workers")).json()["workers"]
        assert listed["models"], "without the key they are unknown"
        assert (await client.get(f"{admin}/readyz")).json()["workers_ready"] == 1
        shown = (await client.get(f"{admin}/admin/v1/config")).json()
        assert shown["workers"][0]["api_key"] == "***"
        added = await client.post(f"{admin}/admin/v1/workers", json={"url": "http://127.0.0.1:9", "api_key": key})
        pages = [await client.get(f"{admin}{path}") for path in ("/admin/v1/workers", "/admin/v1/config", "/metrics")]
        assert added.status_code == 201
        assert all(key not in page.text for page in [added, *pages])
        gateway.process.send_signal(signal.SIGTERM)
        _, err = await asyncio.wait_for(gateway.process.communicate(), 30)
    assert key not in err.decode() + json.dumps(gateway.log)


async def test_too_few_open_files_are_said(serve):
    gateway = await serve(before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (512, 1_024)))
    first = await gateway.until("public port listening")
    warning = gateway.log[0]
    assert warning is not first
    assert warning["level"] == "warning"
    assert "RLIMIT_NOFILE allows 1024" in warning["event"]
    assert await gateway.stop() == 0
