import asyncio
import contextlib
import json
import os
import socket
import ssl
import struct
import time

import pytest
import trustme

from router.security.reload import FileWatch
from tests.support.answers import (
    DONE,
    END,
    STREAM_HEAD,
    answer_json,
    answer_stream,
    chunk,
    dying,
    event,
    json_head,
    says,
)
from tests.support.memory import peak_bytes, start_peak
from tests.support.raw_client import PLAIN, get, post
from tests.support.scripted_worker import ScriptedWorker
from tests.support.waiting import WAIT_S, eventually, settled


class Authority:
    """A CA that writes its certificates as PEM files."""

    def __init__(self, folder, name="ca"):
        self.folder, self.name = folder, name
        self.ca = trustme.CA()
        self.file = str(folder / f"{name}.pem")
        self.ca.cert_pem.write_to_path(self.file)

    def issue(self, stem, *names):
        """Write a certificate and its key, in place if the files exist. Return their paths."""
        issued = self.ca.issue_cert(*names)
        cert, key = self.folder / f"{stem}.crt", self.folder / f"{stem}.key"
        issued.cert_chain_pems[0].write_to_path(str(cert))
        issued.private_key_pem.write_to_path(str(key))
        return {"cert_file": str(cert), "key_file": str(key)}

    def client(self, pair=None):
        context = ssl.create_default_context(cafile=self.file)
        if pair:
            context.load_cert_chain(pair["cert_file"], pair["key_file"])
        return context

    def server(self, pair):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair["cert_file"], pair["key_file"])
        return context


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.fixture
def pair(authority):
    return authority.issue("gateway", "127.0.0.1", "localhost")


@pytest.fixture
async def worker_over_tls(authority):
    started = []

    async def start(script, *names):
        pair = authority.issue(f"worker{len(started)}", *(names or ("127.0.0.1",)))
        worker = await ScriptedWorker(script, tls=authority.server(pair)).start()
        started.append(worker)
        return worker

    yield start
    for worker in started:
        await worker.stop()


# to clients


async def test_requests_and_streams_pass_over_tls(rig, authority, pair):
    gateway = await rig(answer_stream, tls=pair)
    client = await gateway.connect(ssl=authority.client())
    for _ in range(2):
        reply = await client.ask(post())
        assert reply.status == 200
        assert reply.body.endswith(DONE)
    seen = gateway.workers[0].requests[0]
    assert seen.header(b"x-forwarded-proto") == b"https"
    connection = client.writer.get_extra_info("ssl_object")
    assert connection.version() == "TLSv1.3"


async def test_alpn_selects_http_1_1(rig, authority, pair):
    gateway = await rig(answer_stream, tls=pair)
    context = authority.client()
    context.set_alpn_protocols(["h2", "http/1.1"])
    client = await gateway.connect(ssl=context)
    assert client.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_old_tls_versions_are_refused(rig, authority, pair):
    gateway = await rig(answer_stream, tls=pair)
    context = authority.client()
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await gateway.connect(ssl=context)


async def test_large_bodies_pass_both_ways_over_tls(rig, authority, pair, worker_over_tls):
    answer = os.urandom(20_000_000)

    big = says(json_head(len(answer)), answer)
    worker = await worker_over_tls(big)
    gateway = await rig(tls=pair, worker_tls={"ca_file": authority.file})
    gateway.join(f"https://{worker.id}")
    body = json.dumps({"model": "m", "messages": [], "pad": "x" * 8_000_000}).encode()
    client = await gateway.connect(ssl=authority.client())
    reply = await client.ask(post(body=body))
    assert reply.body == answer
    assert worker.requests[0].body == body


async def test_a_slow_tls_reader_pauses_its_worker(rig, authority, pair):
    written = [0]

    async def endless(script):
        await script.say(STREAM_HEAD, chunk(event("a")))
        piece = chunk(b"data: " + b"x" * 65_000 + b"\n\n")
        while written[0] < 400_000_000:
            await script.say(piece)
            written[0] += len(piece)

    gateway = await rig(endless, tls=pair)
    client = await gateway.connect(ssl=authority.client(), limit=4_096)
    before = start_peak()
    client.writer.write(post())
    await client.reader.readuntil(b"\r\n\r\n")
    await eventually(lambda: any(not each.writable for each in gateway.gateway._parts.drain.connections))
    assert await settled(lambda: written[0]) < 20_000_000
    assert peak_bytes() - before < 40 << 20
    client.leave()
    await eventually(lambda: gateway.idle)


