import asyncio
import contextlib
import json
import logging
import os

import msgspec
import pytest

from router.config.model import Config
from router.security.keys import digest_of, new_key
from router.telemetry.logs import setup_logging
from tests.support.answers import END, STREAM_HEAD, answer_json, answer_stream, chunk, dying, event, json_head
from tests.support.raw_client import PLAIN, bearer, get, key_line, post
from tests.support.scripted_worker import ScriptedWorker
from tests.support.waiting import eventually

ALICE, BOB = "wr-" + "a" * 43, "wr-" + "b" * 43


@pytest.fixture
def auth():
    return {"api_keys": [key_line("alice", ALICE), key_line("bob", BOB)]}


async def test_a_valid_key_is_accepted_and_a_missing_one_answers_401(rig, auth):
    gateway = await rig(answer_stream, auth=auth)
    client = await gateway.connect()
    assert (await client.ask(post(extra=bearer(ALICE)))).status == 200
    assert (await client.ask(post(extra=bearer(BOB)))).status == 200
    reply = await gateway.ask(post())
    assert (reply.status, reply.code) == (401, "invalid_api_key")
    assert reply.header(b"www-authenticate") == b"Bearer"
    error = msgspec.json.decode(reply.body)["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", None)
    assert len(gateway.workers[0].requests) == 2
    assert gateway.counted("requests_by_key") == [("alice",), ("bob",)]
    assert ("invalid_api_key", "request", "", "") in gateway.counted("errors")


@pytest.mark.parametrize(
    "extra",
    [
        bearer("wr-" + "c" * 43),
        bearer(ALICE + "x"),
        bearer(ALICE[:-1]),
        bearer(ALICE) + bearer(ALICE),
        bearer(f"{ALICE}, Bearer {ALICE}"),
        b"Authorization: Basic " + ALICE.encode() + b"\r\n",
        b"Authorization: " + ALICE.encode() + b"\r\n",
        b"Authorization: Bearer\r\n",
        b"Authorization:\r\n",
        b"Authorization: Bearer sha256:" + digest_of(ALICE.encode()).hex().encode() + b"\r\n",
        b"Proxy-Authorization: Bearer " + ALICE.encode() + b"\r\n",
        b"api-key: " + ALICE.encode() + b"\r\n",
        b"Authorization: Bearer \xff\xfe\r\n",
    ],
)
async def test_invalid_keys_answer_401(rig, auth, extra):
    gateway = await rig(answer_stream, auth=auth)
    assert (await gateway.ask(post(extra=extra))).status == 401
    assert not gateway.workers[0].requests


@pytest.mark.parametrize(
    "extra", [b"authorization:bearer  " + ALICE.encode() + b" \r\n", b"X-API-Key: " + ALICE.encode() + b"\r\n"]
)
async def test_keys_are_accepted_in_each_header_spelling(rig, auth, extra):
    gateway = await rig(answer_stream, auth=auth)
    assert (await gateway.ask(post(extra=extra))).status == 200


async def test_messages_clients_get_an_anthropic_401(rig, auth):
    gateway = await rig(answer_json, auth=auth)
    reply = await gateway.ask(post(b"/v1/messages", extra=b"x-api-key: wrong\r\n"))
    assert reply.status == 401
    body = msgspec.json.decode(reply.body)
    assert (body["type"], body["error"]["type"]) == ("error", "authentication_error")
    reply = await gateway.ask(post(b"/v1/messages", body=PLAIN, extra=b"x-api-key: %s\r\n" % ALICE.encode()))
    assert reply.status == 200


async def test_health_paths_need_no_key(rig, auth):
    gateway = await rig(answer_stream, auth=auth, extra_paths={"/extra": ["POST"]})
    for path in (b"/health", b"/ping", b"/livez", b"/readyz", b"/version"):
        assert (await gateway.ask(get(path))).status == 200, path
    closed = (b"/v1/models", b"/v1/responses/resp_1", b"/v1/realtime", b"/no/such/path", b"/sleep", b"/health/", b"/")
    for path in (*closed, b"//v1/models", b"/%76ersion", b"/extra", b"/metrics"):
        assert (await gateway.ask(get(path))).status == 401, path
    assert (await gateway.ask(get(b"/v1/models", bearer(ALICE)))).status == 200
    assert (await gateway.ask(get(b"/no/such/path", bearer(ALICE)))).status == 404


async def test_a_preflight_needs_no_key(rig, auth):
    gateway = await rig(answer_stream, auth=auth, cors_origins=["https://chat.example"])
    asks = b"Origin: https://chat.example\r\nAccess-Control-Request-Method: POST\r\n"
    reply = await (await gateway.connect()).ask(get(b"/v1/chat/completions", asks, b"OPTIONS"), bodiless=True)
    assert reply.status == 204
    refused = await gateway.ask(post(extra=b"Origin: https://chat.example\r\n"))
    assert refused.header(b"access-control-allow-origin") == b"https://chat.example"


