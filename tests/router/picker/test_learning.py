"""What the picker learns from answers, and that nothing is left behind however a stream ends."""

import asyncio
import json
import time

import grpc
import pytest

from router.config.model import WorkerConfig
from router.picker.stream import GatewayLeft, PickStream
from tests.support.gateway_stream import (
    BUFFERED,
    DUPLEX,
    STREAMED,
    body,
    chat,
    picked,
    picker_rig,
    request_headers,
    response_body,
    response_headers,
)
from tests.support.waiting import eventually

SSE = [("content-type", "text/event-stream")]
ONE = ("10.0.0.1:8000",)


def event(**fields):
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


TOKENS = [event(choices=[{"index": 0, "delta": {"content": f"t{number}"}}]) for number in range(5)]
USAGE = event(choices=[], usage={"prompt_tokens": 12, "completion_tokens": 5})
ANSWER = b"".join([*TOKENS, USAGE, b"data: [DONE]\n\n"])


async def picked_stream(rig, **options):
    stream = await rig.stream().send(request_headers(**options), body(chat(stream=True)))
    pick = picked(await stream.next())
    await stream.next()
    return stream, pick


# none


async def test_by_default_the_stream_ends_after_the_pick_and_the_load_by_prediction():
    async with picker_rig(ONE) as rig:
        await rig.ask(request_headers(), body(chat(max_tokens=10)))
        assert rig.load == {ONE[0]: 1}, "10 tokens at 20 ms each"
        await rig.empties()
        assert rig.core.statistics()["finished"] == 1


async def test_a_prefill_ends_by_prediction_so_that_held_requests_go_on():
    async with picker_rig(ONE, picker={"learn": "headers"}) as rig:
        done = []
        rig.core.tickets.on_prefills_done.append(done.append)
        stream, pick = await picked_stream(rig)
        await eventually(lambda: done == [pick])
        (load,) = rig.core.statistics()["workers"].values()
        assert (load["queued_requests"], load["running_requests"]) == (0, 1)
        stream.call.cancel()


async def test_a_report_of_an_idle_worker_releases_old_picks(monkeypatch):
    monkeypatch.setattr("router.picker.predicted_ends.ARRIVES_S", 0.0)
    async with picker_rig(ONE) as rig:
        for _ in range(3):
            await rig.pick()
        rig.report(ONE[0], running=2)
        assert rig.load == {ONE[0]: 2}
        rig.report(ONE[0], running=0)
        assert not rig.load


# headers


async def test_the_end_of_the_gateways_stream_is_the_end_of_the_request():
    async with picker_rig(ONE, picker={"learn": "headers"}) as rig:
        stream, _ = await picked_stream(rig)
        await stream.send(response_headers())
        answer = await stream.next()
        assert answer is not None and answer.HasField("response_headers") and rig.load == {ONE[0]: 1}
        await stream.call.done_writing()
        assert await stream.rest() == []
        await rig.empties()
        assert rig.core.statistics()["finished"] == 1


async def test_the_endpoint_that_served_moves_the_ledger():
    async with picker_rig(picker={"learn": "headers"}) as rig:
        stream, pick = await picked_stream(rig)
        (other,) = {"10.0.0.1:8000", "10.0.0.2:8000"} - {pick}
        await stream.send(response_headers(served=pick))
        await stream.next()
        assert rig.load == {pick: 1}
        stream.call.cancel()
        await rig.empties()
        stream, pick = await picked_stream(rig)
        (other,) = {"10.0.0.1:8000", "10.0.0.2:8000"} - {pick}
        await stream.send(response_headers(served=other))
        await stream.next()
        assert rig.load == {other: 1}
        await stream.call.done_writing()
        await rig.empties()


async def test_a_server_error_counts_against_the_worker():
    async with picker_rig(ONE, picker={"learn": "headers"}) as rig:
        stream, _ = await picked_stream(rig)
        await stream.send(response_headers(500, ends=True))
        await stream.next()
        await rig.empties()
        assert rig.system.registry.counter("attempt_failures").values[(ONE[0], "answered")] == 1


async def test_a_body_that_passes_is_echoed_though_nobody_reads_it():
    async with picker_rig(ONE, picker={"learn": "headers"}) as rig:
        stream, _ = await picked_stream(rig, response_mode=DUPLEX)
        await stream.send(response_headers(headers=SSE), response_body(b"ab"), response_body(b"c", ends=True))
        answers = [await stream.next() for _ in range(3)]
        parts = [one.response_body.response.body_mutation.streamed_response for one in answers[1:]]
        assert [(part.body, part.end_of_stream) for part in parts] == [(b"ab", False), (b"c", True)]
        await rig.empties()


# all


