"""Aliases, the default model and fallbacks, over sockets: what a worker gets, and what a client is answered."""

import asyncio
import json

import msgspec
import pytest

from backends.worker import RankCache, ServedModel, WorkerFacts
from router.config.model import ModelConfig
from tests.support.answers import answer_json
from tests.support.raw_client import PLAIN, get, post
from tests.support.scripted_worker import ScriptedWorker
from tests.support.waiting import eventually

CACHES = {0: RankCache(16, 1_000, True)}
FORM = (
    b'--B\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF\x00model\r\n'
    b'--B\r\nContent-Disposition: form-data; name="model"\r\n\r\nfast\r\n--B--\r\n'
)


def facts(*names, lora=()):
    own = tuple(ServedModel(name, root=f"/models/{names[0]}", max_model_len=4_096) for name in names)
    return WorkerFacts("0.33.0", own + tuple(ServedModel(name, parent=names[0]) for name in lora), CACHES)


@pytest.fixture
async def fleet(rig):
    """Return a function that starts a gateway with one worker for each of `models`, by the name of its model."""
    workers = {}

    async def start(*models, script=answer_json, lora=(), **settings):
        gate = await rig(**settings)
        for name in models:
            workers[name] = await ScriptedWorker(script).start()
            gate.join(workers[name], facts(name, lora=lora))
        return gate, workers

    yield start
    for worker in workers.values():
        await worker.stop()


def sent(worker):
    return worker.requests[-1].body


async def test_an_alias_is_replaced_by_its_model_and_nothing_else_changes(fleet):
    gate, workers = await fleet("big", "small", models={"big": {"aliases": ["fast", "gpt-4o"]}})
    body = b'{ "messages" : [{"role":"user","content":"say \\"model\\": \\"fast\\""}],\n "model" :  "fast" , "x":1.50}'
    assert (await gate.ask(post(body=body))).status == 200
    assert sent(workers["big"]) == body.replace(b'"fast" ,', b'"big" ,')
    assert workers["big"].requests[-1].header(b"content-length") == str(len(sent(workers["big"]))).encode()
    assert gate.recorded.requests[-1].model == "big"
    assert workers["small"].requests == []


async def test_a_request_for_the_model_itself_goes_on_byte_for_byte(fleet):
    gate, workers = await fleet("big", "small", models={"big": {"aliases": ["fast"]}})
    body = b'{"model":"big","messages":[]}'
    assert (await gate.ask(post(body=body))).status == 200
    assert sent(workers["big"]) == body
    assert gate.gateway.statistics()["rewrites"]["model"] == 0


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"fast","messages":[],"tools":[{"properties":{"model":{"type":"string"}}}]}',
        b'{"model":"other","messages":[],"model":"fast"}',
        b'{"mod\\u0065l":"fast","messages":[]}',
        b'{"model":"f\\u0061st","messages":[]}',
    ],
    ids=["a second member inside", "twice", "an escaped name", "an escaped value"],
)
async def test_a_worker_always_reads_the_model_of_the_alias(fleet, body):
    gate, workers = await fleet("big", models={"big": {"aliases": ["fast"]}})
    assert (await gate.ask(post(body=body))).status == 200
    read = json.loads(sent(workers["big"]))
    assert read == json.loads(body) | {"model": "big"}


@pytest.mark.parametrize(
    "path",
    [b"/v1/chat/completions", b"/v1/completions", b"/v1/messages", b"/v1/responses", b"/v1/embeddings", b"/tokenize",
     b"/v1/chat/completions/render", b"/score", b"/v1/rerank", b"/pooling", b"/detokenize"],
)  # fmt: skip
async def test_aliases_work_on_every_path_with_a_json_body(fleet, path):
    gate, workers = await fleet("big", "small", models={"small": {"aliases": ["fast"]}})
    reply = await gate.ask(post(path, b'{"model":"fast","messages":[],"prompt":"x","input":"y"}'))
    assert reply.status == 200
    assert json.loads(sent(workers["small"]))["model"] == "small"


