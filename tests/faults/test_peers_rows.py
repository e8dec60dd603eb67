"""Faults observed in other routers' data planes. Each test checks one fault, and the router that has it would fail.

Rows with their tests elsewhere:

- one "imbalanced" switch sends everything to one worker: tests/router/placement/test_herding.py
- an unknown field in a KV event rejects the batch: tests/backends/vllm/test_events.py
- a worker killed in prefill, by RST; a gateway restarted in front of warm workers: test_workers.py
- clients that leave in another state than prefill, paths that change a worker, a 429, death in mid-stream, 60 client
  errors, a slow reader of 120 MB, concurrency limits: tests/router/gateway
- bodies and headers are rebuilt: tests/router/gateway/http/test_forwarding.py and the conformance tests
- drain closes the listener at once: with the tests of rollouts
"""

import asyncio
import json
import statistics
import time

import psutil
import pytest

from backends.simulated.settings import shipped_model_dir
from loadtest.load.http import Client
from tests.support.exchanges import exchanged

pytestmark = [pytest.mark.slow, pytest.mark.measures]

CHAT = b"/v1/chat/completions"
JSON_HEAD = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\n%scontent-length: %d\r\n\r\n%s"
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def answer(status=b"200 OK", headers=b"", body=b'{"choices":[{"index":0,"message":{"content":"word"}}]}'):
    return JSON_HEAD % (status, headers, len(body), body)


def chunk(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


def word(text):
    return chunk(b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}).encode() + b"\n\n")


async def exchange(lab, request):
    """Send one request as bytes; return status, headers and body."""
    client = Client(lab.fleet.url)
    try:
        async with exchanged(client, request) as response:
            return response.status, response.headers, await response.read()
    finally:
        client.close()


async def test_a_client_that_leaves_in_prefill_frees_the_worker_within_100_ms(lab, scripted, joins):
    """sglang-router freed the worker after 8 s. The time runs from the client's close to the end of the worker's
    socket.
    """
    gone = []

    async def silent(script):
        await script.reader.read()
        if script.seen.path == CHAT:
            gone.append(time.monotonic())
        script.writer.close()

    async with joins(lab, await scripted(silent, model="slow")) as worker:
        took_s = []
        for number in range(1, 8):
            connection = await lab.connect()
            await asyncio.get_running_loop().sock_sendall(connection, b"".join(lab.raw(model="slow")))
            await lab.eventually(lambda number=number: len(worker.requests_to(CHAT)) == number)
            left_s = time.monotonic()
            connection.close()
            await lab.eventually(lambda number=number: len(gone) == number)
            took_s.append(gone[-1] - left_s)
        assert statistics.median(took_s) < 0.02
        assert max(took_s) < 0.1
    await lab.at_rest()


async def test_a_revived_worker_has_traffic_within_2_s(lab):
    """With sglang-router, vllm-router and smg it had no traffic within 28 s."""
    victim = lab.workers[0]
    async with lab.load() as load:
        await asyncio.to_thread(lab.fleet.kill, victim)
        await lab.eventually(lambda: _ejected(lab, victim))
        await asyncio.to_thread(lab.fleet.restart, victim)
        up_s, since = time.monotonic(), len(load.seen)
        arrived = "vllm:prompt_tokens_total"
        await lab.eventually(lambda: _counted(lab, victim, arrived))
        assert time.monotonic() - up_s < 2.0
        await lab.eventually(lambda: load.answered_by(victim, since))
    await lab.at_rest()


async def _ejected(lab, worker):
    return await lab.state(worker) == "unhealthy"


async def _counted(lab, worker, metric):
    return await lab.engine(worker, metric) > 0


