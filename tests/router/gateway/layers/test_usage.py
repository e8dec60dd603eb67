from __future__ import annotations

import asyncio
import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.gateway.layers.usage.layer import FIRST_STREAMS
from router.gateway.layers.usage.usage_frame import Stamp, StreamEnding, UsageFrame, plain_ending
from router.placement.request import Usage
from router.requests.outgoing import HELD_BYTES
from router.security.keys import new_key
from tests.support.answers import END, STREAM_HEAD, answer_json, chunk
from tests.support.raw_client import key_line, post

FINGERPRINT = b',"system_fingerprint":"vllm-0.33.0-0a1b2c3d"'

# the frame


def frame(text="", finish=None, **more):
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return b"data: " + json.dumps({"id": "x", "choices": [choice], **more}, separators=(",", ":")).encode() + b"\n\n"


def usage_frame(**usage):
    numbers = {"prompt_tokens": 40, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 32}, **usage}
    shown = {"id": "x", "choices": [], "usage": numbers, "system_fingerprint": "vllm-0.33.0-0a1b2c3d"}
    return b"data: " + json.dumps(shown, separators=(",", ":")).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
STAMP = Stamp(FINGERPRINT, b"}")
WORDS = ("a", 'say "usage": {"choices": []}', "\n\ndata: {}", "é\r\n\r\n", '"finish_reason":"stop"')


def taken_from(raw, cuts, stamp=None):
    taking = UsageFrame(stamp)
    events = [0, *sorted(cut % (len(raw) + 1) for cut in cuts), len(raw)]
    shown = b"".join(taking.feed(raw[start:end]) for start, end in pairwise(events) if start < end)
    return shown + taking.rest(), taking.taken


@given(
    st.lists(st.sampled_from(WORDS), max_size=4),
    st.lists(st.integers(0, 10_000), max_size=12),
    st.booleans(),
    st.booleans(),
)
def test_only_the_usage_frame_is_removed_in_any_pieces(words, cuts, stamped, comments):
    shown = [frame(word) for word in words] + ([b": still there\n\n"] if comments else [])
    ending, plain_ending_ = frame("", "stop"), frame("", "stop", system_fingerprint="vllm-0.33.0-0a1b2c3d")
    raw = b"".join([*shown, ending, usage_frame(), DONE])
    plain = b"".join([*shown, plain_ending_ if stamped else ending, DONE])
    assert taken_from(raw, cuts, STAMP if stamped else None) == (plain, usage_frame())


def test_the_usage_frame_is_removed_at_every_cut():
    raw = frame("a") + frame("b", "stop") + usage_frame() + DONE
    plain = frame("a") + frame("b", "stop") + DONE
    for cut in range(len(raw)):
        assert taken_from(raw, [cut]) == (plain, usage_frame())
    assert taken_from(raw, list(range(len(raw)))) == (plain, usage_frame())


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
def test_the_usage_frame_is_removed_with_every_line_end(end):
    raw = b"".join(event.replace(b"\n\n", end) for event in (frame("a"), usage_frame(), DONE))
    for cut in range(len(raw)):
        assert taken_from(raw, [cut])[0] == b"".join(event.replace(b"\n\n", end) for event in (frame("a"), DONE))


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"choices":[],"usage":null}\n\n',
        b'data: {"choices":[{}],"usage":{"prompt_tokens":1}}\n\n',
        b'data: {"usage":{"prompt_tokens":1}}\n\n',
        b'data: "usage" and "choices"\n\n',
        b': "usage" "choices":[]\n\n',
    ],
)
def test_other_frames_are_kept(event):
    assert taken_from(event, [5]) == (event, b"")


def test_only_one_usage_frame_is_removed():
    assert taken_from(usage_frame() * 2, []) == (usage_frame(), usage_frame())


def test_an_incomplete_last_event_is_passed_on():
    raw = frame("a") + b'data: {"choices":[]'
    assert taken_from(raw, [9, 30]) == (raw, b"")


