"""Body modes, answers and subsets, by a gateway over loopback."""

import asyncio
import tracemalloc

import grpc
import pytest

from policies.view import Decision
from router.config.model import WorkerConfig
from router.picker.changes import scores_of
from router.picker.collected_request import CollectedRequest
from router.picker.protocol.ext_proc_pb2 import ProcessingRequest, ProcessingResponse
from router.picker.protocol.names import DESTINATION, DROP_REASON, LB_NAMESPACE, SCORES
from tests.support.gateway_stream import (
    BUFFERED,
    DUPLEX,
    NONE,
    STREAMED,
    body,
    chat,
    echoed,
    picked,
    picker_rig,
    refused,
    removed,
    request_headers,
    response_headers,
    set_headers,
    trailers,
)

WORKERS = ("10.0.0.1:8000", "10.0.0.2:8000")


# body modes


async def test_in_full_duplex_nothing_comes_before_the_end_of_the_body_then_headers_and_then_the_body():
    whole = chat("x" * 200_000)
    async with picker_rig() as rig:
        stream = await rig.stream().send(request_headers(), body(whole[:70_000], ends=False))
        reading = asyncio.ensure_future(stream.next())
        assert not (await asyncio.wait({reading}, timeout=0.1))[0]
        await stream.send(body(whole[70_000:]))
        assert picked(await reading) in WORKERS
        answers = await stream.rest()
    assert echoed(answers) == whole and len(answers) == 4
    assert not any(answer.request_body.response.HasField("header_mutation") for answer in answers)


@pytest.mark.parametrize("size", [62_000, 62_001, 1_000_000])
async def test_a_body_comes_back_unchanged(size):
    whole = chat("x" * (size - len(chat(""))))
    async with picker_rig() as rig:
        head, *answers = await rig.ask(request_headers(), body(whole))
    assert picked(head) and len(whole) == size and echoed(answers) == whole


async def test_an_empty_message_ends_a_body_that_came_byte_by_byte():
    parts = [body(bytes([byte]), ends=False) for byte in chat("größe")]
    async with picker_rig() as rig:
        head, *answers = await rig.ask(request_headers(), *parts, body(b""))
    assert picked(head) and echoed(answers) == chat("größe")


def test_a_body_in_small_pieces_takes_no_more_memory_than_one_in_large_ones():
    piece, collected = body(b"ab", ends=False), CollectedRequest(request_headers())
    tracemalloc.start()
    try:
        for _ in range(10_000):
            collected.take(piece)
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert collected.body == b"ab" * 10_000 and collected.body_bytes == 20_000
    assert held_bytes < 2 * collected.body_bytes


async def test_trailers_end_a_body_and_are_answered():
    async with picker_rig() as rig:
        head, answer, last = await rig.ask(request_headers(), body(chat(), ends=False), trailers())
    part = answer.request_body.response.body_mutation.streamed_response
    assert picked(head) and part.body == chat() and not part.end_of_stream
    assert last.HasField("request_trailers")


async def test_what_comes_after_the_end_of_the_body_is_ignored():
    async with picker_rig(picker={"learn": "headers"}) as rig:
        stream = await rig.stream().send(request_headers(), body(chat()), body(b"", ends=True))
        assert picked(await stream.next()) and await stream.next()
        await stream.send(response_headers())
        answer = await stream.next()
    assert answer is not None and answer.HasField("response_headers")


async def test_a_buffered_body_is_not_echoed_and_its_answer_has_the_pick():
    async with picker_rig() as rig:
        stream = await rig.stream().send(request_headers(mode=BUFFERED))
        first = await stream.next()
        await stream.send(body(chat()))
        (answer,) = await stream.rest()
    assert first == ProcessingResponse(request_headers=first.request_headers) and not set_headers(first)
    assert picked(answer) in WORKERS and not answer.request_body.response.HasField("body_mutation")


@pytest.mark.parametrize("mode", [NONE, STREAMED])
async def test_where_the_body_comes_late_or_never_the_headers_alone_get_a_pick(mode):
    async with picker_rig() as rig:
        (answer,) = await rig.ask(request_headers(mode=mode, headers=[("content-length", "50")]))
    assert answer.HasField("request_headers") and picked(answer) in WORKERS


async def test_without_protocol_config_a_body_that_comes_at_once_is_full_duplex():
    async with picker_rig() as rig:
        head, *answers = await rig.ask(request_headers(mode=None), body(chat()))
    assert picked(head) and echoed(answers) == chat()


async def test_without_protocol_config_and_without_a_body_in_time_the_headers_get_a_pick_and_the_body_another():
    async with picker_rig() as rig:
        stream = await rig.stream().send(request_headers(mode=None))
        assert picked(await stream.next())
        await stream.send(body(chat()))
        (answer,) = await stream.rest()
        assert answer.HasField("request_body") and picked(answer)
        assert sum(rig.load.values()) == 1, "the first pick was replaced"


