from __future__ import annotations

import asyncio
import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.worker import LoadReport, WorkerFacts
from router.gateway.rewrites.body_rewriter import FIRST_STREAMS
from router.gateway.rewrites.usage_frame import HELD_BYTES, Stamp, StreamEnding, UsageFrame, plain_ending
from router.placement.request import Usage
from router.requests.rewrites.json_splice import set_inner, spliced
from router.security.keys import new_key
from tests.support.answers import END, STREAM_HEAD, answer_json, chunk
from tests.support.gateway_rig import FACTS
from tests.support.raw_client import PLAIN, key_line, post

OTHERS = {"model": "m", "messages": [{"role": "user", "content": 'say "stream_options": {"include_usage": 1}'}]}
FINGERPRINT = b',"system_fingerprint":"vllm-0.33.0-0a1b2c3d"'


def with_usage(body: bytes, present: object) -> bytes | None:
    splice = set_inner(body, "stream_options", "include_usage", b"true", present)
    return None if splice is None else spliced(body, [splice])


# bodies


@pytest.mark.parametrize(
    ("present", "wanted"),
    [
        (None, {"include_usage": True}),
        ({}, {"include_usage": True}),
        ({"include_usage": False}, {"include_usage": True}),
        ({"include_usage": None}, {"include_usage": True}),
        ({"include_usage": "no"}, {"include_usage": True}),
        ({"x": "} , {", "include_usage": 0}, None),
        ({"x": 1, "include_usage": 0.0, "y": "z"}, {"x": 1, "include_usage": True, "y": "z"}),
        ({"x": [1, {"y": 2}]}, {"include_usage": True, "x": [1, {"y": 2}]}),
        ({"x": {"include_usage": False}, "include_usage": False}, None),
        ("odd", None),
        ([], None),
    ],
)
@pytest.mark.parametrize("indent", [None, 2])
def test_a_member_is_inserted(present, wanted, indent):
    fields = OTHERS if present is None else {**OTHERS, "stream_options": present, "last": 1}
    body = json.dumps(fields, indent=indent).encode()
    changed = with_usage(body, present)
    if wanted is None:
        assert changed is None
        return
    assert changed is not None and json.loads(changed) == {**fields, "stream_options": wanted}
    splice = set_inner(body, "stream_options", "include_usage", b"true", present)
    assert changed[: splice.start] == body[: splice.start]
    assert changed[splice.start + len(splice.text) :] == body[splice.end :]


@pytest.mark.parametrize(
    ("body", "present"),
    [
        (b'{"a":{"stream_options":null},"stream_options":{}}', {}),
        (b'{"a":{"stream_options":{"x":1}}}', None),
        (b'{"stream_options":null}', None),
        (b'{"stream_options":{},"stream_options":{}}', {}),
        (b'{"stream\\u005foptions":{}}', {}),
        (b'{"stream_options":{"include\\u005fusage":false},"b":{"include_usage":1}}', {"include_usage": False}),
        ('{"a":1}'.encode("utf-16"), None),
        ('{"a":1}'.encode("utf-16-le"), None),
        (b"[1]", None),
        (b"", None),
        (b'{"stream_options":7}', 7),
    ],
)
def test_an_uncertain_splice_is_not_made(body, present):
    assert with_usage(body, present) is None


