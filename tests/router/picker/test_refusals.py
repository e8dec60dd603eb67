"""Errors, limits and queues, as a gateway gets them."""

import asyncio

import pytest

from backends.worker import RankCache, ServedModel, WorkerFacts
from router.picker.protocol.names import DROP_REASON
from router.security.keys import KeyEntry, digest_of
from tests.support.gateway_stream import (
    BUFFERED,
    NONE,
    body,
    chat,
    echoed,
    picked,
    picker_rig,
    refused,
    removed,
    request_headers,
    set_headers,
)

ONE = ("10.0.0.1:8000",)
KEY = "a-key-that-is-long-enough-for-this"
KEYS = {"api_keys": [KeyEntry("alice", digest_of(KEY.encode())).line]}


async def refusal(rig, *messages):
    *_, answer = await rig.ask(*messages)
    return (*refused(answer), set_headers(answer))


@pytest.mark.parametrize(
    ("whole", "status", "code"),
    [
        (b"{no json", 400, "invalid_json"),
        (chat(model="another"), 404, "model_not_found"),
        (chat(priority=5), 400, "priority_not_allowed"),
        (chat(kv_transfer_params={"do_remote_prefill": True}), 400, "transfer_params_not_allowed"),
    ],
)
async def test_requests_of_known_paths_are_refused_as_at_the_gateway(whole, status, code):
    async with picker_rig() as rig:
        for mode in (None, BUFFERED):
            message = request_headers() if mode is None else request_headers(mode=mode)
            found = await refusal(rig, message, body(whole))
            assert (found[0], found[1]["code"]) == (status, code)
            assert len(found[2]["x-request-id"]) == 32
        await rig.empties()
        assert rig.system.registry.counter("picks").values[code, ""] == 2


async def test_the_error_of_the_messages_api_has_its_format():
    async with picker_rig() as rig:
        _, error, _ = await refusal(rig, request_headers(path="/v1/messages"), body(b"{no json"))
        assert error["type"] == "invalid_request_error"


async def test_a_path_that_changes_a_worker_and_an_encoded_body_are_refused():
    async with picker_rig() as rig:
        status, error, _ = await refusal(rig, request_headers(path="/v1/load_lora_adapter", ends=True))
        assert (status, error["code"]) == (404, "path_not_found")
        sent = [("content-encoding", "gzip")]
        status, error, _ = await refusal(rig, request_headers(headers=sent), body(b"\x1f\x8b"))
        assert (status, error["code"]) == (415, "unsupported_content_encoding")


async def test_without_a_ready_worker_a_request_waits_for_the_time_of_a_pick_and_gets_503():
    async with picker_rig(ONE, ready=False, picker={"pick_s": 0.2}) as rig:
        began_s = rig.system.now_s()
        status, error, headers = await refusal(rig, request_headers(), body(chat()))
        assert (status, error["code"]) == (503, "no_worker_available")
        assert headers[DROP_REASON] == "rejected-no-endpoints"
        assert 0.15 < rig.system.now_s() - began_s < 1.0
        await rig.empties()


async def test_a_worker_that_becomes_ready_in_time_is_picked():
    async with picker_rig(ONE, ready=False, picker={"pick_s": 4.0}) as rig:
        stream = await rig.stream().send(request_headers(), body(chat()))
        await asyncio.sleep(0.05)
        rig.ready(*ONE)
        assert picked(await stream.next()) == ONE[0]


async def test_full_workers_shed_with_429_retry_after_and_a_reason():
    async with picker_rig(ONE, limits={"max_requests_per_worker": 1}) as rig:
        await rig.pick()
        status, error, headers = await refusal(rig, request_headers(), body(chat()))
        assert (status, error["code"]) == (429, "overloaded")
        assert headers[DROP_REASON] == "rejected-saturated" and int(headers["retry-after"]) >= 1
        assert sum(rig.load.values()) == 1


async def test_a_limited_route_refuses_its_requests_with_429():
    async with picker_rig(ONE, routes=[{"name": "all", "max_requests": 1, "max_queued_requests": 0}]) as rig:
        await rig.pick()
        status, error, headers = await refusal(rig, request_headers(), body(chat()))
        assert (status, error["code"]) == (429, "route_busy") and headers[DROP_REASON] == "rejected-saturated"


async def test_a_body_above_the_limit_gets_413_before_its_end():
    async with picker_rig(limits={"max_body_bytes": 10_000}) as rig:
        status, error, _ = await refusal(rig, request_headers(), body(b"x" * 10_001, ends=False))
        assert (status, error["code"]) == (413, "body_too_large")
        await rig.empties()


async def test_a_message_above_grpcs_own_limit_is_read():
    whole = chat("x" * 5_000_000)
    async with picker_rig() as rig:
        _, answer = await rig.ask(request_headers(mode=BUFFERED), body(whole))
        assert picked(answer)


# identification takes too long


async def test_a_prompt_that_is_not_identified_in_time_goes_by_load(monkeypatch):
    async with picker_rig(picker={"pick_s": 0.15}) as rig:

        async def never():
            await asyncio.Event().wait()

        monkeypatch.setattr(rig.system.identity, "identify_now", lambda *_: never)
        began_s = rig.system.now_s()
        head, *answers = await rig.ask(request_headers(), body(chat()))
        assert picked(head) and echoed(answers) == chat()
        assert rig.system.now_s() - began_s < 1.0


