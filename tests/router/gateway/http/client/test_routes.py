import asyncio
import json
import logging

import httptools
import pytest

from backends.worker import ServedModel, WorkerFacts
from router.errors import RequestError
from router.gateway.http.client.access_log import AccessLog
from router.requests.request_head import parse_head
from router.requests.routes import FORBIDDEN_PATHS, ROUTES, RouteTable, forbidden
from tests.support.answers import END, STREAM_HEAD, answer_json, answer_stream, chunk, says
from tests.support.raw_client import PLAIN, get, post


def test_the_route_table_finds_exact_stored_and_configured_paths():
    table = RouteTable({"/my/*": ("get",), "/one": ("POST",)})
    assert table.find("/v1/chat/completions").by_prefix
    assert table.find("/v1/responses/resp_1").pattern == "/v1/responses/{id}"
    assert table.find("/v1/responses/resp_1/cancel").methods == ("POST",)
    assert table.find("/my/thing/deep").methods == ("GET",)
    assert table.find("/one").methods == ("POST",)
    for path in ("/", "/v1/chat/completions/", "/v1/responses/", "/v1/responses/a/b", "/my", "/V1/models", "/metrics"):
        assert table.find(path) is None


@pytest.mark.parametrize("path", sorted(FORBIDDEN_PATHS))
def test_no_configuration_forwards_a_path_that_changes_a_worker(path):
    table = RouteTable(dict.fromkeys((path, "/*", path + "/*"), ("POST",)))
    spellings = [path, path + "/", "/" + path, path.replace("s", "%73", 1), path.replace("/", "/./", 1), "/x/.." + path]
    for spelling in spellings:
        assert table.find(spelling) is None
    assert forbidden(path)
    assert path not in {route.pattern for route in ROUTES}


@pytest.mark.parametrize("path", ["/v1/responses/../sleep", "/v1/responses/%2e%2e/cancel", "/v1/responses/a%2f..%2fb"])
def test_dots_in_a_response_id_are_not_forwarded(path):
    assert RouteTable().find(path) is None


@pytest.mark.parametrize(
    "path",
    [route.pattern for route in ROUTES if route.methods == ("POST",) and not route.pinned and not route.by_prefix],
)
async def test_other_inference_paths_are_forwarded_unread(rig, path):
    gate = await rig(answer_json)
    body = b'{"model":"m","messages":3,"odd":[null]}' if "audio" not in path else b"--"
    reply = await gate.ask(post(path.encode(), body))
    assert reply.status == 200
    assert gate.workers[0].requests[0].body == body
    assert gate.recorded.requests[0].prompt is None
    assert gate.recorded.requests[0].model == ("m" if "audio" not in path else None)


async def test_an_unknown_body_is_left_to_the_worker(rig):
    gate = await rig(answer_json)
    assert (await gate.ask(post(b"/v1/embeddings", b"{nonsense"))).status == 200
    assert gate.workers[0].requests[0].body == b"{nonsense"


async def test_the_model_of_multipart_audio_chooses_the_worker(rig):
    gate = await rig(answer_json)
    speech = await gate.add(answer_json, WorkerFacts(models=(ServedModel("whisper"),)))
    body = (
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF\x00\x01\r\n'
        b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n--b--\r\n'
    )
    raw = post(b"/v1/audio/transcriptions", body).replace(b"application/json", b"multipart/form-data; boundary=b")
    for _ in range(3):
        assert (await gate.ask(raw)).status == 200
    assert len(speech.requests) == 3
    assert speech.requests[0].body == body


async def test_a_stored_response_is_requested_from_its_worker(rig):
    async def script(script):
        name = script.writer.get_extra_info("sockname")[1]
        if script.seen.lines[0].startswith(b"POST /v1/responses HTTP") and b"stream" in script.seen.body:
            created = b'event: response.created\ndata: {"response":{"id":"resp_s%d"}}\n\n' % name
            delta = b'event: response.output_text.delta\ndata: {"delta":"x"}\n\n'
            await script.say(STREAM_HEAD, chunk(created), chunk(delta), END)
        else:
            await answer_json(script, body=b'{"id":"resp_%d","at":%d}' % (name, name))

    gate = await rig(script, script, script)
    for raw in (b'{"model":"m","input":"x"}', b'{"model":"m","input":"x","stream":true}'):
        for _ in range(3):
            reply = await gate.ask(post(b"/v1/responses", raw))
            name = reply.body.partition(b'"resp_')[2].partition(b'"')[0]
            port = int(name.strip(b"s"))
            for _ in range(3):
                again = await gate.ask(get(b"/v1/responses/resp_" + name))
                assert json.loads(again.body)["at"] == port
                again = await gate.ask(post(b"/v1/responses/resp_%s/cancel" % name, b""))
                assert json.loads(again.body)["at"] == port
                body = b'{"model":"m","previous_response_id":"resp_%s"}' % name
                again = await gate.ask(post(b"/v1/responses", body))
                assert json.loads(again.body)["at"] == port
    reply = await gate.ask(get(b"/v1/responses/resp_unknown"))
    assert (reply.status, reply.code) == (404, "response_not_found")


