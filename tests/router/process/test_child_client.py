"""Replies of a child process over its private socket are bounded in size and time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from router.process.children import child_client
from router.process.children.child_client import ChildClient, ChildRequest, NoReplyError

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