async def test_nobody_reads_an_answer_in_observability_mode():
    first = request_headers()
    first.observability_mode = True
    async with picker_rig() as rig:
        stream = await rig.stream().send(first, body(chat()))
        await stream.call.done_writing()
        assert await stream.rest() == []
        assert not rig.load


async def test_unknown_fields_are_ignored_and_bytes_that_are_no_message_end_the_stream():
    wire = request_headers().SerializeToString() + b"\xc2\x3e\x03abc"
    async with picker_rig() as rig:
        head, *_ = await rig.ask(ProcessingRequest.FromString(wire), body(chat()))
        assert picked(head)
        stream = rig.stream()
        await stream.call.write(b"\xff\xff\xff")
        with pytest.raises(grpc.aio.AioRpcError, match="not a ProcessingRequest"):
            await stream.next()


async def test_a_response_whose_request_was_answered_elsewhere_passes():
    async with picker_rig() as rig:
        stream = await rig.stream().send(response_headers(404, ends=True))
        answer = await stream.next()
        assert answer is not None and answer.HasField("response_headers")
        await stream.call.done_writing()
        assert await stream.rest() == []


# answers


async def test_requests_without_a_body_and_unknown_paths_are_picked_for():
    async with picker_rig() as rig:
        for options in (
            {"method": "GET", "path": "/v1/models"},
            {"method": "GET", "path": "/v1/chat/completions"},
            {"path": "/my/own"},
        ):
            (answer,) = await rig.ask(request_headers(ends=True, **options))
            assert picked(answer) in WORKERS
        head, *answers = await rig.ask(request_headers(path="/my/own"), body(b"no JSON"))
        assert picked(head) and echoed(answers) == b"no JSON"


async def test_a_request_id_is_added_where_it_is_missing():
    async with picker_rig() as rig:
        (answer,) = await rig.ask(request_headers(mode=NONE))
        assert len(set_headers(answer)["x-request-id"]) == 32
        (answer,) = await rig.ask(request_headers(mode=NONE, headers=[("x-request-id", "mine")]))
        assert "x-request-id" not in set_headers(answer)


async def test_an_ipv6_endpoint_is_in_brackets_and_raw_value_wins():
    async with picker_rig(("[fd00::1]:8000",)) as rig:
        first = request_headers(mode=NONE)
        for header in first.request_headers.headers.headers:
            header.value = "not this"
        (answer,) = await rig.ask(first)
        assert picked(answer) == "[fd00::1]:8000"


async def test_headers_that_a_client_may_not_send_are_overwritten_or_removed():
    sent = [
        (DESTINATION, "1.2.3.4:1"),
        ("x-prefiller-host-port", "1.2.3.4:1"),
        ("x-data-parallel-host-port", "1.2.3.4:1"),
        ("X-Data-Parallel-Rank", "7"),
        ("x-vllm-priority", "-5"),
        ("traceparent", "00-" + "1" * 32 + "-" + "2" * 16 + "-01"),
    ]
    async with picker_rig() as rig:
        head, *_ = await rig.ask(request_headers(headers=sent), body(chat()))
        assert picked(head) in WORKERS
        assert removed(head) == {
            "x-prefiller-host-port", "x-data-parallel-host-port", "x-data-parallel-rank", "x-vllm-priority",
        }  # fmt: skip
    allowed = {"allow": ["transfer_params", "priority", "rank"]}
    async with picker_rig(auth=allowed) as rig:
        head, *_ = await rig.ask(request_headers(headers=sent), body(chat()))
        assert not removed(head)


async def test_a_fallback_list_begins_with_the_pick():
    async with picker_rig(("10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"), picker={"endpoints": 2}) as rig:
        head, *_ = await rig.ask(request_headers(), body(chat()))
        first, second = picked(head).split(",")
        assert first != second and rig.load == {first: 1}


def test_scores_follow_the_costs_or_else_the_places():
    def decided(*workers, costs=()):
        return scores_of(Decision(workers, "", costs=costs))

    assert decided("a", "b", "c", costs=(2.0, 3.0, 4.0)) == {"a": 1.0, "b": 0.5, "c": 0.0}
    assert decided("a", "b", "c", costs=(2.0,)) == {"a": 1.0, "b": 0.5, "c": 0.0}, "not all have a cost"
    assert decided("a", "b", costs=(2.0, 2.0)) == {"a": 1.0, "b": 1.0}
    assert decided("a#0", "b#1", "a#1", "b#0") == {"a": 1.0, "b": pytest.approx(2 / 3)}
    assert decided("a") == {"a": 1.0}


async def test_a_pick_says_how_the_endpoints_were_ranked_if_that_is_wanted():
    async with picker_rig(picker={"scores": True}) as rig:
        answer, _ = await rig.ask(request_headers(), body(chat()))
        scores = dict(answer.dynamic_metadata[LB_NAMESPACE][SCORES])
        assert scores[picked(answer)] == 1.0
        assert scores.keys() == {one.id for one in rig.fleet.endpoints}
    async with picker_rig() as rig:
        answer, _ = await rig.ask(request_headers(), body(chat()))
        assert SCORES not in answer.dynamic_metadata[LB_NAMESPACE]


