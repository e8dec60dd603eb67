import asyncio
import time
from http import HTTPStatus
from types import SimpleNamespace

import httpx
import msgspec
import pytest

from policies.view import Residency
from router.admin.app import build_admin
from router.admin.http.probe_slots import MOST_PROBES, ProbeSlots
from router.admin.http.problems import AdminError
from router.admin.observe.routing_probe import MOST_BYTES, probe_routing
from router.admin.operations import Call
from router.admin.replies import Reply
from router.errors import ErrorKind, RequestError
from router.requests.preview import PreviewedRequest
from router.residency.prompt import Prompt, PromptSource
from tests.router.admin.conftest import BLOCK, MODEL, chain
from tests.support.waiting import eventually

PROBE = "/v1/routing/probe"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "temperature": 0.5}
QUEUES = {"queued": 0, "held": 0, "routes": {}}


@pytest.fixture
def system(system):
    system.statistics = lambda: QUEUES
    return system


@pytest.fixture
def worker(system):
    return system.join("http://a:1")


def answers(system, **changed):
    """Let the gateway take the body for this request."""

    async def preview(path, headers, body, key_name=None):
        system.asked.append((path, dict(headers), body))
        request = msgspec.structs.replace(system.request("probed"), **changed)
        return PreviewedRequest(request, iter(()), body)

    system.preview = preview


async def probe(client, **chat):
    return await client.post(PROBE, json=CHAT | chat)


async def found(client, **chat):
    answer = await probe(client, **chat)
    assert answer.status_code == 200, answer.text
    return answer.json()


def view(system, worker):
    return system.residency.slot(system.fleet.get(worker).candidates[0].slot)


async def test_a_probe_has_the_fields_of_dynamos(client, system, worker):
    before = time.time() * 1_000
    document = await found(client)
    assert before - 1 <= document.pop("sampled_at_unix_ms") <= time.time() * 1_000 + 1
    assert document.pop("epp_instance").endswith(":8000")
    assert document == {
        "model": MODEL,
        "prompt_tokens": 100,
        "block_size": BLOCK,
        "candidate": {
            "worker_id": "a:1",
            "dp_rank": 0,
            "cache": {
                "estimate_source": "approximate",
                "gpu_prefix_tokens": 0,
                "cpu_prefix_tokens": None,
                "disk_prefix_tokens": None,
                "predicted_gpu_hit_rate": 0.0,
                "predicted_cpu_inclusive_hit_rate": None,
                "predicted_disk_inclusive_hit_rate": None,
                "effective_prefill_tokens": 100,
            },
            "load": {
                "active_prefill_tokens": 0,
                "prefill_token_capacity": None,
                "potential_decode_blocks": 7,
                "total_kv_blocks": 100,
            },
        },
        "pool": {"pending_requests": 0, "pending_input_tokens": 0},
    }


async def test_the_gateway_gets_the_body_as_it_came(client, system, worker):
    await found(client, seed=1)
    (asked,) = system.asked
    assert asked[0] == "/v1/chat/completions" and msgspec.json.decode(asked[2]) == CHAT | {"seed": 1}


async def test_nothing_is_booked(client, system, worker):
    for _ in range(3):
        document = await found(client)
    assert document["candidate"]["load"]["active_prefill_tokens"] == 0
    assert system.core.statistics()["dispatched"] == 0 and not system.core.log.latest(5)


async def test_a_warm_and_busy_worker_is_seen_as_one(client, system, worker):
    system.serve("explained", 100)
    system.core.dispatcher.dispatch(system.request("other", 160), system.clock_s)
    candidate = (await found(client))["candidate"]
    assert candidate["cache"]["gpu_prefix_tokens"] == 96
    assert candidate["cache"]["predicted_gpu_hit_rate"] == 0.96
    assert candidate["cache"]["effective_prefill_tokens"] == 4
    assert candidate["load"]["active_prefill_tokens"] == 160
    assert candidate["load"]["potential_decode_blocks"] == (160 + 100 + BLOCK - 1) // BLOCK


@pytest.fixture
def cache(system, worker, monkeypatch):
    """Let the worker's cache answer with this match."""

    def match(tokens, residency=Residency.EXACT, reserved=0, tiers=None, *, modelled=False):
        one = SimpleNamespace(tokens=tokens, residency=residency, reserved_tokens=reserved, by_tier=tiers)
        residency_map = SimpleNamespace(
            match=lambda _, slots: dict.fromkeys(slots, one), slot=lambda _: SimpleNamespace(modelled=modelled)
        )
        monkeypatch.setattr(system, "residency", residency_map)

    return match