def test_an_event_above_the_buffer_limit_is_passed_on_in_parts():
    large = frame("x" * (HELD_BYTES + 10))
    taking = UsageFrame(None)
    shown = [taking.feed(part) for part in (large[:100], large[100:-20], large[-20:-1])]
    assert [len(part) > 0 for part in shown] == [False, True, True]
    shown.append(taking.feed(large[-1:] + usage_frame() + DONE))
    assert b"".join(shown) == large + DONE and taking.taken == usage_frame()


def test_the_ending_of_an_unchanged_stream_is_learned():
    stamped = frame("b", "stop", system_fingerprint="vllm-0.33.0-0a1b2c3d", kv_transfer_params=None)
    assert plain_ending([b"half", stamped, DONE], False) == StreamEnding(
        False, Stamp(FINGERPRINT, b',"kv_transfer_params"')
    )
    assert plain_ending([frame("b", "stop") + DONE], True) == StreamEnding(True, None)
    assert plain_ending([frame("b") + DONE], False) is None
    without = frame("b", "stop", kv_transfer_params=None)
    assert Stamp(FINGERPRINT, b',"kv_transfer_params"').put(without) == stamped
    assert Stamp(FINGERPRINT, b',"absent"').put(without) == without


# through a gateway

STREAMED = b'{"model":"m","messages":[],"stream":true}'
INJECT = {"observe_usage": 1.0}


def streaming(cut_bytes=None, plain_usage=False, fingerprint=True):
    """A worker that reports usage as vLLM does. `cut_bytes`: size of the pieces in which it sends chunks."""

    async def script(script):
        body = json.loads(script.seen.body)
        asked = plain_usage or bool((body.get("stream_options") or {}).get("include_usage"))
        more = {} if asked or not fingerprint else {"system_fingerprint": "vllm-0.33.0-0a1b2c3d"}
        events = [frame("a"), frame("b"), frame("", "stop", **more)]
        events += [usage_frame()] if asked else []
        raw = STREAM_HEAD + b"".join(map(chunk, [*events, DONE])) + END
        size = cut_bytes or len(raw)
        await script.say_apart(*(raw[start : start + size] for start in range(0, len(raw), size)))

    return script


@pytest.mark.parametrize("cut_bytes", [None, 1, 7, 100])
async def test_the_client_gets_the_stream_without_the_usage_frame(rig, cut_bytes):
    gate = await rig(streaming(cut_bytes), **INJECT)
    client = await gate.connect()
    plain = await client.ask(post(body=STREAMED))
    assert gate.recorded.usage == Usage()
    observed = [await client.ask(post(body=STREAMED)) for _ in range(2)]
    assert [reply.body for reply in observed] == [plain.body] * 2
    assert gate.recorded.usage == Usage(40, 3, 32)
    seen = gate.workers[0].requests
    assert seen[0].body == STREAMED
    assert seen[1].body == STREAMED[:-1] + b',"stream_options":{"include_usage":true}}'
    assert seen[1].header(b"content-length") == b"%d" % len(seen[1].body)
    assert len({request.connection for request in seen}) == 1, "both sides stay open"
    rewrites = gate.gateway.statistics()["usage"]
    assert (rewrites["asked"], rewrites["taken_out"], rewrites["missing"]) == (2, 2, 0)
    assert {("warmroute_rewrites", (name,), count) for name, count in (("observe_usage", 2), ("relearn", 0))} <= {
        *gate.gateway.readings()
    }


async def test_a_salted_stream_also_reports_its_usage(rig):
    key = new_key()
    auth = {"api_keys": [key_line("alice", key)]}
    gate = await rig(streaming(), **INJECT, auth=auth)
    bearer = f"Authorization: Bearer {key}\r\n".encode()
    replies = [await gate.ask(post(body=STREAMED, extra=bearer)) for _ in range(2)]
    assert replies[0].body == replies[1].body
    sent = [json.loads(seen.body) for seen in gate.workers[0].requests]
    assert [body.get("stream_options") for body in sent] == [None, {"include_usage": True}]
    assert len({body["cache_salt"] for body in sent}) == 1