@pytest.mark.parametrize("how", ["reset", "fin", "close_notify"])
@pytest.mark.parametrize("when", ["before_first", "stream"])
async def test_a_tls_client_that_leaves_frees_its_worker(rig, authority, pair, how, when):
    left = asyncio.Event()

    async def waiting(script):
        if when == "stream":
            await script.say(STREAM_HEAD, chunk(event("a")))
        await script.gone()
        left.set()

    gateway = await rig(waiting, tls=pair)
    host, _, port = gateway.address.rpartition(":")
    arrived = gateway.workers[0].arrived.wait

    def leave():
        plain = socket.create_connection((host, int(port)))
        connection = authority.client().wrap_socket(plain, server_hostname=host)
        connection.sendall(post())
        if when == "stream":
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
        else:
            asyncio.run_coroutine_threadsafe(arrived(), gateway.loop).result(WAIT_S)
        if how == "close_notify":
            connection.setblocking(False)
            with pytest.raises((ssl.SSLWantReadError, ssl.SSLError)):
                connection.unwrap()
            return connection
        if how == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            os.close(connection.detach())
        else:
            connection.shutdown(socket.SHUT_WR)
        return connection

    connection = await asyncio.to_thread(leave)
    await asyncio.wait_for(left.wait(), WAIT_S)
    await eventually(lambda: gateway.idle)
    if how != "reset":
        connection.close()


async def test_a_refusal_reaches_a_tls_client_that_is_still_sending(rig, authority, pair):
    gateway = await rig(answer_stream, tls=pair, limits={"max_body_bytes": 1_000})
    client = await gateway.connect(ssl=authority.client())
    body = b"x" * 3_000_000
    client.writer.write(post(body=body))
    reply = await client.read()
    assert reply.status == 413
    assert await client.closed() == b""


async def test_idle_tls_connections_close_at_shutdown(rig, authority, pair):
    gateway = await rig(answer_stream, tls=pair)
    client = await gateway.connect(ssl=authority.client())
    assert (await client.ask(get())).status == 200
    await asyncio.wait_for(gateway.gateway.aclose(1), WAIT_S)
    assert await client.closed() == b""


async def test_an_endless_handshake_is_closed(rig, authority, pair):
    gateway = await rig(answer_stream, tls=pair)
    gateway.gateway._acceptor.tls_handshake_s = 0.3
    silent = await gateway.connect()
    began_s = time.monotonic()
    assert await silent.closed() == b""
    assert time.monotonic() - began_s > 0.2
    assert (await (await gateway.connect(ssl=authority.client())).ask(get())).status == 200


async def test_a_handshake_started_before_a_drain_gets_a_response(rig, authority, pair):
    gateway = await rig(answer_stream, tls=pair)
    gateway.gateway._acceptor.tls_handshake_s = 2.0
    began, silent = await gateway.connect(), await gateway.connect()
    parts = gateway.gateway._parts
    await eventually(lambda: parts.drain.places.opening == 2)
    closing = asyncio.create_task(gateway.gateway.aclose(5))
    await eventually(lambda: not parts.drain.accepts)
    await began.writer.start_tls(authority.client(), server_hostname="127.0.0.1")
    reply = await began.ask(post())
    assert (reply.status, reply.header(b"connection")) == (200, b"close")
    assert await silent.closed() == b""
    await asyncio.wait_for(closing, 10)  # waits for the silent client, but only for the handshake's limit


async def test_an_abandoned_handshake_does_not_delay_a_drain(rig, pair):
    gateway = await rig(answer_stream, tls=pair)
    probe = await gateway.connect()  # as load balancers probe a port
    await eventually(lambda: gateway.gateway._parts.drain.places.opening)
    probe.leave()
    await asyncio.wait_for(gateway.gateway.aclose(2 * WAIT_S), WAIT_S)