def form(body):
    head = b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: gw\r\nContent-Type: multipart/form-data; boundary=B\r\n"
    return b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body)


NO_MODEL = FORM[: FORM.rindex(b"--B\r\n")] + b"--B--\r\n"
OWN_PART = b'--B\r\nContent-Disposition: form-data; name="model"\r\n\r\nsmall\r\n'


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (FORM, FORM.replace(b"\r\nfast\r\n", b"\r\nsmall\r\n")),
        (FORM.replace(b"\r\nfast\r\n", b"\r\n\r\n"), FORM.replace(b"\r\nfast\r\n", b"\r\nsmall\r\n")),
        (NO_MODEL, OWN_PART + NO_MODEL),
    ],
    ids=["alias", "empty name", "no name"],
)
async def test_a_form_gets_the_model_of_its_alias_or_the_default(fleet, body, wanted):
    gate, workers = await fleet("big", "small", models={"small": {"aliases": ["fast"], "default": True}})
    assert (await gate.ask(form(body))).status == 200
    assert sent(workers["small"]) == wanted


async def test_the_model_of_a_query_is_replaced(fleet):
    gate, workers = await fleet("org/big", "small", models={"org/big": {"aliases": ["fast"]}})
    reply = await gate.ask(get(b"/v1/realtime?intent=x&model=fast&y=%20z"))
    assert reply.status == 200
    assert workers["org/big"].requests[-1].path == b"/v1/realtime?intent=x&model=org%2Fbig&y=%20z"


async def test_an_adapter_keeps_its_name_and_may_have_an_alias(fleet):
    gate, workers = await fleet("big", lora=("sql",), models={"big": {"aliases": ["fast"]}, "sql": {"aliases": ["db"]}})
    for name in ("sql", "db"):
        assert (await gate.ask(post(body=b'{"model":"%b","messages":[]}' % name.encode()))).status == 200
        assert json.loads(sent(workers["big"]))["model"] == "sql"
        assert gate.recorded.requests[-1].model == "sql"


