import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from loadtest.drive.http import Client

pytestmark = [pytest.mark.slow, pytest.mark.measures]

REQUESTS = 3_000  # their log lines are several times as long as the pipe's buffer


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


class Gateway:
    """A gateway with its access log on and a pipe for stderr, which is read only when a test asks for it."""

    def __init__(self, *options, stderr):
        self.port, self.admin_port = free_port(), free_port()
        command = [sys.executable, "-m", "warmroute", "serve", "--access-log", "--log-format", "text"]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--admin-port", str(self.admin_port), *options]
        self.process = subprocess.Popen(command, stderr=stderr, stdin=subprocess.DEVNULL)

    async def ask(self, count, port=None, path="/livez"):
        """Send `count` requests on one connection; return the body of the last answer."""
        client = Client(f"http://127.0.0.1:{port or self.port}")
        try:
            for _ in range(count):
                async with client.exchange(client.request_bytes("GET", path)) as response:
                    assert response.status == 200
                    body = await response.read()
            return body.decode()
        finally:
            client.close()

    async def begins(self):
        end_s = time.monotonic() + 30
        while True:
            try:
                return await self.ask(1)
            except (OSError, AssertionError):
                assert time.monotonic() < end_s
                await asyncio.sleep(0.1)

    async def ends(self, limit_s=15):
        self.process.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(self.process.wait, limit_s)


@pytest.fixture
def gateway():
    made = []

    def start(*options, stderr):
        made.append(Gateway(*options, stderr=stderr))
        return made[-1]

    yield start
    for each in made:
        each.process.kill()
        each.process.wait()


@pytest.fixture
def pipe():
    reader, writer = os.pipe()
    yield reader, writer
    for descriptor in (reader, writer):
        try:
            os.close(descriptor)
        except OSError:
            pass


@pytest.mark.parametrize(
    "options", [pytest.param((), marks=pytest.mark.nightly), ("--processes", "2")], ids=["one", "two"]
)
async def test_a_log_that_nobody_reads_stops_no_request_and_no_exit(gateway, pipe, options):
    made = gateway(*options, stderr=pipe[1])
    await made.begins()
    async with asyncio.timeout(30):
        await asyncio.gather(*(made.ask(REQUESTS // 4) for _ in range(4)))
    began_s = time.monotonic()
    assert await made.ends() == 0
    assert time.monotonic() - began_s < 10


async def test_a_log_read_late_has_every_line(gateway, pipe):
    made = gateway(stderr=pipe[1])
    await made.begins()
    await made.ask(REQUESTS)
    os.close(pipe[1])
    with os.fdopen(os.dup(pipe[0]), "rb") as log:
        reading = asyncio.create_task(asyncio.to_thread(log.read))
        assert "warmroute_log_lines_dropped_total 0.0" in await made.ask(1, made.admin_port, "/metrics")
        assert await made.ends() == 0
        lines = (await reading).decode()
    assert len(re.findall(r"warmroute.access: request method=GET path=/livez", lines)) >= REQUESTS


async def test_a_log_whose_reader_is_gone_is_counted(gateway, pipe):
    made = gateway(stderr=pipe[1])
    await made.begins()
    for descriptor in pipe:
        os.close(descriptor)
    await made.ask(100)
    end_s = time.monotonic() + 20
    while await dropped_lines(made) < 100:  # a thread counts them
        assert time.monotonic() < end_s
        await asyncio.sleep(0.02)
    assert await made.ends() == 0


async def dropped_lines(gateway):
    page = await gateway.ask(1, gateway.admin_port, "/metrics")
    (count,) = re.findall(r"^warmroute_log_lines_dropped_total (\S+)", page, re.MULTILINE)
    return float(count)
