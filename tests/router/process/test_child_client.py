import asyncio
import time
from pathlib import Path

import pytest

from router.admin.replies import Reply
from router.process.children import child_client
from router.process.children.child_client import (
    CHANGE_S,
    READ_S,
    ChildClient,
    ChildRequest,
    NoReplyError,
    ask_all,
)
from tests.support.waiting import eventually

ASKED = ChildRequest("GET", "/x", {"limit": 3})


@pytest.fixture
async def process(tmp_path: Path):
    """Start a process that answers these bytes once; `endless` bytes are repeated."""
    servers = []

    async def start(answer: bytes, endless: bytes = b"") -> ChildClient:
        path = tmp_path / "process"

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"GET /x?limit=3 ")
                writer.write(answer)
                while endless:
                    writer.write(endless)
                    await writer.drain()
            except ConnectionError:
                pass

        servers.append(await asyncio.start_unix_server(serve, path))
        client = ChildClient(7, path)
        servers.append(client)
        return client

    yield start
    for server in servers:
        await server.aclose() if isinstance(server, ChildClient) else server.close()


async def test_a_reply_has_status_and_headers(process) -> None:
    client = await process(b'HTTP/1.1 409 X\r\nretry-after: 3\r\ncontent-length: 15\r\n\r\n{"detail":"no"}')
    answer = await client.ask(ASKED)
    assert (answer.status_code, answer.is_success, answer.detail) == (409, False, "no")
    assert answer.headers["retry-after"] == "3"


async def test_a_refusal_without_a_problem_document_shows_its_status(process) -> None:
    client = await process(b"HTTP/1.1 500 X\r\ncontent-length: 2\r\n\r\n<>")
    assert (await client.ask(ASKED)).detail == "status 500"


async def test_an_endless_reply_is_cut(process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_client, "MAX_REPLY_BYTES", 1 << 20)
    client = await process(b"HTTP/1.1 200 OK\r\n\r\n", endless=b"x" * 65_536)
    with pytest.raises(NoReplyError, match="process 7 answered more than 1048576 bytes"):
        await client.ask(ASKED)


async def test_a_silent_process_times_out(process) -> None:
    client = await process(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n")
    with pytest.raises(NoReplyError, match=r"process 7 did not answer \(TimeoutError\)"):
        await client.ask(ASKED, 0.05)


class Process:
    """A process that replies to each call after `delay_s`, or fails with `problem`."""

    def __init__(self, number, delay_s, problem=None):
        self.number, self._delay_s, self._problem = number, delay_s, problem
        self.given_up = False

    async def ask(self, request, limit_s=READ_S):
        try:
            await asyncio.sleep(self._delay_s)
        except asyncio.CancelledError:
            self.given_up = True
            raise
        if self._problem is not None:
            raise self._problem
        return Reply(200)


async def test_a_stopped_process_delays_a_read_only_a_little(monkeypatch):
    monkeypatch.setattr(child_client, "STRAGGLER_S", 0.05)
    stopped = Process(2, 60.0)
    began_s = time.monotonic()
    answers = await ask_all([Process(0, 0.0), Process(1, 0.01), stopped], ChildRequest("GET", "/x"))
    assert set(answers) == {0, 1}
    assert time.monotonic() - began_s < 2.0
    await eventually(lambda: stopped.given_up)


async def test_a_process_that_died_does_not_hurry_the_others(monkeypatch):
    monkeypatch.setattr(child_client, "STRAGGLER_S", 0.01)
    died = Process(0, 0.0, NoReplyError("dead"))
    assert set(await ask_all([died, Process(1, 0.1)], ChildRequest("GET", "/x"))) == {1}


async def test_a_long_read_leaves_the_others_as_long_again(monkeypatch):
    monkeypatch.setattr(child_client, "STRAGGLER_S", 0.0)
    assert set(await ask_all([Process(0, 0.2), Process(1, 0.3)], ChildRequest("GET", "/x"))) == {0, 1}


async def test_a_change_waits_for_every_process(monkeypatch):
    monkeypatch.setattr(child_client, "STRAGGLER_S", 0.0)
    assert set(await ask_all([Process(0, 0.0), Process(1, 0.1)], ChildRequest("PUT", "/x"), CHANGE_S)) == {0, 1}


async def test_a_defect_is_not_hidden():
    with pytest.raises(ZeroDivisionError):
        await ask_all([Process(0, 0.0, ZeroDivisionError()), Process(1, 0.0)], ChildRequest("GET", "/x"))