async def test_plain_http_on_the_tls_port_is_refused(rig, pair):
    gateway = await rig(answer_stream, tls=pair)
    client = await gateway.send(post())
    assert b"HTTP/1.1" not in await client.closed()
    assert not gateway.workers[0].requests


async def test_mutual_tls_requires_a_client_certificate(rig, authority, pair, tmp_path):
    gateway = await rig(answer_stream, tls={**pair, "client_ca_file": authority.file})
    known = authority.issue("client", "somebody")
    assert (await (await gateway.connect(ssl=authority.client(known))).ask(post())).status == 200

    stranger = Authority(tmp_path, "stranger").issue("other", "somebody")
    for context in (authority.client(), authority.client(stranger)):
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await (await gateway.connect(ssl=context)).ask(post())
    assert len(gateway.workers[0].requests) == 1


@pytest.mark.parametrize("count", [150, 165, 180, 190])
async def test_the_end_of_a_tls_response_reaches_a_slow_reader(rig, authority, count):
    """The worker, or a TLS proxy in front of it, closes before the client has read most of the response."""
    events = [*(event("x" * 20_000) for _ in range(count)), DONE]
    head = STREAM_HEAD.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    context = authority.server(authority.issue("worker", "127.0.0.1"))

    def answer_and_go(listener):
        plain, _ = listener.accept()
        connection = context.wrap_socket(plain, server_side=True)
        connection.recv(65_536)
        connection.sendall(b"".join([head, *map(chunk, events), END]))
        connection.setblocking(False)
        with contextlib.suppress(ssl.SSLError):
            connection.unwrap()
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        gone = asyncio.create_task(asyncio.to_thread(answer_and_go, listener))
        gateway = await rig(worker_tls={"ca_file": authority.file})
        gateway.gateway._parts.unsent._write_buffer_bytes = 4_096
        gateway.join(f"https://127.0.0.1:{listener.getsockname()[1]}")
        client = await gateway.connect(limit=65_536)
        client.writer.transport.pause_reading()
        client.writer.write(post())
        await asyncio.wait_for(gone, WAIT_S)
        await settled(lambda: gateway.gateway.statistics()["buffered_response_bytes"])
        client.writer.transport.resume_reading()
        assert (await client.read()).body == b"".join(events)


# changed files


def look_twice(gateway):
    watch: FileWatch = gateway.gateway._files
    watch.look()
    watch.look()


def serial(client):
    return client.writer.get_extra_info("ssl_object").getpeercert()["serialNumber"]


async def test_a_new_certificate_is_served_without_a_restart(rig, authority, pair):
    gateway = await rig(answer_stream, tls=pair)
    before = await gateway.connect(ssl=authority.client())
    authority.issue("gateway", "127.0.0.1")
    look_twice(gateway)
    after = await gateway.connect(ssl=authority.client())
    assert serial(after) != serial(before)
    assert (await after.ask(post())).status == 200
    assert (await before.ask(post())).status == 200
    assert gateway.counted("reloads") == [("tls", "ok")]


async def test_an_invalid_certificate_leaves_the_old_one_in_use(rig, authority, pair, caplog):
    gateway = await rig(answer_stream, tls=pair)
    before = await gateway.connect(ssl=authority.client())
    other = authority.issue("other", "127.0.0.1")
    os.replace(other["key_file"], pair["key_file"])
    look_twice(gateway)
    assert serial(await gateway.connect(ssl=authority.client())) == serial(before)
    assert gateway.counted("reloads") == [("tls", "failed")]
    assert "old content stays" in caplog.text
    assert "does not belong" in str(vars(caplog.records[-1]))


async def test_a_client_ca_can_be_revoked(rig, authority, pair, tmp_path):
    trusted = tmp_path / "clients.pem"
    other = Authority(tmp_path, "other-ca")
    trusted.write_bytes(authority.ca.cert_pem.bytes() + other.ca.cert_pem.bytes())
    gateway = await rig(answer_stream, tls={**pair, "client_ca_file": str(trusted)})
    theirs = authority.client(other.issue("theirs", "x"))
    assert (await (await gateway.connect(ssl=theirs)).ask(post())).status == 200
    trusted.write_bytes(authority.ca.cert_pem.bytes())
    look_twice(gateway)
    with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
        await (await gateway.connect(ssl=theirs)).ask(post())
    ours = authority.client(authority.issue("ours", "x"))
    assert (await (await gateway.connect(ssl=ours)).ask(post())).status == 200