async def test_a_401_is_sent_before_the_body(rig, auth):
    gateway = await rig(answer_stream, auth=auth)
    client = await gateway.connect()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: gw\r\nContent-Length: 50000000\r\n"
    reply = await client.ask(head + b"Expect: 100-continue\r\n\r\n")
    assert (reply.status, reply.interim) == (401, [])
    assert gateway.gateway.statistics()["buffered_body_bytes"] == 0
    assert await client.closed() == b""


async def test_a_connection_survives_a_401_without_body(rig, auth):
    gateway = await rig(answer_stream, auth=auth)
    client = await gateway.connect()
    assert (await client.ask(get(b"/v1/models"))).status == 401
    assert (await client.ask(post(extra=bearer(ALICE)))).status == 200
    assert (await client.ask(get(b"/v1/models"))).status == 401, "a key counts for its own request only"


# files


def look_twice(gateway):
    gateway.gateway._files.look()
    gateway.gateway._files.look()


async def test_keys_follow_their_file(rig, tmp_path, caplog):
    file = tmp_path / "keys"
    file.write_text(f"# ours\n\n{key_line('alice', ALICE)}\n")
    gateway = await rig(answer_stream, auth={"api_keys_file": str(file)})

    async def status(key):
        return (await gateway.ask(post(extra=bearer(key)))).status

    assert [await status(ALICE), await status(BOB)] == [200, 401]
    staying = await gateway.connect()
    assert (await staying.ask(post(extra=bearer(ALICE)))).status == 200
    file.write_text(f"{key_line('bob', BOB)}\n")
    look_twice(gateway)
    assert [await status(ALICE), await status(BOB)] == [401, 200]
    assert (await staying.ask(post(extra=bearer(ALICE)))).status == 401

    for broken in (BOB, "bob sha256:00", b"\xff\xfe"):
        file.write_bytes(broken if isinstance(broken, bytes) else broken.encode())
        look_twice(gateway)
        assert await status(BOB) == 200
    file.unlink()
    look_twice(gateway)
    assert await status(BOB) == 200
    assert gateway.counted("reloads") == [("api_keys", "ok"), *[("api_keys", "failed")] * 4]
    assert [record.levelname for record in caplog.records].count("ERROR") == 4
    assert not any(BOB in str(vars(record)) for record in caplog.records)

    file.write_text("")
    look_twice(gateway)
    assert await status(BOB) == 401


async def test_a_changed_key_file_is_reloaded(rig, tmp_path, monkeypatch):
    monkeypatch.setattr("router.security.reload.LOOK_S", 0.02)
    file = tmp_path / "keys"
    file.write_text(key_line("alice", ALICE))
    gateway = await rig(answer_stream, auth={"api_keys_file": str(file)})
    later = tmp_path / "keys.new"
    later.write_text(key_line("bob", BOB))
    os.replace(later, file)
    await eventually(lambda: gateway.counted("reloads") == [("api_keys", "ok")])
    assert (await gateway.ask(post(extra=bearer(BOB)))).status == 200


# whose credentials a worker sees


WORKER_KEY = "worker-key-of-its-own"


@pytest.mark.parametrize(
    ("guarded", "settings", "worker_key", "expected"),
    [
        (False, {}, None, "client"),
        (False, {}, WORKER_KEY, "client"),
        (True, {}, None, "nobody"),
        (True, {}, WORKER_KEY, "worker"),
    ],
)
async def test_the_worker_gets_the_configured_credentials(auth, rig, guarded, settings, worker_key, expected):
    worker = await ScriptedWorker(answer_stream).start()
    workers = [{"url": f"http://{worker.id}", "api_key": worker_key}]
    gateway = await rig(workers=workers, auth={**(auth if guarded else {}), **settings})
    gateway.join(worker)
    extra = bearer(ALICE) + b"X-Api-Key: theirs\r\nConnection: authorization\r\n"
    assert (await gateway.ask(post(extra=extra))).status == 200
    sent = [each for each in worker.requests[0].lines if each.lower().startswith((b"authorization", b"x-api-key"))]
    own = {
        "client": [bearer(ALICE).strip(), b"X-Api-Key: theirs"],
        "worker": [f"Authorization: Bearer {WORKER_KEY}".encode()],
        "nobody": [],
    }
    assert sent == own[expected]
    if expected != "client":
        assert ALICE.encode() not in worker.requests[0].head
    await worker.stop()


async def test_a_worker_added_later_gets_its_key(rig, auth):
    gateway = await rig(answer_stream, auth=auth)
    client = await gateway.connect()  # one connection, so that its repeated head is reused
    for key in (WORKER_KEY, WORKER_KEY, None, "another-key"):
        gateway.gateway.learn_worker_key(gateway.workers[0].id, key)
        await client.ask(post(extra=bearer(ALICE)))
    sent = [request.header(b"authorization") for request in gateway.workers[0].requests]
    assert sent == [f"Bearer {WORKER_KEY}".encode()] * 2 + [None, b"Bearer another-key"]


# logs


PROMPT = "the-prompt-nobody-may-log"