async def test_first_token_usage_and_end_are_read_from_the_stream():
    async with picker_rig(ONE, picker={"learn": "all"}) as rig:
        stream, _ = await picked_stream(rig, response_mode=DUPLEX)
        await stream.send(response_headers(headers=SSE))
        await stream.next()
        role = event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}])
        pieces = [role, ANSWER[:10], ANSWER[10:200], ANSWER[200:]]
        for piece in pieces:
            await stream.send(response_body(piece, ends=piece is pieces[-1]))
            answer = await stream.next()
            assert answer.response_body.response.body_mutation.streamed_response.body == piece
        await rig.empties()
        (decision,) = rig.core.log.latest(1)
        assert decision.ttft_s is not None and decision.outcome == "finished"
        assert rig.core.tickets.output_lengths.mean_tokens == 5


async def test_a_streamed_response_is_not_echoed_and_a_plain_body_has_usage_too():
    plain = json.dumps({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 7}}).encode()
    async with picker_rig(ONE, picker={"learn": "all"}) as rig:
        stream = await rig.stream().send(request_headers(response_mode=STREAMED), body(chat()))
        await stream.next()
        await stream.next()
        await stream.send(
            response_headers(headers=[("content-type", "application/json")]), response_body(plain, ends=True)
        )
        await stream.next()
        answer = await stream.next()
        assert answer.HasField("response_body") and not answer.response_body.response.HasField("body_mutation")
        await rig.empties()
        assert rig.core.tickets.output_lengths.mean_tokens == 7


async def test_a_stream_that_breaks_off_teaches_nothing():
    async with picker_rig(ONE, picker={"learn": "all"}) as rig:
        stream, _ = await picked_stream(rig, response_mode=DUPLEX)
        await stream.send(response_headers(headers=SSE), response_body(TOKENS[0]))
        await stream.next()
        await stream.next()
        stream.call.cancel()
        await rig.empties()
        assert rig.core.statistics()["cancelled"] == 1 and not rig.core.tickets.output_lengths.mean_tokens


# cancels


@pytest.mark.parametrize("phase", ["headers", "body", "queued", "held", "picked", "answered"])
@pytest.mark.parametrize("learn", ["none", "all"])
async def test_a_cancelled_stream_leaves_nothing_behind(phase, learn):
    async with picker_rig(ONE, ready=phase != "queued", picker={"learn": learn, "pick_s": 3.0}) as rig:
        if phase == "held":
            hold_everything(rig)
        stream = await rig.stream().send(request_headers(response_mode=DUPLEX))
        if phase != "headers":
            await stream.send(body(chat(max_tokens=1), ends=phase != "body"))
        if phase in ("picked", "answered"):
            assert picked(await stream.next())
            await stream.next()
        if phase == "answered" and learn == "all":
            await stream.send(response_headers(headers=SSE), response_body(TOKENS[0]))
            await stream.next()
        waits = {"queued": lambda now: now["queued"] == 1, "held": lambda now: now["held"] == 1}.get(phase)
        await eventually(lambda: waits is None or waits(rig.picker.statistics()))
        stream.call.cancel()
        await rig.empties()
        now = rig.picker.statistics()
        assert (now["queued"], now["held"], now["streams"]) == (0, 0, 0)
        await eventually(lambda: not rig.picker.statistics()["exchanges"])


@pytest.mark.parametrize("learn", ["none", "all"])
async def test_a_gateway_that_leaves_during_the_echo_leaves_nothing_behind(learn, caplog):
    async with picker_rig(ONE, picker={"learn": learn}) as rig:
        stream = await rig.stream().send(request_headers(mode=BUFFERED))
        await stream.next()
        await stream.send(body(chat()))
        stream.call.cancel()
        stream = await rig.stream().send(request_headers(), body(chat("x" * 5_000_000)))
        assert picked(await stream.next())
        stream.call.cancel()
        await rig.empties()
        await eventually(lambda: not rig.picker.statistics()["exchanges"])
        assert not [record for record in caplog.records if record.levelname == "ERROR"]


class LastMoment:
    """A wire whose gateway leaves during one of the writes. `given`: gRPC has the message by then."""

    def __init__(self, at_write, *messages, given=True):
        self._messages = [message.SerializeToString() for message in messages]
        self._at_write = at_write
        self._given = given
        self.writes = 0

    async def read(self):
        return self._messages.pop(0) if self._messages else None

    async def write(self, message):
        self.writes += 1
        if self.writes == self._at_write:
            raise asyncio.CancelledError if self._given else GatewayLeft


async def serve_until_it_leaves(rig, at_write, *messages, given=True):
    wire = LastMoment(at_write, *messages, given=given)
    try:
        await PickStream(rig.picker._parts, wire).serve()
    except asyncio.CancelledError:
        pass
    assert wire.writes == at_write
    return {outcome: count for (outcome, *_), count in rig.picker._parts.picks.values.items()}