# to workers


async def test_requests_reach_workers_over_tls(rig, authority, worker_over_tls):
    worker = await worker_over_tls(answer_stream)
    gateway = await rig(worker_tls={"ca_file": authority.file})
    gateway.join(f"https://{worker.id}")
    client = await gateway.connect()
    for _ in range(2):
        reply = await client.ask(post())
        assert reply.status == 200
        assert reply.body.endswith(DONE)
    assert worker.connections == 1
    assert worker.requests[0].header(b"x-forwarded-proto") == b"http"


async def test_a_worker_with_another_ca_gets_no_request(rig, worker_over_tls):
    worker = await worker_over_tls(answer_stream)
    gateway = await rig()
    gateway.join(f"https://{worker.id}")
    reply = await gateway.ask(post())
    assert reply.status == 503
    assert "CERTIFICATE_VERIFY_FAILED" in gateway.recorded.last_reason
    assert not worker.requests


async def test_a_worker_with_another_name_gets_no_request(rig, authority, worker_over_tls):
    worker = await worker_over_tls(answer_stream, "workers.example")
    gateway = await rig(worker_tls={"ca_file": authority.file})
    gateway.join(f"https://{worker.id}")
    assert (await gateway.ask(post())).status == 503
    assert not worker.requests


@pytest.mark.parametrize("settings", [{"server_name": "workers.example"}, {"verify": False}])
async def test_worker_verification_follows_the_settings(rig, authority, worker_over_tls, settings):
    worker = await worker_over_tls(answer_stream, "workers.example")
    trusted = {"ca_file": authority.file} if "server_name" in settings else {}
    gateway = await rig(worker_tls={**trusted, **settings})
    gateway.join(f"https://{worker.id}")
    assert (await gateway.ask(post())).status == 200


async def test_the_client_certificate_is_sent_to_workers(rig, authority):
    context = authority.server(authority.issue("worker", "127.0.0.1"))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(authority.file)
    worker = await ScriptedWorker(answer_stream, tls=context).start()
    try:
        own = authority.issue("own", "gateway.example")
        gateway = await rig(worker_tls={"ca_file": authority.file, **own})
        gateway.join(f"https://{worker.id}")
        assert (await gateway.ask(post())).status == 200
    finally:
        await worker.stop()


async def test_a_worker_with_an_endless_handshake_is_replaced(rig, authority, worker_over_tls):
    mute = await asyncio.start_server(lambda reader, writer: reader.read(), "127.0.0.1", 0)
    good = await worker_over_tls(answer_stream)
    gateway = await rig(worker_tls={"ca_file": authority.file}, timeouts={"connect_s": 0.3})
    port = mute.sockets[0].getsockname()[1]
    gateway.join(f"https://127.0.0.1:{port}")
    gateway.join(f"https://{good.id}")
    client = await gateway.connect()
    for _ in range(3):
        assert (await client.ask(post())).status == 200
    mute.close()


async def test_a_worker_lost_in_a_tls_stream_gives_an_error_event(rig, authority, worker_over_tls):
    worker = await worker_over_tls(dying(STREAM_HEAD, chunk(event("a"))))
    gateway = await rig(worker_tls={"ca_file": authority.file})
    gateway.join(f"https://{worker.id}")
    reply = await gateway.ask(post())
    assert b"worker_died_in_stream" in reply.body


async def test_a_closed_idle_tls_connection_is_dialled_again(rig, authority, worker_over_tls):
    async def once(script):
        await answer_json(script)
        script.writer.close()

    worker = await worker_over_tls(once)
    gateway = await rig(worker_tls={"ca_file": authority.file})
    gateway.join(f"https://{worker.id}")
    client = await gateway.connect()
    for _ in range(5):
        assert (await client.ask(post(body=PLAIN))).status == 200
    assert worker.connections == 5