async def test_a_name_on_request_is_resolved_or_refused_by_the_workers_of_its_base(fleet):
    async def resolver(script):
        if json.loads(script.seen.body)["model"] == "sql-none":
            body = b'{"error":{"message":"The model `sql-none` does not exist.","code":404}}'
            await script.say(b"HTTP/1.1 404 Not Found\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        else:
            await answer_json(script)

    settings = {"big": {"on_request": ["sql-*"]}, "small": {"aliases": ["fast"]}}
    gate, workers = await fleet("big", "small", script=resolver, models=settings)
    listed = (await gate.ask(get(b"/v1/models"))).body
    statuses = {}
    for name in ("sql-1", "sql-none", "other"):
        statuses[name] = await gate.ask(post(body=b'{"model":"%b","messages":[]}' % name.encode()))
    assert {name: reply.status for name, reply in statuses.items()} == {"sql-1": 200, "sql-none": 404, "other": 404}
    assert b"The model `sql-none` does not exist." in statuses["sql-none"].body
    assert b"this fleet serves" in statuses["other"].body
    assert [json.loads(request.body)["model"] for request in workers["big"].requests] == ["sql-1", "sql-none"]
    assert workers["small"].requests == []
    assert (await gate.ask(get(b"/v1/models"))).body == listed


async def test_names_on_request_change_while_the_gateway_runs(fleet):
    gate, _ = await fleet("big", "small")
    asked = post(body=b'{"model":"sql-1","messages":[]}')
    assert (await gate.ask(asked)).status == 404
    gate.gateway.use_models({"big": ModelConfig(on_request=("sql-*",))})
    assert (await gate.ask(asked)).status == 200


async def test_a_signed_body_loses_its_digest_when_its_model_is_replaced(fleet):
    gate, workers = await fleet("big", models={"big": {"aliases": ["fast"]}})
    digest = b"Content-Digest: sha-256=:AAAA:\r\n"
    for name, kept in ((b"fast", None), (b"big", b"sha-256=:AAAA:")):
        await gate.ask(post(body=b'{"model":"%b","messages":[]}' % name, extra=digest))
        assert workers["big"].requests[-1].header(b"content-digest") == kept


# the default


NAMELESS = b'{"messages":[]}'


async def test_without_a_model_a_fleet_of_several_refuses(fleet):
    gate, _ = await fleet("big", "small")
    reply = await gate.ask(post(body=NAMELESS))
    assert (reply.status, reply.code) == (400, "model_required")
    error = json.loads(reply.body)["error"]
    assert error["param"] == "model"
    assert error["message"] == "The request names no `model`, and this fleet serves several: big, small."


async def test_without_a_model_a_fleet_of_one_model_and_its_adapters_serves(fleet):
    gate, workers = await fleet("big", lora=("sql",))
    second = await gate.add(answer_json, facts("big", "another-name-of-big"))
    for _ in range(2):
        assert (await gate.ask(post(body=NAMELESS))).status == 200
    assert sent(workers["big"]) == sent(second) == NAMELESS


NO_NAMES = [b"", b'"model":null,', b'"model":"",', b'"model" : "\\u0062", "model":"",']


@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/v1/completions", b"/v1/responses", b"/v1/embeddings"])
@pytest.mark.parametrize("size", [0, 300_000, 1_500_000])
async def test_an_empty_name_is_none_in_bodies_of_every_size(fleet, path, size):
    gate, workers = await fleet("big", "small", models={"small": {"default": True}})
    for name in NO_NAMES:
        text = b'"%b"' % (b"x " * (size // 2))
        body = b'{%b"messages":[{"role":"user","content":%b}],"prompt":%b,"input":%b}' % (name, text, text, text)
        assert (await gate.ask(post(path, body))).status == 200
        assert json.loads(sent(workers["small"])) == json.loads(body) | {"model": "small"}
    assert workers["big"].requests == []


@pytest.mark.parametrize("query", [b"", b"?model=", b"?model=&intent=x", b"?model"])
async def test_an_empty_name_is_none_in_a_query(fleet, query):
    gate, workers = await fleet("big", "small", models={"small": {"default": True}})
    assert (await gate.ask(get(b"/v1/realtime" + query))).status == 200
    assert b"model=small" in workers["small"].requests[-1].path.replace(b"?", b"&").split(b"&")


async def test_an_empty_name_is_refused_by_a_fleet_of_several_and_served_by_one_of_one(fleet):
    gate, workers = await fleet("big")
    assert (await gate.ask(post(body=b'{"model":"","messages":[]}'))).status == 200
    assert sent(workers["big"]) == b'{"model":"","messages":[]}'
    gate, _ = await fleet("big", "small")
    for raw in (post(body=b'{"model":"","messages":[]}'), get(b"/v1/realtime?model=")):
        assert (await gate.ask(raw)).code == "model_required"


async def test_paths_that_name_no_model_need_none(fleet):
    gate, workers = await fleet("big", "small", extra_paths={"/v1/mine": ["POST"]})
    assert (await gate.ask(post(b"/v1/mine", NAMELESS))).status == 200
    made = json.dumps({"id": "resp_1", "object": "response"}).encode()
    gate.gateway._parts.identifier.pins.learn("resp_1", workers["small"].id)
    assert (await gate.ask(get(b"/v1/responses/resp_1"))).status == 200
    assert workers["small"].requests[-1].path == b"/v1/responses/resp_1"
    follow_up = b'{"input":"x","previous_response_id":"resp_1"}'
    assert (await gate.ask(post(b"/v1/responses", follow_up))).status == 200
    assert sent(workers["small"]) == follow_up
    assert made


# fallbacks


FALLBACK = {"big": {"fallback": "small"}, "small": {"fallback": "tiny"}}


async def test_a_model_without_a_ready_worker_falls_back(fleet):
    gate, workers = await fleet("big", "small", "tiny", models=FALLBACK)
    gate.fleet.drain(workers["big"].id)
    assert (await gate.ask(post(body=b'{"model":"big","messages":[]}'))).status == 200
    assert sent(workers["small"]) == b'{"model":"small","messages":[]}'
    assert gate.counted("fallbacks") == [("big", "small")]
    assert gate.gateway.statistics()["rewrites"]["model"] == 1
    gate.fleet.drain(workers["small"].id)
    assert (await gate.ask(post(body=b'{"model":"big","messages":[]}'))).status == 200
    assert sent(workers["tiny"]) == b'{"model":"tiny","messages":[]}'


async def test_a_model_whose_workers_have_left_falls_back(fleet):
    gate, workers = await fleet("big", "small", models={"big": {"aliases": ["fast"], "fallback": "small"}})
    gate.fleet.remove(workers["big"].id)
    for name in (b"big", b"fast"):
        assert (await gate.ask(post(body=b'{"model":"%b","messages":[]}' % name))).status == 200
        assert sent(workers["small"]) == b'{"model":"small","messages":[]}'


async def test_a_model_whose_workers_refuse_falls_back(fleet):
    async def refusing_big(script):
        busy = b'"big"' in script.seen.body
        await answer_json(script, b"503 Busy" if busy else b"200 OK")

    gate, workers = await fleet("big", "small", script=refusing_big, models=FALLBACK)
    assert (await gate.ask(post(body=b'{"model":"big","messages":[]}'))).status == 200
    assert sent(workers["small"]) == b'{"model":"small","messages":[]}'
    assert gate.counted("fallbacks") == [("big", "small")]
    await eventually(lambda: gate.idle)


@pytest.fixture
def full(fleet):
    """Return a function that starts a gateway whose model `big` has one worker, at its limit of one request.

    The worker answers each request when it is told to: `let[model]` is released once for each.
    """
    let = {name: asyncio.Semaphore(0) for name in ("big", "small")}

    async def slow(script):
        await let[json.loads(script.seen.body)["model"]].acquire()
        await answer_json(script)

    async def start(**settings):
        limits = {"max_requests_per_worker": 1, **settings.pop("limits", {})}
        gate, workers = await fleet("big", "small", script=slow, models=FALLBACK, limits=limits, **settings)
        return gate, workers, let, await asked(gate, workers["big"])

    return start


async def ask_big(gate, **members):
    """Send a request for `big` on a connection of its own; return the connection."""
    return await gate.send(post(body=json.dumps({"model": "big", "messages": [], **members}).encode()))


async def asked(gate, worker):
    """Send a request for `big`, and wait until `worker` has it."""
    before = len(worker.requests)
    client = await ask_big(gate)
    await eventually(lambda: len(worker.requests) > before)
    return client


def queued(gate):
    return gate.gateway.statistics()["queued"]


async def test_a_model_at_its_limit_falls_back_at_once_if_no_request_may_wait(full):
    gate, workers, let, first = await full(timeouts={"queue_s": 0})
    second = await asked(gate, workers["small"])
    refused = await gate.ask(post(body=b'{"model":"big","messages":[]}'))
    assert (refused.status, refused.code) == (503, "overloaded")
    for name in let:
        let[name].release()
    assert [(await client.read()).status for client in (first, second)] == [200, 200]


async def test_a_model_at_its_limit_falls_back_after_the_wait_of_the_queue(full):
    gate, workers, let, first = await full(timeouts={"queue_s": 0.2})
    second = await ask_big(gate)
    await eventually(lambda: queued(gate) == 1)
    assert workers["small"].requests == []
    await eventually(lambda: workers["small"].requests)
    let["small"].release()
    let["big"].release()
    assert [(await client.read()).status for client in (second, first)] == [200, 200]
    assert gate.counted("fallbacks") == [("big", "small")]
    assert gate.core.statistics()["rejected"] == 0
    await eventually(lambda: gate.idle)


async def test_a_model_at_its_limit_falls_back_at_once_if_the_queue_is_full(full):
    gate, workers, let, first = await full(limits={"max_queued_requests": 1})
    second = await ask_big(gate)
    await eventually(lambda: queued(gate) == 1)
    third = await asked(gate, workers["small"])
    for name in ("small", "big", "big"):
        let[name].release()
    assert [(await client.read()).status for client in (first, second, third)] == [200, 200, 200]
    assert [json.loads(request.body)["model"] for request in workers["big"].requests] == ["big", "big"]


async def test_requests_for_a_model_at_its_limit_get_its_workers_in_order(full):
    gate, workers, let, first = await full()
    waiting = []
    for place in range(3):
        waiting.append(await ask_big(gate, user=f"number {place}"))
        await eventually(lambda place=place: queued(gate) == place + 1)
    gate.fleet.drain(workers["small"].id)  # all that wait are offered, and none gets a place
    await eventually(lambda: gate.recorded.events.count("queued") >= 6)
    for place, client in enumerate((first, *waiting)):
        let["big"].release()
        assert (await client.read()).status == 200
        await eventually(lambda place=place: queued(gate) == max(0, 2 - place))
    asked_for = [json.loads(request.body).get("user") for request in workers["big"].requests]
    assert asked_for == [None, "number 0", "number 1", "number 2"]
    assert workers["small"].requests == []


async def test_a_request_whose_fallback_is_full_too_is_refused_after_the_wait(full):
    gate, workers, let, first = await full(timeouts={"queue_s": 0.2})
    second = await asked(gate, workers["small"])
    refused = await gate.ask(post(body=b'{"model":"big","messages":[]}'))
    assert (refused.status, refused.code) == (503, "overloaded")
    assert refused.header(b"retry-after") == b"1"
    for name in let:
        let[name].release()
    assert [(await client.read()).status for client in (first, second)] == [200, 200]


async def test_a_client_that_leaves_while_it_waits_for_room_is_forgotten(full):
    gate, _, let, first = await full()
    second = await ask_big(gate)
    await eventually(lambda: queued(gate) == 1)
    second.writer.close()
    await eventually(lambda: queued(gate) == 0)
    let["big"].release()
    assert (await first.read()).status == 200
    await eventually(lambda: gate.idle)


async def test_without_a_ready_fallback_a_request_waits_for_its_own_model(fleet):
    gate, workers = await fleet("big", "small", models={"big": {"fallback": "small"}})
    for worker in workers.values():
        gate.fleet.drain(worker.id)
    client = await gate.send(post(body=b'{"model":"big","messages":[]}'))
    await eventually(lambda: gate.gateway.statistics()["queued"] == 1)
    gate.fleet.undrain(workers["small"].id)
    assert (await client.read()).status == 200
    assert json.loads(sent(workers["small"]))["model"] == "small"


async def test_a_stored_response_never_falls_back(fleet):
    gate, workers = await fleet("big", "small", models=FALLBACK, timeouts={"queue_s": 0.05})
    gate.gateway._parts.identifier.pins.learn("resp_1", workers["big"].id)
    gate.fleet.probe_failed(workers["big"].id, "gone", gate.loop.time())
    for _ in range(3):
        gate.fleet.probe_failed(workers["big"].id, "gone", gate.loop.time())
    body = b'{"model":"big","input":"x","previous_response_id":"resp_1"}'
    assert (await gate.ask(post(b"/v1/responses", body))).status == 503
    assert workers["small"].requests == []


async def test_the_usage_of_a_fallback_is_learned_for_the_model_that_served(fleet):
    gate, workers = await fleet("big", "small", models=FALLBACK)
    gate.fleet.drain(workers["big"].id)
    await gate.ask(post(body=b'{"model":"big","messages":[]}'))
    await eventually(lambda: gate.idle)
    assert gate.identity.observed == [("small", 40)]


# what is listed


async def test_aliases_are_listed_beside_their_models(fleet):
    gate, _ = await fleet("big", "small", models={"big": {"aliases": ["fast"]}, "absent": {"aliases": ["ghost"]}})
    listed = json.loads((await gate.ask(get(b"/v1/models"))).body)["data"]
    assert [(card["id"], card["root"]) for card in listed] == [
        ("big", "/models/big"),
        ("small", "/models/small"),
        ("fast", "big"),
    ]
    assert listed[2]["max_model_len"] == 4_096


@pytest.mark.parametrize("spelling", [b"org%2Fbig", b"org/big"])
async def test_one_model_is_shown(fleet, spelling):
    gate, _ = await fleet("org/big", "small")
    reply = await gate.ask(get(b"/v1/models/" + spelling))
    assert (reply.status, json.loads(reply.body)["id"]) == (200, "org/big")


async def test_an_alias_is_shown_and_an_unknown_model_is_not_found(fleet):
    gate, _ = await fleet("big", models={"big": {"aliases": ["fast"]}})
    assert json.loads((await gate.ask(get(b"/v1/models/fast"))).body)["id"] == "fast"
    reply = await gate.ask(get(b"/v1/models/none"))
    assert (reply.status, reply.code) == (404, "model_not_found")
    refused = await gate.ask(post(b"/v1/models/fast", PLAIN))
    assert (refused.status, refused.header(b"allow")) == (405, b"GET, HEAD, OPTIONS")


async def test_an_operator_can_ask_about_an_alias(fleet):
    gate, _ = await fleet("big", models={"big": {"aliases": ["fast"]}})
    previewed = await gate.gateway.preview("/v1/chat/completions", {}, b'{"model":"fast","messages":[]}')
    assert (previewed.request.model, list(previewed.fallbacks)) == ("big", [])
    assert gate.gateway.statistics()["rewrites"]["model"] == 0


# changes while the gateway runs


def settings_of(**models):
    return {name: msgspec.convert(fields, ModelConfig) for name, fields in models.items()}


async def test_an_alias_that_is_added_serves_the_next_request_of_an_open_connection(fleet):
    gate, workers = await fleet("big", "small")
    client = await gate.connect()
    body = b'{"model":"fast","messages":[]}'
    client.writer.write(post(body=body))
    assert (await client.read()).status == 404
    gate.gateway.use_models(settings_of(big={"aliases": ["fast"]}))
    client.writer.write(post(body=body))
    assert (await client.read()).status == 200
    assert json.loads(sent(workers["big"]))["model"] == "big"
    listed = json.loads((await gate.ask(get(b"/v1/models"))).body)["data"]
    assert "fast" in {model["id"] for model in listed}
    gate.gateway.use_models({})
    assert (await gate.ask(post(body=body))).status == 404


async def test_a_default_and_service_levels_change(fleet):
    gate, workers = await fleet("big", "small")
    body = b'{"messages":[]}'
    assert (await gate.ask(post(body=body))).code == "model_required"
    gate.gateway.use_models(settings_of(small={"default": True, "slo": {"ttft": 2.0}}))
    assert (await gate.ask(post(body=body))).status == 200
    assert json.loads(sent(workers["small"]))["model"] == "small"
    assert gate.gateway._parts.service_levels.of("default", "small").ttft == 2.0
    assert gate.gateway._parts.service_levels.any


async def test_a_fallback_that_is_added_serves_a_request_that_waits(fleet):
    gate, workers = await fleet("big", "small")
    gate.fleet.drain(workers["big"].id)
    client = await gate.send(post(body=b'{"model":"big","messages":[]}'))
    await eventually(lambda: gate.gateway.statistics()["queued"] == 1)
    gate.gateway.use_models(settings_of(big={"fallback": "small"}))
    assert (await client.read()).status == 200
    assert json.loads(sent(workers["small"]))["model"] == "small"