@pytest.mark.parametrize(("learn", "load"), [("none", {ONE[0]: 1}), ("all", {})])
async def test_a_gateway_that_leaves_as_soon_as_it_has_the_answer_was_answered(learn, load):
    async with picker_rig(ONE, picker={"learn": learn}) as rig:
        asked = request_headers(), body(chat(max_tokens=10))
        assert await serve_until_it_leaves(rig, 2, *asked) == {"picked": 1.0}
        assert rig.load == load, "with none the request is with its worker now, and its end is predicted"
        await rig.empties()


@pytest.mark.parametrize(("at_write", "given"), [(1, True), (2, False)])
async def test_a_gateway_that_leaves_before_it_has_the_answer_cancels_the_pick(at_write, given):
    async with picker_rig(ONE) as rig:
        asked = request_headers(), body(chat(max_tokens=10))
        assert await serve_until_it_leaves(rig, at_write, *asked, given=given) == {"cancelled": 1.0}
        assert rig.load == {}


async def test_a_gateway_that_leaves_after_a_pick_by_headers_was_answered():
    async with picker_rig(ONE) as rig:
        stream = await rig.stream().send(request_headers(mode=None))
        assert picked(await stream.next())
        stream.call.cancel()
        await eventually(lambda: not rig.picker.statistics()["exchanges"])
        assert rig.load == {ONE[0]: 1}


async def test_a_prefill_on_another_worker_ends_with_the_first_token():
    workers = (
        WorkerConfig(url="http://10.0.0.1:8000", role="prefill"),
        WorkerConfig(url="http://10.0.0.2:8000", role="decode"),
    )
    settings = {"auth": {"allow": ["transfer_params"]}, "handover": {"connector": "nixl_pull"}}
    async with picker_rig(workers, picker={"learn": "all"}, **settings) as rig:
        named = [("x-prefiller-host-port", "10.0.0.1:8000")]
        stream, pick = await picked_stream(rig, headers=named, response_mode=DUPLEX)
        assert rig.load == {"10.0.0.1:8000": 1, "10.0.0.2:8000": 1}
        await stream.send(response_headers(headers=SSE), response_body(TOKENS[0]))
        await stream.next()
        await stream.next()
        assert rig.load == {pick: 1}
        await stream.send(response_body(b"data: [DONE]\n\n", ends=True))
        await rig.empties()


def hold_everything(rig):
    """Let the policy hold each request for a minute."""
    from router.placement.tickets import Held

    dispatcher = type(rig.core.dispatcher)
    real = dispatcher.dispatch

    def held(self, request, now_s, *, may_hold=False, **options):
        return Held(None, now_s + 60.0) if may_hold else real(self, request, now_s, **options)

    rig.picker._parts.gate.dispatcher.__class__ = type("Holding", (dispatcher,), {"dispatch": held})


async def test_a_held_request_is_placed_when_the_time_for_its_pick_has_passed():
    async with picker_rig(ONE, picker={"pick_s": 0.2}) as rig:
        hold_everything(rig)
        assert await rig.pick() == ONE[0]


# the end of the process


async def test_when_the_process_ends_open_streams_end_with_ok_and_new_ones_are_refused():
    async with picker_rig(ONE, picker={"learn": "headers"}) as rig:
        stream, _ = await picked_stream(rig)
        closing = asyncio.ensure_future(rig.system.aclose(2.0))
        assert await stream.rest() == []
        with pytest.raises(grpc.aio.AioRpcError):
            await rig.pick()
        await closing
        assert not rig.load


async def test_a_body_that_passes_is_complete_up_to_the_end_of_a_draining_stream():
    async with picker_rig(ONE, picker={"learn": "all"}) as rig:
        stream, _ = await picked_stream(rig, response_mode=DUPLEX)
        await stream.send(response_headers(headers=SSE), response_body(TOKENS[0]))
        await stream.next()
        await stream.next()
        closing = asyncio.ensure_future(rig.system.aclose(2.0))
        await asyncio.sleep(0.05)
        await stream.send(response_body(TOKENS[1]))
        (answer,) = await stream.rest()
        assert answer.response_body.response.body_mutation.streamed_response.body == TOKENS[1]
        await closing


async def test_a_pick_in_progress_is_answered_while_the_process_ends():
    async with picker_rig(ONE, ready=False, picker={"pick_s": 1.0}) as rig:
        stream = await rig.stream().send(request_headers(mode=BUFFERED))
        await stream.next()
        closing = asyncio.ensure_future(rig.system.aclose(2.0))
        await stream.send(body(chat()))
        began = time.monotonic()
        rig.ready(*ONE)
        assert picked(await stream.next()) == ONE[0] and time.monotonic() - began < 1.0
        await closing
        assert not rig.load