async def test_picks_spread_over_the_workers_by_their_load():
    async with picker_rig() as rig:
        assert {await rig.pick(), await rig.pick()} == set(WORKERS)


# subsets


@pytest.mark.parametrize(
    "subset",
    [["10.0.0.2:8000"], "10.0.0.9:1,10.0.0.2:8000", " 10.0.0.2:8000 , 10.0.0.9:1 ", ["10.0.0.2"], "10.0.0.2"],
)
async def test_a_pick_is_in_the_subset(subset):
    async with picker_rig() as rig:
        for _ in range(3):
            assert await rig.pick(subset=subset) == "10.0.0.2:8000"
        (answer,) = await rig.ask(request_headers(method="GET", path="/v1/models", ends=True, subset=subset))
        assert picked(answer) == "10.0.0.2:8000"


async def test_an_address_stands_for_all_its_ports():
    async with picker_rig(("10.0.0.1:8000", "10.0.0.1:8001", "10.0.0.2:8000", "[fd00::1]:8000")) as rig:
        found = {await rig.pick(subset=["10.0.0.1"]) for _ in range(4)}
        assert found == {"10.0.0.1:8000", "10.0.0.1:8001"}
        assert await rig.pick(subset=["fd00:0::1"]) == "[fd00::1]:8000"
        assert await rig.pick(subset=["[fd00::1]:8000"]) == "[fd00::1]:8000"


@pytest.mark.parametrize("subset", [[], "", ["10.0.0.9:8000"], ["10.0.0.1:9"]])
async def test_a_subset_without_a_ready_endpoint_is_refused_at_once(subset):
    async with picker_rig() as rig:
        began_s = rig.system.now_s()
        (answer,) = await rig.ask(request_headers(subset=subset), body(chat()))
        status, error = refused(answer)
        assert (status, error["code"]) == (503, "no_worker_available")
        assert set_headers(answer)[DROP_REASON] == "rejected-no-endpoints"
        assert rig.system.now_s() - began_s < 1.0
        rig.eject("10.0.0.1:8000")
        (answer,) = await rig.ask(request_headers(subset=["10.0.0.1:8000"]), body(chat()))
        assert refused(answer)[0] == 503
        await rig.empties()


async def test_all_endpoints_of_a_list_are_in_the_subset():
    workers = ("10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000")
    async with picker_rig(workers, picker={"endpoints": 3}) as rig:
        picks = (await rig.pick(subset=list(workers[:2]))).split(",")
        assert sorted(picks) == sorted(workers[:2])


# data-parallel ranks


@pytest.mark.parametrize(
    ("setting", "name", "values"),
    [
        ("rank", "x-data-parallel-rank", {"0", "1"}),
        ("host_port", "x-data-parallel-host-port", {"10.0.0.1:8000", "10.0.0.1:8001"}),
    ],
)
async def test_a_rank_is_named_in_a_header_and_the_destination_is_its_worker(setting, name, values, two_ranks):
    async with picker_rig(("10.0.0.1:8000",), facts=two_ranks, picker={"rank_header": setting}) as rig:
        found = set()
        for _ in range(2):
            head, *_ = await rig.ask(request_headers(mode=DUPLEX), body(chat()))
            assert picked(head) == "10.0.0.1:8000"
            found.add(set_headers(head)[name])
        assert found == values


# prefill and decode


PAIR = (
    WorkerConfig(url="http://10.0.0.1:8000", role="prefill"),
    WorkerConfig(url="http://10.0.0.2:8000", role="decode", labels={"kv_sidecar": "llm-d"}),
)


async def test_a_trusted_caller_names_the_prefill_worker_and_gets_a_decode_worker():
    sent = [("x-prefiller-host-port", "10.0.0.1:8000")]
    auth = {"allow": ["transfer_params"]}
    async with picker_rig(PAIR, auth=auth, handover={"connector": "nixl_pull"}) as rig:
        head, *_ = await rig.ask(request_headers(headers=sent), body(chat("long " * 2_000, max_tokens=1)))
        assert picked(head) == "10.0.0.2:8000"
        assert set_headers(head)["x-prefiller-host-port"] == "10.0.0.1:8000"
        assert rig.load == {"10.0.0.1:8000": 1, "10.0.0.2:8000": 1}
        await rig.empties()
    async with picker_rig(PAIR, handover={"connector": "nixl_pull"}) as rig:
        head, *_ = await rig.ask(request_headers(headers=sent), body(chat("Hi")))
        assert picked(head) == "10.0.0.2:8000"
        assert removed(head) == {"x-prefiller-host-port"}, "a short prompt needs no other worker"