async def test_a_body_that_is_not_read_in_time_is_shed(monkeypatch):
    async with picker_rig(picker={"pick_s": 0.1}) as rig:

        async def never(*_, **__):
            await asyncio.Event().wait()

        monkeypatch.setattr("router.requests.identify.stage.read_in_slices", never)
        monkeypatch.setattr("router.requests.identify.stage.reads_quickly", lambda *_: False)
        monkeypatch.setattr("router.requests.identify.stage.reads_at_once", lambda *_: False)
        status, error, _ = await refusal(rig, request_headers(), body(chat()))
        assert (status, error["code"]) == (429, "too_many_requests")
        await rig.empties()


async def test_a_defect_in_a_pick_is_an_internal_error_for_one_request(monkeypatch):
    async with picker_rig() as rig:
        with monkeypatch.context() as broken:
            broken.setattr(type(rig.core.dispatcher), "dispatch", lambda *_, **__: 1 / 0)
            status, error, _ = await refusal(rig, request_headers(), body(chat()))
        assert (status, error["code"]) == (500, "internal_error")
        assert await rig.pick()
        assert sum(rig.load.values()) == 1


# callers


async def test_a_caller_needs_its_key_which_no_worker_gets():
    async with picker_rig(auth=KEYS) as rig:
        status, error, headers = await refusal(rig, request_headers(), body(chat()))
        assert (status, error["code"], headers["www-authenticate"]) == (401, "invalid_api_key", "Bearer")
        sent = [("authorization", f"Bearer {KEY}")]
        head, *answers = await rig.ask(request_headers(headers=sent), body(chat()))
        assert picked(head) and "authorization" in removed(head)
        whole = echoed(answers)
        assert b'"cache_salt"' in whole and set_headers(head)["content-length"] == str(len(whole))
        _, answer = await rig.ask(request_headers(headers=sent, mode=BUFFERED), body(chat()))
        changed = answer.request_body.response.body_mutation.body
        assert b'"cache_salt"' in changed and set_headers(answer)["content-length"] == str(len(changed))


async def test_an_isolated_caller_cannot_be_salted_without_a_body():
    async with picker_rig(auth=KEYS) as rig:
        sent = [("authorization", f"Bearer {KEY}")]
        status, _, _ = await refusal(rig, request_headers(headers=sent, mode=NONE))
        assert status == 501


async def test_the_worker_gets_its_own_key():
    async with picker_rig(ONE, auth=KEYS) as rig:
        rig.picker.learn_worker_key(ONE[0], "workers-key")
        sent = [("authorization", f"Bearer {KEY}")]
        head, *_ = await rig.ask(request_headers(headers=sent), body(chat()))
        assert set_headers(head)["authorization"] == "Bearer workers-key" and "authorization" not in removed(head)


async def test_a_tenants_limit_of_requests_holds_until_they_have_ended():
    settings = {
        "auth": KEYS,
        "tenants": {"a": {"keys": ["alice"]}},
        "limits": {"tenants": {"a": {"max_concurrent_requests": 1}}},
    }
    sent = [("authorization", f"Bearer {KEY}")]
    async with picker_rig(picker={"learn": "headers"}, **settings) as rig:
        stream = await rig.stream().send(request_headers(headers=sent), body(chat()))
        assert picked(await stream.next())
        status, error, _ = await refusal(rig, request_headers(headers=sent), body(chat()))
        assert (status, error["code"]) == (429, "concurrent_requests_exceeded")
        stream.call.cancel()
        await rig.empties()
        stream = await rig.stream().send(request_headers(headers=sent), body(chat()))
        assert picked(await stream.next())
        stream.call.cancel()
        await rig.empties()


# models


async def test_an_alias_is_replaced_in_the_body():
    async with picker_rig(models={"m": {"aliases": ["friendly"]}}) as rig:
        head, *answers = await rig.ask(request_headers(), body(chat(model="friendly")))
        assert picked(head) and echoed(answers) == chat(model="m")
        assert set_headers(head)["content-length"] == str(len(chat(model="m")))


async def test_an_adapter_goes_to_the_worker_that_has_it():
    cache = {0: RankCache(16, 1_000, True)}
    with_adapter = WorkerFacts(
        version="0.33.0", models=(ServedModel("m"), ServedModel("sql", root="m", parent="m")), caches=cache
    )
    async with picker_rig() as rig:
        rig.ready("10.0.0.2:8000", facts=with_adapter)
        for _ in range(3):
            head, *_ = await rig.ask(request_headers(), body(chat(model="sql")))
            assert picked(head) == "10.0.0.2:8000"


async def test_gaies_header_names_the_model_of_a_body_that_is_not_sent():
    async with picker_rig() as rig:
        sent = [("X-Gateway-Model-Name", "another")]
        status, error, _ = await refusal(rig, request_headers(headers=sent, mode=NONE))
        assert (status, error["code"]) == (404, "model_not_found")


async def test_a_request_that_prefers_a_cached_prompt_gets_412_where_it_would_be_computed():
    sent = [("prefer", "if-available")]
    async with picker_rig(ONE) as rig:
        whole = chat("the same words " * 100)
        status, error, _ = await refusal(rig, request_headers(headers=sent), body(whole))
        assert (status, error["code"]) == (412, "prefix_not_cached")
        await rig.empties()
        assert picked((await rig.ask(request_headers(), body(whole)))[0])
        assert picked((await rig.ask(request_headers(headers=sent), body(whole)))[0]), "the prompt is on its way there"
