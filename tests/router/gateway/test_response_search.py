import asyncio
import json

import pytest

from backends.worker import RankCache, ServedModel, WorkerFacts
from router.requests import response_search
from router.requests.response_search import may_be_stored
from tests.support.answers import answer_json, silent
from tests.support.raw_client import get, key_line, post
from tests.support.scripted_worker import ScriptedWorker
from tests.support.waiting import eventually

RESPONSES = b"/v1/responses"
ONE = b"/v1/responses/resp_1"
KEY = "wr-" + "a" * 43


class Store:
    """A worker's stored responses, as vLLM serves them, and what it was asked."""

    def __init__(self, *ids, key=None):
        self.ids, self.key, self.asked = set(ids), key, []

    async def __call__(self, script):
        seen = script.seen
        path, body = seen.path.decode().partition("?")[0], json.loads(seen.body or b"{}")
        response_id = path.split("/")[3] if path.count("/") > 2 else body.get("previous_response_id")
        self.asked.append((seen.method.decode(), path))
        if self.key is not None and seen.header(b"authorization") != self.key:
            await answer_json(script, b"401 Unauthorized", b"{}")
        elif response_id is not None and response_id not in self.ids:
            text = f"Response with id '{response_id}' not found."
            await answer_json(script, b"404 Not Found", json.dumps({"error": {"message": text}}).encode())
        else:
            made = response_id
            if seen.method == b"POST" and path == "/v1/responses":
                made = f"resp_{len(self.ids)}_{script.writer.get_extra_info('sockname')[1]}"
                self.ids.add(made)
            await answer_json(script, body=json.dumps({"id": made, "by": id(self)}).encode())

    def served(self, reply):
        return reply.status == 200 and json.loads(reply.body)["by"] == id(self)

    @property
    def questions(self):
        return len(self.asked)


def follow_up(response_id="resp_1", **fields):
    return post(RESPONSES, json.dumps({"input": "x", "previous_response_id": response_id, **fields}).encode())


REQUESTS = {
    "read": get(ONE),
    "poll of a stream": get(ONE + b"?stream=true&starting_after=3"),
    "cancel": post(ONE + b"/cancel", b""),
    "go on": follow_up(model="m"),
    "go on, without a model": follow_up(),
    "go on in the background": follow_up(model="m", background=True),
    "go on with a large body": follow_up(model="m", instructions="x " * 200_000),
    "go on with a body of 1.5 MB": follow_up(model="m", instructions="x " * 750_000),
}