async def test_a_rewritten_http_1_0_stream_is_uncompressed(rig):
    gate = await rig(streaming(), **INJECT)
    plain = await gate.ask(post(body=STREAMED, version=b"1.0"))
    observed = await gate.ask(post(body=STREAMED, version=b"1.0", extra=b"Accept-Encoding: gzip\r\n"))
    assert observed.body == plain.body and observed.header(b"x-odd-case") == b"Kept"
    assert gate.workers[0].requests[1].header(b"accept-encoding") is None, "the response must be readable"


@pytest.mark.parametrize(
    ("body", "extra"),
    [
        (b'{"model":"m","messages":[],"stream":true,"stream_options":{"include_usage":true}}', b""),
        (b'{"model":"m","messages":[],"stream":true,"stream_options":7}', b""),
        (b'{"model":"m","messages":[]}', b""),
        (STREAMED, b"Content-Digest: sha-256=:x:\r\n"),
    ],
)
async def test_other_bodies_are_not_rewritten(rig, body, extra):
    gate = await rig(streaming(), **INJECT)
    await gate.ask(post(body=STREAMED))
    await gate.ask(post(body=body, extra=extra))
    assert gate.workers[0].requests[1].body == body


async def test_a_worker_that_reports_usage_unasked_is_not_asked(rig):
    gate = await rig(streaming(plain_usage=True), **INJECT)
    replies = [await gate.ask(post(body=STREAMED)) for _ in range(3)]
    assert {reply.body for reply in replies} == {replies[0].body} and usage_frame() in replies[0].body
    assert gate.gateway.statistics()["usage"]["asked"] == 0


@pytest.mark.parametrize(
    "options",
    [b"null", b"{}", b'{"include_usage":false}', b'{"continuous_usage_stats":true}', b'{"include_usage":null,"x":1}'],
)
async def test_a_stream_is_asked_whatever_its_options_say(rig, options):
    body = b'{"model":"m","messages":[],"stream_options":%b,"stream":true}' % options
    gate = await rig(streaming(), **INJECT)
    plain, observed = await gate.ask(post(body=body)), await gate.ask(post(body=body))
    assert observed.body == plain.body and usage_frame() not in plain.body
    sent = json.loads(gate.workers[0].requests[1].body)["stream_options"]
    assert sent["include_usage"] is True and "continuous_usage_stats" not in sent


async def test_large_bodies_are_asked_without_a_search(rig):
    body = b'{"model":"m","messages":[],"stream":true,"user":"%b"}' % (b"x" * 2_000_000)
    gate = await rig(streaming(), **INJECT)
    plain, observed = await gate.ask(post(body=body)), await gate.ask(post(body=body))
    assert observed.body == plain.body
    assert gate.workers[0].requests[1].body == body[:-1] + b',"stream_options":{"include_usage":true}}'


async def test_the_first_streams_and_then_a_share_are_rewritten(rig):
    gate = await rig(streaming(), observe_usage=0.25)
    client = await gate.connect()
    replies = [await client.ask(post(body=STREAMED)) for _ in range(FIRST_STREAMS + 9)]
    assert len({reply.body for reply in replies}) == 1
    asked = [b"stream_options" in request.body for request in gate.workers[0].requests]
    assert asked == [False, *[True] * FIRST_STREAMS, *[False, False, False, True] * 2]


@pytest.mark.parametrize(
    ("path", "settings"),
    [
        (b"/v1/messages", INJECT),
        (b"/v1/responses", INJECT),
        (b"/v1/chat/completions", {"observe_usage": 0.0}),
    ],
)
async def test_apis_that_report_usage_unasked_and_passive_gateways_change_no_body(rig, path, settings):
    gate = await rig(streaming(), **settings)
    for _ in range(3):
        await gate.ask(post(path, STREAMED))
    assert {request.body for request in gate.workers[0].requests} == {STREAMED}