async def failing(script):
    """Answer with an error that repeats the prompt, as servers do."""
    body = json.dumps({"error": {"message": f"cannot serve {PROMPT}", "type": "x", "code": 500}}).encode()
    await script.say(json_head(len(body), b"500 Internal Server Error"), body)


async def failing_in_stream(script):
    error = json.dumps({"error": {"message": f"cannot serve {PROMPT}", "code": 500}}).encode()
    await script.say(STREAM_HEAD, chunk(b"data: " + error + b"\n\n"), END)


breaking_http = dying(b"HTTP/1.1 200 OK\r\ncontent-length: zz\r\n\r\n" + PROMPT.encode())
breaking_in_stream = dying(STREAM_HEAD, chunk(event(PROMPT)), PROMPT.encode() + b"\r\n")


@pytest.mark.parametrize(("level", "log_format"), [("debug", "text"), ("debug", "json"), ("info", "json")])
async def test_logs_contain_no_key_and_no_prompt(rig, auth, capsys, level, log_format, monkeypatch):
    setup_logging(level, log_format)
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.DEBUG)  # libraries included
    asyncio.get_running_loop().set_debug(True)
    try:
        for script in (failing, failing_in_stream, breaking_http, breaking_in_stream):
            await traffic(rig, auth, script, monkeypatch)
    finally:
        root.setLevel(before)
        asyncio.get_running_loop().set_debug(False)
        for handler in [each for each in root.handlers if type(each).__name__ == "EventHandler"]:
            root.removeHandler(handler)
            handler.close()
        logging.getLogger("warmroute").setLevel(logging.NOTSET)
    captured = capsys.readouterr()
    logged = captured.out + captured.err
    assert "client connection failed" in logged, "nothing was logged"
    for secret in (PROMPT, ALICE, BOB, WORKER_KEY, "wrong-key-that-is-none"):
        assert secret not in logged
    assert "key_name" in logged and "alice" in logged


async def traffic(rig, auth, failure, monkeypatch):
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": PROMPT}], "stream": True}).encode()

    async def script(run):
        await failure(run)

    gateway = await rig(script, answer_stream, auth=auth, access_log=True)
    for worker in gateway.workers:
        gateway.gateway.learn_worker_key(worker.id, WORKER_KEY)
    client_breaks = (
        post(body=body, extra=bearer("wrong-key-that-is-none")),
        post(body=body[:-1], extra=bearer(ALICE)),
        post(body=PROMPT.encode(), extra=bearer(ALICE)),
        post(body=body, extra=bearer(BOB) + b"Bad Header: " + ALICE.encode() + b"\r\n"),
        get(b"/nowhere?key=" + ALICE.encode(), extra=bearer(ALICE)),
    )
    for raw in client_breaks:
        assert (await gateway.ask(raw)).status in (400, 401, 404)
    for _ in range(8):
        client = await gateway.send(post(body=body, extra=bearer(ALICE)))
        with contextlib.suppress(asyncio.IncompleteReadError):
            await client.read()
    leaving = await gateway.send(post(body=body, extra=bearer(ALICE)))
    leaving.leave()
    with monkeypatch.context() as patched:
        patched.setattr(gateway.core.dispatcher, "dispatch", crash)
        assert (await gateway.ask(post(body=body, extra=bearer(ALICE)))).status == 500
    with monkeypatch.context() as patched:
        patched.setattr("router.gateway.client.RequestDriver", crash)
        client = await gateway.send(post(body=body, extra=bearer(ALICE)))
        assert await client.closed() == b""
    await eventually(lambda: gateway.idle)
    assert gateway.counted("retries"), "no worker has failed"
    for endpoint in gateway.fleet.endpoints:  # the watch logs its reason
        assert PROMPT not in endpoint.reason
    assert PROMPT not in json.dumps([decision.to_builtins() for decision in gateway.core.log.latest(100)])


def crash(*arguments, **named):
    raise RuntimeError("a defect of ours")


def test_a_printed_config_contains_no_secrets(auth):
    from router.config.model import to_builtins

    settings = {
        "auth": auth,
        "admin_token": "a-token-that-is-secret",
        "workers": [{"url": "http://a:1", "api_key": WORKER_KEY}],
    }
    config = msgspec.convert(settings, Config)
    shown = json.dumps(to_builtins(config))
    assert "alice sha256:***" in shown
    for secret in ("a-token-that-is-secret", WORKER_KEY, digest_of(ALICE.encode()).hex()):
        assert secret not in shown


async def test_a_repeated_head_is_refused_once_its_key_is_no_longer_valid(rig, tmp_path):
    key = new_key()
    file = tmp_path / "keys"
    file.write_text(key_line("alice", key))
    gate = await rig(answer_json, auth={"api_keys_file": str(file)})
    client, raw = await gate.connect(), post(body=PLAIN, extra=f"Authorization: Bearer {key}\r\n".encode())
    assert [(await client.ask(raw)).status for _ in range(3)] == [200, 200, 200]
    assert gate.counted("requests_by_key") == [("alice",)] * 3
    file.write_text("")
    gate.gateway._parts.keys.load()
    assert (await client.ask(raw)).status == 401