async def test_unknown_paths_answer_404_and_methods_405(rig):
    gate = await rig(answer_json)
    client = await gate.connect()
    for path in (b"/nope", b"/sleep", b"/collective_rpc", b"/metrics", b"/v1/load_lora_adapter"):
        reply = await client.ask(get(path))
        assert (reply.status, reply.code) == (404, "path_not_found")
    reply = await client.ask(get(b"/v1/chat/completions"))
    assert (reply.status, reply.code) == (405, "method_not_allowed")
    assert reply.header(b"allow") == b"POST, OPTIONS"
    reply = await client.ask(post(b"/v1/models"))
    assert (reply.status, reply.header(b"allow")) == (405, b"GET, HEAD, OPTIONS")
    assert gate.workers[0].requests == []


async def test_models_are_the_union_over_the_fleet(rig):
    gate = await rig(answer_json)
    cards = (ServedModel("m"), ServedModel("lora", root="/l", parent="m"), ServedModel("n", "r", None, 99))
    await gate.add(answer_json, WorkerFacts(models=cards))
    listed = json.loads((await gate.ask(get(b"/v1/models"))).body)
    assert listed["object"] == "list"
    assert {card["id"] for card in listed["data"]} == {"m", "lora", "n"}
    assert listed["data"][-1] == {
        "id": "n",
        "object": "model",
        "created": 0,
        "owned_by": "vllm",
        "root": "r",
        "parent": None,
        "max_model_len": 99,
    }


async def test_health_and_version_answer_get_and_head(rig):
    gate = await rig(answer_json)
    client = await gate.connect()
    for path in (b"/health", b"/livez", b"/readyz", b"/version", b"/ping"):
        full = await client.ask(get(path))
        assert full.status == 200
        head = await client.ask(get(path, method=b"HEAD"), bodiless=True)
        assert head.header(b"content-length") == b"%d" % len(full.body)
    assert (await client.ask(post(b"/ping", b"{}"))).status == 200
    assert "version" in json.loads((await client.ask(get(b"/version"))).body)
    gate.fleet.drain(gate.workers[0].id)
    assert (await client.ask(get(b"/livez"))).status == 200
    for path in (b"/health", b"/readyz"):
        reply = await client.ask(get(path))
        assert (reply.status, reply.header(b"retry-after")) == (503, b"1")


async def test_a_fleet_of_half_open_workers_is_ready(rig):
    gate = await rig(answer_json)
    (endpoint,) = gate.fleet.endpoints
    client = await gate.connect()
    for second in range(3):
        gate.fleet.probe_failed(endpoint.id, "refused", second)
    for path in (b"/health", b"/ping", b"/readyz"):
        assert (await client.ask(get(path))).status == 503
    gate.fleet.probe_succeeded(endpoint.id, endpoint.facts, 4.0)
    for path in (b"/health", b"/ping", b"/readyz"):
        assert (await client.ask(get(path))).status == 200


PREFLIGHT = b"Origin: http://a.example\r\nAccess-Control-Request-Method: POST\r\n"


async def test_preflights_and_cross_origin_responses_carry_cors_headers(rig):
    async def script(script):
        body = b"{}"
        await script.say(
            b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\naccess-control-allow-origin: *\r\n\r\n" + body,
        )

    gate = await rig(script, cors_origins=["http://a.example"])
    reply = await gate.ask(get(b"/v1/chat/completions", asking(b"Authorization"), b"OPTIONS"))
    assert reply.status == 204
    assert reply.header(b"access-control-allow-origin") == b"http://a.example"
    assert reply.header(b"access-control-allow-methods") == b"POST, OPTIONS"
    assert b"authorization" in reply.header(b"access-control-allow-headers")
    assert reply.header(b"access-control-max-age") == b"600"
    assert b"\r\nvary: origin\r\n" in reply.head
    reply = await gate.ask(post(body=PLAIN, extra=b"Origin: http://a.example\r\n"))
    assert reply.head.count(b"access-control-allow-origin") == 1
    assert reply.header(b"access-control-allow-origin") == b"http://a.example"
    for raw in (
        get(b"/v1/chat/completions", PREFLIGHT.replace(b"a.ex", b"b.ex"), b"OPTIONS"),
        post(body=PLAIN, extra=b"Origin: http://b.example\r\n"),
    ):
        assert (await gate.ask(raw)).header(b"access-control-allow-origin") is None


