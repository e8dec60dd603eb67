import asyncio
import re
from contextlib import asynccontextmanager

import pytest

from router.cli.checks.examine import examine_all
from router.config.model import Config, WorkerConfig

PAGES = {
    b"/health": b"",
    b"/version": b'{"version": "0.33.0"}',
    b"/v1/models": b'{"data": [{"id": "m"}]}',
    b"/metrics": b'vllm:num_requests_running{engine="0"} 0\n',
}


@asynccontextmanager
async def routed(*hosts):
    """Serve a worker that knows only `hosts`, or its own address if there are none. Yield its URL."""

    async def serve(reader, writer):
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                path = head.split(b" ")[1]
                host = re.search(rb"(?i)\r\nhost: *([^\r]+)", head)[1].decode()
                status = 404 if path not in PAGES else 200 if host in known else 421
                body = PAGES.get(path, b"") if status == 200 else b""
                writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    authority = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    known = hosts or (authority,)
    try:
        yield f"http://{authority}"
    finally:
        server.close()


@pytest.mark.parametrize(
    ("hosts", "setting", "problem"),
    [
        ((), "worker", None),
        ((), "client", "refuses requests with a client's Host"),
        (("vllm.internal",), "vllm.internal", None),
        (("vllm.internal",), "worker", "421"),
    ],
)
async def test_a_worker_that_answers_by_host(hosts, setting, problem):
    async with routed(*hosts) as url:
        config = Config(workers=(WorkerConfig(url=url, host=setting),))
        [report] = await examine_all(config, requests=False)
    assert (report.problem is None) if problem is None else (problem in report.problem)