@pytest.mark.parametrize(
    ("match", "source", "tokens"),
    [
        ({"tokens": 64}, "events", 64),
        ({"tokens": 64, "reserved": 16}, "mixed", 64),
        ({"tokens": 64, "residency": Residency.APPROXIMATE}, "mixed", 64),
        ({"tokens": 64, "residency": Residency.APPROXIMATE, "modelled": True}, "approximate", 64),
        ({"tokens": 64, "residency": Residency.UNKNOWN}, "unavailable", None),
        ({"tokens": 0, "residency": Residency.OFF}, "approximate", 0),
    ],
)
async def test_the_source_says_how_far_the_estimate_can_be_trusted(client, cache, match, source, tokens):
    cache(**match)
    answered = (await found(client))["candidate"]["cache"]
    assert (answered["estimate_source"], answered["gpu_prefix_tokens"]) == (source, tokens)
    assert answered["predicted_gpu_hit_rate"] == (None if tokens is None else tokens / 100)


async def test_slower_tiers_count_from_the_start_of_the_prompt(client, cache):
    cache(48, tiers={"GPU": 32, "CPU": 32, "STORAGE": 16})
    answered = (await found(client))["candidate"]["cache"]
    names = ("gpu_prefix_tokens", "cpu_prefix_tokens", "disk_prefix_tokens")
    assert [answered[name] for name in names] == [48, 64, 80]
    rates = ("predicted_cpu_inclusive_hit_rate", "predicted_disk_inclusive_hit_rate")
    assert [answered[name] for name in rates] == [0.64, 0.8]


async def test_a_tier_without_a_sign_of_life_is_not_known(client, cache):
    cache(48, tiers={"GPU": 48})
    answered = (await found(client))["candidate"]["cache"]
    assert (answered["cpu_prefix_tokens"], answered["disk_prefix_tokens"]) == (None, None)


@pytest.mark.parametrize("changed", [{"prompt": None}, {"reads_cache": False}])
async def test_without_an_identity_nothing_is_known_of_the_cache(client, system, worker, changed):
    answers(system, **changed)
    document = await found(client)
    assert document["prompt_tokens"] == 100
    assert document["candidate"]["cache"]["estimate_source"] == "unavailable"
    assert document["candidate"]["cache"]["gpu_prefix_tokens"] is None
    assert document["candidate"]["cache"]["effective_prefill_tokens"] == 100


async def test_a_prompt_that_is_known_as_text_makes_an_approximate_estimate(client, system, cache):
    cache(64)
    answers(system, prompt=Prompt(100, PromptSource.TEXT, lambda block: chain("probed", block, 100)))
    assert (await found(client))["candidate"]["cache"]["estimate_source"] == "approximate"


async def test_requests_that_wait_are_the_pool(client, system, worker):
    system.statistics = lambda: {"queued": 2, "held": 1, "routes": {"eval": {"queued": 4}}}
    assert (await found(client))["pool"] == {"pending_requests": 7, "pending_input_tokens": None}
    system.statistics = lambda: {"queued": 2}
    assert (await found(client))["pool"] == {"pending_requests": None, "pending_input_tokens": None}


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "invalid_json"),
        (b"{", 400, "invalid_json"),
        (b"[]", 422, "invalid_value"),
        (b'{"model": "m"}', 422, "invalid_value"),
        (b'{"messages": []}', 422, "invalid_value"),
        (b" " * (MOST_BYTES + 1), 413, "body_too_large"),
    ],
)
async def test_a_bad_body_is_refused(client, problem, worker, body, status, code):
    answer = await client.post(PROBE, content=body, headers={"content-type": "application/json"})
    assert problem(answer, status)[0] == code


async def test_a_body_between_one_and_two_mebibytes_is_read(client, worker):
    await found(client, messages=[{"role": "user", "content": "x" * 1_500_000}])


async def test_only_plain_json_is_read(client, problem, worker):
    text = await client.post(PROBE, content=b"{}", headers={"content-type": "text/plain"})
    assert problem(text, 415)[0] == "unsupported_media_type"
    packed = await client.post(PROBE, json=CHAT, headers={"content-encoding": "gzip"})
    assert problem(packed, 415)[0] == "unsupported_content_encoding"