async def test_the_first_token_is_never_late_by_a_delayed_acknowledgement(lab, scripted, joins):
    """Dynamo lacks TCP_NODELAY, which costs 43.6 ms on every first token. Nagle's algorithm delays small writes in a
    row. So the test sends a head and two events 5 ms apart on a kept connection, in separate packets both ways.
    """
    written = {}

    async def small_writes(script):
        number = json.loads(script.seen.body).get("seed")
        for part in (STREAM_HEAD, word("one"), word("two"), word("three")):
            written[number] = time.monotonic()
            await script.say(part)
            await asyncio.sleep(0.005)
        await script.say(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    client = Client(lab.fleet.url)
    late_s = []
    async with joins(lab, await scripted(small_writes, model="chatty")):
        for number in range(30):
            request = {**lab.body(model="chatty"), "seed": number}
            raw = client.request_bytes("POST", "/v1/chat/completions", json.dumps(request).encode())
            async with exchanged(client, raw) as response:
                async for _, data in response.stream():
                    if b"three" in data:
                        late_s.append(time.monotonic() - written[number])
    client.close()
    assert len(late_s) == 30
    assert statistics.median(late_s) < 0.02
    await lab.at_rest()


async def test_a_saturated_fleet_is_not_stormed(lab, scripted, joins):
    """Other routers try five times. Here each of three workers is asked once, then receives nothing for the time in its
    Retry-After. A request in that time gets a Retry-After without a call to a worker.
    """

    async def full(script):
        await script.say(answer(b"503 Service Unavailable", b"retry-after: 20\r\n", b'{"error":{"message":"full"}}'))

    async with (
        joins(lab, await scripted(full, model="busy")) as one,
        joins(lab, await scripted(full, model="busy")) as two,
        joins(lab, await scripted(full, model="busy")) as three,
    ):
        request = b"".join(lab.raw(model="busy"))
        answers = [await exchange(lab, request) for _ in range(40)]
        attempts = sum(len(worker.requests_to(CHAT)) for worker in (one, two, three))
    assert attempts == 3
    assert {status for status, _, _ in answers} == {503}
    assert {json.loads(body)["error"]["code"] for _, _, body in answers} == {"overloaded"}
    assert all(10 <= int(headers["retry-after"]) <= 20 for _, headers, _ in answers)
    await lab.at_rest()


async def test_a_request_costs_its_worker_one_call(lab, scripted, joins):
    """The cache_aware policy of vllm-router made 3,200 further calls for 400 requests."""

    async def plain(script):
        await script.say(answer())

    async with joins(lab, await scripted(plain, model="counted")) as worker:
        for number in range(20):
            await exchange(lab, b"".join(lab.raw(model="counted", text=f"Question {number}?", stream=False)))
        assert len(worker.requests_to(CHAT)) == 20
        assert len(worker.requests) <= 20 + 3  # three first calls: the self-test and the rendering check


PROMPTS = 1_200


@pytest.mark.nightly
@pytest.mark.timeout(300)
async def test_long_prompts_are_not_kept(own_lab, scripted, joins):
    """In other routers, 10,000 unique prompts of 30 kB left 340 MB behind. Here the memory of prompts has a budget,
    which the first hundred prompts fill. The worker publishes no events, so the approximate view is in use too.
    """

    async def plain(script):
        await script.say(answer())

    budgets = {"memo_bytes": 4_000_000, "approximate_bytes": 4_000_000}
    lab = await own_lab(workers=1, config={"residency": budgets})
    gateway = psutil.Process(lab.fleet.gateway.pid)
    numbers = iter(range(PROMPTS))
    rss_mb = []

    async def play(client):
        for number in numbers:
            text = f"{number} " + f"word{number % 97} and so on, " * 1_700
            body = lab.body(text=text[:30_000], tokens=1, stream=False, model="long")
            raw = client.request_bytes("POST", "/v1/chat/completions", json.dumps(body).encode())
            async with exchanged(client, raw) as response:
                await response.read()
                assert response.status == 200
            if number % 200 == 0:
                rss_mb.append(gateway.memory_info().rss / 1e6)

    client = Client(lab.fleet.url)
    async with joins(lab, await scripted(plain, model="long", root=str(shipped_model_dir()))):
        await asyncio.gather(*(play(client) for _ in range(4)))
        tokens = (await lab.admin.metrics())["warmroute_prompt_tokens_total"]
    client.close()
    assert tokens > PROMPTS * 5_000  # the prompts were tokenised, not only forwarded
    assert max(rss_mb[-4:]) - rss_mb[len(rss_mb) // 2] < 10, rss_mb
    await lab.at_rest()