async def test_a_worker_that_refuses_the_question_gets_the_request_without_it(rig):
    async def old(script):
        if b"stream_options" in script.seen.body:
            await answer_json(script, b"400 Bad Request", b'{"message":"Extra inputs are not permitted"}')
        else:
            await streaming()(script)

    gate = await rig(old, **INJECT)
    replies = [await gate.ask(post(body=STREAMED)) for _ in range(4)]
    assert {(reply.status, reply.body) for reply in replies} == {(200, replies[0].body)}
    asked = [b"stream_options" in request.body for request in gate.workers[0].requests]
    assert asked == [False, True, False, False, False], "it is asked once, and never again"
    assert gate.gateway.statistics()["usage"]["refused"] == 1
    assert gate.idle and "failed" not in "".join(gate.recorded.events)


async def test_a_mistake_of_the_client_is_no_refusal_of_the_question(rig):
    mistake = {"now": True}

    async def script(script):
        if mistake["now"] and len(gate.workers[0].requests) > 1:
            await answer_json(script, b"400 Bad Request", b'{"error":{"message":"no","code":400}}')
        else:
            await streaming()(script)

    gate = await rig(script, **INJECT)
    await gate.ask(post(body=STREAMED))
    reply = await gate.ask(post(body=STREAMED))
    assert (reply.status, reply.body) == (400, b'{"error":{"message":"no","code":400}}')
    mistake["now"] = False
    await gate.ask(post(body=STREAMED))
    asked = [b"stream_options" in request.body for request in gate.workers[0].requests]
    assert asked == [False, True, False, True]


async def test_the_ending_of_a_lost_worker_is_learned_again(rig):
    gate = await rig(streaming(), **INJECT)
    await gate.ask(post(body=STREAMED))
    (endpoint,) = gate.fleet.endpoints
    for told in gate.fleet.on_loss:
        told(endpoint)
    for _ in range(2):
        await gate.ask(post(body=STREAMED))
    assert [request.body == STREAMED for request in gate.workers[0].requests] == [True, True, False]


@pytest.mark.parametrize("at", ["event", "chunk", "start"])
async def test_a_stream_lost_before_its_usage_counts_as_missing(rig, at):
    dying = {"now": False}

    async def script(script):
        if not dying["now"]:
            await streaming()(script)
            return
        rest = {"event": b"", "chunk": b"20\r\ndata: {", "start": chunk(b"data: {")}[at]
        await script.say(STREAM_HEAD, chunk(frame("a")), rest)
        await started.wait()
        await script.die()

    started = asyncio.Event()
    gate = await rig(script, **INJECT)
    await gate.ask(post(body=STREAMED))
    dying["now"] = True
    reply = await gate.ask(post(body=STREAMED), on_head=started.set)
    assert reply.body.startswith(frame("a") + b'data: {"error"') and reply.body.endswith(DONE)
    assert gate.idle and gate.gateway.statistics()["usage"]["taken_out"] == 0


async def test_a_retry_is_rewritten_for_its_own_worker(rig):
    async def refusing(script):
        if b"stream_options" in script.seen.body:
            await answer_json(script, b"503 Service Unavailable", b"{}")
        else:
            await streaming()(script)

    gate = await rig(refusing, streaming(), **INJECT)
    plain = [await gate.ask(post(body=STREAMED)) for _ in range(2)]
    replies = [await gate.ask(post(body=STREAMED)) for _ in range(2)]
    assert {reply.body for reply in replies} == {plain[0].body}
    assert gate.gateway.statistics()["usage"]["taken_out"] == 2


class Asking:
    def asks_again(self, slot, ticket_id, now_s):
        return True


async def test_usage_and_report_rewrites_combine(rig):
    gate = await rig(streaming(), **INJECT, relearn=Asking())
    replies = [await gate.ask(post(body=STREAMED)) for _ in range(2)]
    assert replies[0].body == replies[1].body
    body = json.loads(gate.workers[0].requests[1].body)
    assert body["stream_options"] == {"include_usage": True}
    assert body["vllm_xargs"] == {"kv_cache_report_mode": "full"}