def asking(names):
    return PREFLIGHT + b"Access-Control-Request-Headers: " + names + b"\r\n"


async def allowed(gate, names):
    reply = await gate.ask(get(b"/v1/chat/completions", asking(names), b"OPTIONS"))
    assert b"\r\nvary: access-control-request-headers\r\n" in reply.head
    return reply.header(b"access-control-allow-headers")


async def test_any_header_allows_each_requested_header(rig):
    gate = await rig(cors_origins=["*"])
    assert await allowed(gate, b"Authorization,x-mine, a b,,x-mine") == b"authorization, x-mine"
    reply = await gate.ask(get(b"/v1/chat/completions", PREFLIGHT, b"OPTIONS"))
    assert (reply.status, reply.header(b"access-control-allow-headers")) == (204, None)


async def test_without_cors_the_workers_cors_headers_are_relayed(rig):
    script = says(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\naccess-control-allow-origin: *\r\n\r\n{}")
    gate = await rig(script)
    assert (await gate.ask(post(body=PLAIN))).header(b"access-control-allow-origin") == b"*"
    reply = await gate.ask(get(b"*", PREFLIGHT, b"OPTIONS"))
    assert (reply.status, reply.header(b"access-control-allow-methods")) == (204, None)
    assert (await gate.ask(get(b"/nope", b"", b"OPTIONS"))).status == 404


async def test_any_origin_is_allowed_by_a_star(rig):
    gate = await rig(answer_json, cors_origins=["*"])
    reply = await gate.ask(get(b"/livez", b"Origin: http://x\r\n"))
    assert (reply.header(b"access-control-allow-origin"), reply.header(b"vary")) == (b"*", None)


async def test_the_access_log_has_no_content_of_the_client(rig, caplog):
    gate = await rig(answer_stream, access_log=True, trusted_proxies=["127.0.0.0/8", "10.0.0.0/8"])
    caplog.set_level(logging.INFO, "warmroute.access")
    forwarded = b"X-Forwarded-For: 6.6.6.6, 203.0.113.9, 10.1.1.1\r\nX-Request-Id: r\r\nAuthorization: secret\r\n"
    await gate.ask(post(extra=forwarded))
    await gate.ask(get(b"/nope", b"X-Forwarded-For: nonsense\r\n"))
    first, second = [vars(record) for record in caplog.records if record.name == "warmroute.access"]
    assert (first["method"], first["path"], first["status"]) == ("POST", "/v1/chat/completions", 200)
    assert first["client"] == "203.0.113.9"
    assert first["worker"] == gate.workers[0].id
    assert first["request_id"] == "r"
    assert first["bytes"] > 300 and 0 <= first["ttft_s"] <= first["duration_s"]
    assert "secret" not in str(first)
    assert (second["status"], second["client"]) == (404, "127.0.0.1")


async def test_the_access_log_has_placement_and_token_counts(rig, caplog):
    gate = await rig(answer_stream, access_log=True)
    caplog.set_level(logging.INFO, "warmroute.access")
    gate.fleet.describe(gate.workers[0].id, {}, 1.0, "left", "mixed")
    await gate.ask(post())
    (line,) = [vars(record) for record in caplog.records if record.name == "warmroute.access"]
    assert (line["model"], line["route"], line["attempts"]) == ("m", "default", 1)
    assert (line["worker"], line["worker_name"]) == (gate.workers[0].id, "left")
    assert line["policy"] == gate.core.log.latest(1)[0].policy
    assert (line["prompt_tokens"], line["cached_tokens"], line["output_tokens"]) == (40, 32, 3)
    assert line["events"] >= 2
    assert not {"left_in", "error", "key_name"} & line.keys()


async def test_the_access_log_names_the_error_of_a_request_without_a_worker(rig, caplog):
    gate = await rig(access_log=True, timeouts={"queue_s": 0})
    caplog.set_level(logging.INFO, "warmroute.access")
    await gate.ask(post())
    (line,) = [vars(record) for record in caplog.records if record.name == "warmroute.access"]
    assert (line["status"], line["error"], line["worker"], line["policy"]) == (503, "no_worker_available", None, None)
    assert (line["attempts"], line["model"]) == (0, "m")


@pytest.mark.parametrize("coding", [b"gzip", b"GZIP", b"br, identity", b"x"])
async def test_an_encoded_body_is_refused_with_415(rig, coding):
    gate = await rig(answer_json)
    reply = await gate.ask(post(body=PLAIN, extra=b"Content-Encoding: " + coding + b"\r\n"))
    assert (reply.status, reply.code) == (415, "unsupported_content_encoding")
    assert reply.header(b"accept-encoding") == b"identity"
    assert not gate.workers[0].requests


async def test_a_body_with_the_coding_identity_is_forwarded(rig):
    gate = await rig(answer_json)
    assert (await gate.ask(post(body=PLAIN, extra=b"Content-Encoding: Identity\r\n"))).status == 200


@pytest.mark.parametrize(
    ("forwarded", "client"),
    [
        ("203.0.113.9:4711, 10.1.1.1:99", "203.0.113.9"),
        ("[2001:db8::1]:4, 10.1.1.1", "2001:db8::1"),
        ("6.6.6.6, [2001:db8::1]", "2001:db8::1"),
        ("203.0.113.9, ::ffff:10.1.1.1", "203.0.113.9"),
        ("6.6.6.6, [203.0.113.9, 10.1.1.1", "10.1.1.1"),
        ("6.6.6.6, 1.2.3.4:port", "127.0.0.1"),
        ("6.6.6.6, 2001:db8::1:", "127.0.0.1"),
    ],
)
def test_forwarded_addresses_are_parsed_as_proxies_write_them(forwarded, client):
    raw = get(extra=b"X-Forwarded-For: " + forwarded.encode() + b"\r\n")
    head = parse_head(raw, httptools.HttpRequestParser(object()))
    log = AccessLog(True, ["127.0.0.0/8", "10.0.0.0/8"])
    assert log.client(head, "127.0.0.1") == client
    assert log.client(head, "::ffff:127.0.0.1") in (client, "::ffff:127.0.0.1")


async def test_session_and_priority_are_read_from_headers(rig):
    gate = await rig(answer_json, auth={"allow": ["priority"]})
    body = b'{"model":"m","messages":[],"session_id":"in-body","priority":3,"max_tokens":7}'
    await gate.ask(post(body=body, extra=b"X-Session-ID: in-header\r\nX-Vllm-Priority: -2\r\n"))
    await gate.ask(post(body=PLAIN, extra=b"X-Session-ID: in-header\r\nX-Vllm-Priority: odd\r\n"))
    first, second = gate.recorded.requests
    assert (first.session_id, first.priority, first.max_tokens) == ("in-body", -2, 7)
    assert (second.session_id, second.priority, second.max_tokens) == ("in-header", 0, None)


async def test_request_kind_and_output_hint_are_read(rig):
    gate = await rig(answer_json)
    hint = b"X-Warmroute-Expected-Output-Tokens: "
    tools = b'{"model":"m","messages":[],"session_id":"s","tools":[{"type":"function"}]}'
    for body, extra in (
        (PLAIN, b""),
        (PLAIN, hint + b"900\r\nX-Session-ID: s\r\n"),
        (tools, hint + b"many\r\n"),
        (PLAIN, hint + b"-1\r\n"),
    ):
        await gate.ask(post(body=body, extra=extra))
    seen = [(one.kind.value, one.hinted_tokens) for one in gate.recorded.requests]
    assert seen == [("single", None), ("conversation", 900), ("agent", None), ("single", None)]
    assert gate.workers[0].requests[1].header(b"x-warmroute-expected-output-tokens") == b"900"


async def test_a_dry_run_sends_no_request(rig):
    gate = await rig(answer_json)
    headers = {"X-Session-ID": "s", "X-Request-Id": "r"}
    for later in (None, asyncio.Event()):
        gate.identity.later = later
        if later is not None:
            later.set()
        request = (await gate.gateway.preview("/v1/chat/completions?x", headers, PLAIN)).request
        assert (request.id, request.model, request.session_id, request.prompt_tokens) == ("r", "m", "s", 40)
    request = (await gate.gateway.preview("/v1/embeddings", {}, b'{"model":"e","input":"12345678"}')).request
    assert (request.model, request.prompt, request.prompt_tokens) == ("e", None, 8)
    with pytest.raises(RequestError, match="no such path"):
        await gate.gateway.preview("/sleep", {}, b"")
    assert gate.recorded.events == []