@pytest.mark.parametrize("raw", REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize("place", [0, 1])
async def test_an_unknown_response_is_found_and_pinned(rig, raw, place):
    stores = [Store(), Store()]
    stores[place].ids.add("resp_1")
    gate = await rig(*stores)
    assert stores[place].served(await gate.ask(raw))
    asked = stores[1 - place].questions
    assert asked <= 1
    for _ in range(3):
        assert stores[place].served(await gate.ask(raw))
    assert stores[1 - place].questions == asked, "the pin is learned"
    assert stores[place].asked[0] == ("GET", "/v1/responses/resp_1")


async def test_a_second_gateway_finds_what_the_first_one_placed(rig):
    stores = [Store(), Store()]
    first = await rig(*stores)
    second = await rig()
    for worker in first.workers:
        second.join(worker)
    for _ in range(4):
        made = await first.ask(post(RESPONSES, b'{"model":"m","input":"x","background":true}'))
        path = RESPONSES + b"/" + json.loads(made.body)["id"].encode()
        for raw in (get(path), post(path + b"/cancel", b"")):
            assert json.loads((await second.ask(raw)).body)["by"] == json.loads(made.body)["by"]


async def test_only_when_all_deny_the_response_is_not_found(rig):
    stores = [Store(), Store()]
    gate = await rig(*stores)
    for raw in (get(ONE), post(ONE + b"/cancel", b"")):
        reply = await gate.ask(raw)
        assert (reply.status, reply.code) == (404, "response_not_found")
        assert "no worker has response 'resp_1'" in json.loads(reply.body)["error"]["message"]
    assert [store.questions for store in stores] == [1, 1], "the denial is remembered for a while"
    reply = await gate.ask(follow_up(model="m"))
    assert reply.status == 404 and b"Response with id 'resp_1' not found" in reply.body, "a worker explains it"


async def test_a_denial_is_forgotten_and_their_number_is_bounded(rig, monkeypatch):
    monkeypatch.setattr(response_search, "DENIED_S", 0.0)
    monkeypatch.setattr(response_search, "DENIALS", 2)
    store = Store()
    gate = await rig(store)
    for number in range(4):
        assert (await gate.ask(get(b"/v1/responses/resp_%d" % number))).status == 404
    assert len(gate.gateway._parts.identifier.search._denied) == 2
    store.ids.add("resp_3")
    assert store.served(await gate.ask(get(b"/v1/responses/resp_3")))


@pytest.mark.parametrize("raw", [get(ONE), post(ONE + b"/cancel", b""), follow_up(model="m")])
async def test_silence_is_no_denial(rig, monkeypatch, raw):
    monkeypatch.setattr(response_search, "ANSWER_S", 0.1)
    store = Store()
    gate = await rig(store, silent)
    reply = await gate.ask(raw)
    assert (reply.status, reply.code) == (503, "worker_failed")
    assert int(reply.header(b"retry-after")) >= 1
    assert f"1 of 2 gave no answer ({gate.workers[1].id})" in json.loads(reply.body)["error"]["message"]
    store.ids.add("resp_1")
    assert store.served(await gate.ask(raw)), "uncertainty is not remembered, and nobody waits for the silent worker"


async def test_a_found_response_does_not_wait_for_silent_workers(rig):
    store = Store("resp_1")
    gate = await rig(silent, store, silent)
    async with asyncio.timeout(response_search.ANSWER_S):
        assert store.served(await gate.ask(get(ONE)))
    hung = (gate.workers[0], gate.workers[2])
    await eventually(lambda: all(seen.gone.is_set() for worker in hung for seen in worker.requests))


@pytest.mark.parametrize("status", [b"500 Oops", b"503 Busy", b"429 Slow", b"302 Found", None])
async def test_a_failure_is_no_denial(rig, status):
    async def fail(script):
        await (script.die() if status is None else answer_json(script, status, b"{}"))

    gate = await rig(Store(), fail)
    assert (await gate.ask(get(ONE))).status == 503


@pytest.mark.parametrize("status", [b"400 Bad", b"404 Not Found", b"405 Not Allowed", b"501 Not Implemented"])
async def test_a_refusal_is_a_denial(rig, status):
    async def refuse(script):
        await answer_json(script, status, b"{}")

    gate = await rig(Store(), refuse)
    assert (await gate.ask(get(ONE))).code == "response_not_found"


async def test_where_no_process_listens_no_response_is_stored(rig):
    gate = await rig(Store(), Store("resp_1"))
    await gate.workers[1].stop()
    assert (await gate.ask(get(ONE))).code == "response_not_found"


async def test_a_worker_that_answers_everything_has_nothing(rig):
    gate = await rig(answer_json, Store())
    assert (await gate.ask(get(ONE))).code == "response_not_found"


async def test_a_response_too_large_to_read_is_found(rig):
    async def large(script):
        await answer_json(script, body=json.dumps({"id": "resp_1", "output": "x" * 2_000_000}).encode())

    gate = await rig(large, Store())
    assert len((await gate.ask(get(ONE))).body) > 2_000_000


async def test_a_worker_that_is_not_probed_yet_is_asked_and_waited_for(rig):
    store = Store("resp_1")
    gate = await rig(Store())
    late = await ScriptedWorker(store).start()
    gate.workers.append(late)
    joined = gate.join(late, None)
    client = await gate.send(get(ONE))
    await eventually(lambda: gate.gateway.statistics()["queued"] == 1)
    facts = WorkerFacts("0.33.0", (ServedModel("m"),), {0: RankCache(16, 1_000, True)})
    gate.fleet.probe_succeeded(joined.id, facts, gate.loop.time())
    assert store.served(await client.read())


async def test_a_draining_worker_still_serves_what_it_stored(rig):
    store = Store("resp_1")
    gate = await rig(Store(), store)
    gate.fleet.drain(gate.workers[1].id)
    assert store.served(await gate.ask(get(ONE)))


# which workers


def facts(name):
    return WorkerFacts("0.33.0", (ServedModel(name),), {0: RankCache(16, 1_000, True)})


@pytest.fixture
async def models(rig):
    """A gateway before one store for each of the models big, small and tiny."""
    stores = {name: Store() for name in ("big", "small", "tiny")}
    gate = await rig(models={"big": {"fallback": "small", "aliases": ["gpt"]}})
    for name, store in stores.items():
        gate.workers.append(await ScriptedWorker(store).start())
        gate.join(gate.workers[-1], facts(name))
    return gate, stores


@pytest.mark.parametrize("name", ["big", "gpt"])
async def test_the_model_and_its_fallbacks_are_asked(models, name):
    gate, stores = models
    assert (await gate.ask(follow_up(model=name))).status == 404
    assert [store.questions for store in stores.values()] == [2, 1, 0]
    stores["small"].ids.add("resp_2")
    assert stores["small"].served(await gate.ask(follow_up("resp_2", model=name)))


async def test_without_a_model_all_workers_are_asked(models):
    gate, stores = models
    reply = await gate.ask(follow_up())
    assert reply.code == "model_required"
    assert [store.questions for store in stores.values()] == [1, 1, 1]
    stores["tiny"].ids |= {"resp_2", "resp_3"}
    for raw in (follow_up("resp_2"), get(b"/v1/responses/resp_3")):
        assert stores["tiny"].served(await gate.ask(raw))


# credentials


async def test_a_search_has_the_clients_credentials_and_the_gateways_name(rig):
    stores = [Store(), Store("resp_1", key=b"Bearer mine")]
    gate = await rig(*stores)
    assert (await gate.ask(get(ONE))).code == "invalid_api_key"
    assert stores[1].served(await gate.ask(get(ONE, b"Authorization: Bearer mine\r\n")))
    name = gate.gateway._context.instance.name.encode()
    for worker in gate.workers:
        assert all(name in seen.header(b"via") for seen in worker.requests)


async def test_a_guarded_gateway_searches_with_the_workers_key(rig):
    store = Store("resp_1", key=b"Bearer theirs")
    gate = await rig(store, auth={"api_keys": [key_line("alice", KEY)]})
    key = f"Authorization: Bearer {KEY}\r\n".encode()
    assert (await gate.ask(get(ONE))).status == 401 and store.questions == 0
    assert (await gate.ask(get(ONE, key))).status == 503, "the operator's mistake is not the client's"
    gate.gateway.learn_worker_key(gate.workers[0].id, "theirs")
    assert store.served(await gate.ask(get(ONE, key)))
    assert all(seen.header(b"authorization") in (None, b"Bearer theirs") for seen in gate.workers[0].requests)


# bounds


async def test_searches_are_bounded_and_end_with_their_clients(rig, monkeypatch):
    monkeypatch.setattr(response_search, "WAITING", 2)
    gate = await rig(silent)
    clients = [await gate.connect() for _ in range(response_search.SEARCHES + 2)]
    search = gate.gateway._parts.identifier.search
    for number, client in enumerate(clients):
        client.writer.write(get(b"/v1/responses/resp_%d" % number))
    await eventually(lambda: search._searches == len(clients))
    reply = await gate.ask(get(ONE))
    assert (reply.status, reply.code) == (503, "too_many_requests")
    assert int(reply.header(b"retry-after")) >= 1
    assert gate.workers[0].connections <= response_search.SEARCHES
    for client in clients:
        client.writer.transport.abort()
    await eventually(lambda: search._searches == 0)
    await eventually(lambda: all(seen.gone.is_set() for seen in gate.workers[0].requests))


@pytest.mark.parametrize(("turns", "code"), [(1, "worker_failed"), (0, "too_many_requests")])
async def test_a_search_that_takes_too_long_ends(rig, monkeypatch, turns, code):
    monkeypatch.setattr(response_search, "SEARCH_S", 0.1)
    gate = await rig(silent)
    gate.gateway._parts.identifier.search._turns = asyncio.Semaphore(turns)
    reply = await gate.ask(get(ONE))
    assert (reply.status, reply.code) == (503, code) and reply.header(b"retry-after")


async def test_every_worker_of_a_large_fleet_is_asked(rig, monkeypatch):
    monkeypatch.setattr(response_search, "AT_ONCE", 2)
    stores = [Store() for _ in range(7)]
    gate = await rig(*stores)
    assert (await gate.ask(get(ONE))).code == "response_not_found"
    assert [store.questions for store in stores] == [1] * 7


@pytest.mark.parametrize(
    "name", [b"1", b"chatcmpl-1", b"resp_", b"resp_a%20b", b"resp_%0d%0aX:y", b"resp_" + b"a" * 300]
)
async def test_an_id_that_no_worker_makes_is_not_looked_for(rig, name):
    store = Store()
    gate = await rig(store)
    assert (await gate.ask(get(b"/v1/responses/" + name))).code == "response_not_found"
    assert store.questions == 0


async def test_a_strange_id_in_a_body_goes_to_a_worker_as_it_is(rig):
    store = Store()
    gate = await rig(store)
    assert (await gate.ask(follow_up("resp_/../../health", model="m"))).status == 404
    assert store.asked == [("POST", "/v1/responses")]


def test_ids():
    assert may_be_stored("resp_0123abcDEF-4.5") and not may_be_stored("resp_é") and not may_be_stored("resp_a/b")
