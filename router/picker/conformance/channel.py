"""The connection to the picker."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from router.picker.conformance.fixture import Fixture

OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # channels of one process share connections otherwise
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)
SMALL_WINDOW = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65_536))
"""A stream that is not read stops after 64 KiB."""
_READ_BYTES = 65_536


class TargetUnreachable(Exception):
    """Nothing answers there; the text says what was tried."""


@dataclass(slots=True)
class PlainTarget:
    """Where gRPC connects to, without TLS."""

    address: str
    alpn: str | None = None
    """What the picker chose in TLS; None without TLS."""


@asynccontextmanager
async def plain_target(target: str, tls: bool, ca_file: Path | None) -> AsyncIterator[PlainTarget]:
    """Yield an address for gRPC: that of the picker, or of a port on loopback that adds TLS.

    gRPC cannot leave a certificate unchecked, and pickers sign their own.

    Raises:
        TargetUnreachable: the TLS handshake failed.
    """
    if not tls:
        yield PlainTarget(target)
        return
    bridge = TlsBridge(target, ca_file)
    alpn = await bridge.probe()
    server = await asyncio.start_server(bridge.serve, "127.0.0.1", 0)
    try:
        yield PlainTarget(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", alpn)
    finally:
        server.close()
        await bridge.aclose()


class TlsBridge:
    def __init__(self, target: str, ca_file: Path | None) -> None:
        host, _, port = target.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        self._context = ssl.create_default_context(cafile=ca_file)
        if ca_file is None:
            self._context.check_hostname = False
            self._context.verify_mode = ssl.CERT_NONE
        self._context.set_alpn_protocols(["h2"])
        self._serving: set[asyncio.Task[None]] = set()

    async def probe(self) -> str:
        """Return the protocol that the picker chose; empty if it chose none."""
        try:
            _, writer = await self._connect()
        except (OSError, ssl.SSLError) as error:
            raise TargetUnreachable(f"TLS to {self._host}:{self._port} failed: {error}") from None
        chosen: str | None = writer.get_extra_info("ssl_object").selected_alpn_protocol()
        writer.close()
        return chosen or ""

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        async with asyncio.timeout(10.0):
            return await asyncio.open_connection(self._host, self._port, ssl=self._context)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            there_reader, there_writer = await self._connect()
            await asyncio.gather(_copy(reader, there_writer), _copy(there_reader, writer))
        except (OSError, ssl.SSLError):
            pass  # gRPC sees its connection end
        except asyncio.CancelledError:
            pass  # a server's callback that ends cancelled is reported as an error
        finally:
            writer.close()
            self._serving.discard(task)

    async def aclose(self) -> None:
        for task in self._serving:
            task.cancel()
        if self._serving:
            await asyncio.wait(self._serving)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while part := await reader.read(_READ_BYTES):
            writer.write(part)
            await writer.drain()
    finally:
        writer.close()


@asynccontextmanager
async def open_channel(address: str, further: tuple[tuple[str, int], ...] = ()) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(address, options=(*OPTIONS, *further)) as channel:
        yield channel


async def expect_reachable(channel: Any, fixture: Fixture) -> None:
    """Connect.

    Raises:
        TargetUnreachable: no connection within the time for an answer.
    """
    try:
        async with asyncio.timeout(fixture.patience.answer_s):
            await channel.channel_ready()
    except TimeoutError:
        scheme = "with TLS" if fixture.tls else "without TLS"
        raise TargetUnreachable(f"no HTTP/2 connection to {fixture.target} {scheme}") from None