@pytest.mark.parametrize(
    ("kind", "status"),
    [(ErrorKind.INVALID_BODY, 400), (ErrorKind.REQUEST_CRASHES_WORKERS, 422), (ErrorKind.RESPONSE_NOT_FOUND, 422)],
)
async def test_an_error_of_the_public_port_has_a_status_that_probes_have(client, system, problem, worker, kind, status):
    async def preview(*_):
        raise RequestError(kind, "as the gateway would say")

    system.preview = preview
    assert problem(await probe(client), status)[1] == "as the gateway would say"


async def test_a_model_that_no_worker_serves_is_no_probe(client, system, problem, worker):
    answers(system, model="other")
    code, detail = problem(await probe(client, model="other"), 422)
    assert code == "invalid_value" and "`other` does not exist" in detail


async def test_without_a_ready_worker_there_is_no_candidate(client, system, problem, worker):
    system.fleet.drain(worker)
    answer = await probe(client)
    assert problem(answer, 503)[0] == "not_ready" and answer.headers["retry-after"] == "1"


async def test_more_probes_at_once_than_four_are_refused_and_none_is_queued(client, system, problem, worker):
    go, waiting = asyncio.Event(), []

    async def preview(path, headers, body, key_name=None):
        waiting.append(body)
        await go.wait()
        return PreviewedRequest(system.request("probed"), iter(()), body)

    system.preview = preview
    running = [asyncio.ensure_future(probe(client)) for _ in range(MOST_PROBES)]
    await eventually(lambda: len(waiting) == MOST_PROBES)
    refused = await probe(client)
    assert problem(refused, 429)[0] == "too_many_probes" and refused.headers["retry-after"] == "1"
    go.set()
    assert [one.status_code for one in await asyncio.gather(*running)] == [200] * MOST_PROBES
    assert (await probe(client)).status_code == 200


async def test_a_probe_that_takes_too_long_ends_and_keeps_its_slot_until_its_work_is_done():
    slots, go, done = ProbeSlots(limit_s=0.01), asyncio.Event(), []

    async def work():
        await go.wait()
        done.append(len(done))
        if len(done) == 1:
            raise RequestError(ErrorKind.INVALID_BODY, "nobody reads it")
        return "late"

    async def quick():
        return "quick"

    for _ in range(MOST_PROBES):
        with pytest.raises(AdminError, match="not identified after") as overdue:
            await slots.result(work)
        assert overdue.value.status == HTTPStatus.GATEWAY_TIMEOUT
    with pytest.raises(AdminError, match="none is queued"):
        await slots.result(quick)
    go.set()
    await eventually(lambda: len(done) == MOST_PROBES)
    assert await slots.result(quick) == "quick"


async def test_a_late_answer_of_the_gateway_is_504(client, system, problem, worker, monkeypatch):
    monkeypatch.setattr(ProbeSlots.__init__, "__defaults__", (0.01,))
    go = asyncio.Event()

    async def preview(*_):
        await go.wait()

    system.preview = preview
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(build_admin(system)), base_url="http://127.0.0.1:8001"
    ) as impatient:
        assert problem(await probe(impatient), 504)[0] == "probe_timeout"
    go.set()


def over(processes, replies):
    call = Call(SimpleNamespace(system=SimpleNamespace(processes=processes)), {}, {})
    return probe_routing.processes.answer(call, dict(enumerate(replies)))


async def test_processes_add_their_queues(client, system, worker):
    first = (await probe(client)).content
    system.statistics = lambda: QUEUES | {"held": 3}
    second = (await probe(client)).content
    document = over(2, [Reply(200, first), Reply(200, second)]).content
    assert document.candidate.worker_id == "a:1"
    assert (document.pool.pending_requests, document.pool.pending_input_tokens) == (3, None)
    document = over(2, [Reply(200, first), Reply(503)]).content
    assert (document.pool.pending_requests, document.pool.pending_input_tokens) == (None, None)


def test_the_error_of_a_process_is_the_answer_if_none_has_a_candidate():
    answer = over(2, [Reply(429, b"{}", {"retry-after": "1"}), Reply(503, b"{}")])
    assert (answer.status, answer.headers["retry-after"]) == (HTTPStatus.TOO_MANY_REQUESTS, "1")