def test_two_splices_apply_to_an_empty_object():
    assert json.loads(with_usage(b" { } ", None)) == {"stream_options": {"include_usage": True}}
    body = b'{"vllm_xargs":{"a":1},"z":2}'
    splices = [
        set_inner(body, "vllm_xargs", "kv_cache_report_mode", b'"full"', {"a": 1}),
        set_inner(body, "stream_options", "include_usage", b"true", None),
    ]
    wanted = {
        "stream_options": {"include_usage": True},
        "vllm_xargs": {"kv_cache_report_mode": "full", "a": 1},
        "z": 2,
    }
    assert json.loads(spliced(body, splices)) == wanted
    assert spliced(body, []) == body


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(['"stream_options":{}', "}{"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["stream_options", "include_usage", "a"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    st.dictionaries(st.sampled_from(["stream_options", "messages", "a", "b"]), json_values, max_size=4), st.booleans()
)
def test_a_splice_changes_only_its_member(fields, spaced):
    body = json.dumps(fields, indent=1 if spaced else None, ensure_ascii=not spaced).encode()
    changed = with_usage(body, fields.get("stream_options"))
    if changed is not None:
        options = fields.get("stream_options") or {}
        assert json.loads(changed) == {**fields, "stream_options": {**options, "include_usage": True}}


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
    rewrites = gate.gateway.statistics()["rewrites"]
    assert (rewrites["usage_asked"], rewrites["usage_taken_out"], rewrites["usage_missing"]) == (2, 2, 0)


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
    assert gate.gateway.statistics()["rewrites"]["usage_asked"] == 0


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
    assert gate.gateway.statistics()["rewrites"]["usage_refused"] == 1
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
    assert gate.idle and gate.gateway.statistics()["rewrites"]["usage_taken_out"] == 0


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
    assert gate.gateway.statistics()["rewrites"]["usage_taken_out"] == 2


# cache re-announcement


class Asking:
    """Lets every placed request ask, and records the requests."""

    def __init__(self):
        self.asked = []

    def asks_again(self, slot, ticket_id, now_s):
        self.asked.append((slot, ticket_id))
        return True


@pytest.fixture
async def asking(rig):
    """`await asking(script, load, version)`: a gateway whose requests all may ask, and the record of them."""

    async def build(script, load=None, version="0.33.0", **settings):
        relearn = Asking()
        facts = WorkerFacts(version=version, models=FACTS.models, caches=FACTS.caches)
        gate = await rig(script, facts=facts, relearn=relearn, **settings)
        gate.fleet.endpoints[0].candidates[0].load = load
        return gate, relearn

    return build


async def test_a_request_carries_the_report_field(asking):
    gate, relearn = await asking(answer_json)
    await gate.ask(post(body=PLAIN))
    body = b'{"model":"m","messages":[],"vllm_xargs":{"other":[1,"x"]}}'
    await gate.ask(post(body=body))
    first, second = (json.loads(request.body) for request in gate.workers[0].requests)
    assert first == {**json.loads(PLAIN), "vllm_xargs": {"kv_cache_report_mode": "full"}}
    assert second["vllm_xargs"] == {"kv_cache_report_mode": "full", "other": [1, "x"]}
    assert len(relearn.asked) == gate.gateway.statistics()["rewrites"]["relearn_asked"] == 2


@pytest.mark.parametrize(
    ("path", "prompt"),
    [
        ("/v1/completions", b'"prompt":"x"'),
        ("/v1/messages", b'"max_tokens":1,"messages":[{"role":"user","content":"x"}]'),
        ("/v1/responses", b'"input":"x"'),
    ],
)
async def test_every_path_placed_by_prefix_carries_the_report_field(asking, path, prompt):
    gate, _ = await asking(answer_json)
    await gate.ask(post(path.encode(), body=b'{"model":"m",' + prompt + b"}"))
    sent = json.loads(gate.workers[0].requests[0].body)
    assert sent["vllm_xargs"] == {"kv_cache_report_mode": "full"}


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","messages":[],"vllm_xargs":{"kv_cache_report_mode":"incremental"}}',
        b'{"model":"m","messages":[],"vllm_xargs":null}',
        b'{"model":"m","messages":[],"prompt_logprobs":1}',
        b'{"model":"m","messages":[],"n":2}',
    ],
)
async def test_other_requests_do_not_ask_for_a_report(asking, body):
    gate, relearn = await asking(answer_json)
    await gate.ask(post(body=body))
    assert gate.workers[0].requests[0].body == body and relearn.asked == []


@pytest.mark.parametrize(
    ("version", "waiting", "kv_usage", "asks"),
    [
        ("0.33.0", 0, 0.5, True),
        ("v0.26.1rc1", 0, 0.5, True),
        (None, 0, 0.5, True),
        ("0.25.1", 0, 0.5, False),
        ("0.33.0", 1, 0.5, False),
        ("0.33.0", 0, 0.95, False),
    ],
)
async def test_busy_and_old_workers_are_not_asked_for_a_report(asking, version, waiting, kv_usage, asks):
    load = LoadReport(0, 1, waiting, kv_usage)
    gate, relearn = await asking(answer_json, load, version)
    await gate.ask(post(body=PLAIN))
    assert bool(relearn.asked) is asks
    assert (b"vllm_xargs" in gate.workers[0].requests[0].body) is asks


async def test_usage_and_report_rewrites_combine(asking):
    gate, _ = await asking(streaming(), **INJECT)
    replies = [await gate.ask(post(body=STREAMED)) for _ in range(2)]
    assert replies[0].body == replies[1].body
    body = json.loads(gate.workers[0].requests[1].body)
    assert body["stream_options"] == {"include_usage": True}
    assert body["vllm_xargs"] == {"kv_cache_report_mode": "full"}
