import re

import pytest

PASSIVE = {"WARMROUTE_OBSERVE_USAGE": "0"}
INJECT = {"WARMROUTE_OBSERVE_USAGE": "1"}
TURNS = [{"role": "user", "content": "Tell me of the ports along the coast, one after the other. " * 8}]
# Frames contain the second of their creation, the clock draws other words each time, and a busy server joins tokens.
VARYING = (
    (re.compile(rb'"created":\d+'), b'"created":0'),
    (re.compile(rb'"(content|text)":"(?:[^"\\]|\\.)*"'), rb'"\1":"."'),
    (re.compile(rb'"token_ids":\[[\d,]+\]'), b'"token_ids":[0]'),
    (re.compile(rb'"(total_tokens|completion_tokens|cached_tokens|created_cache_tokens)":\d+'), rb'"\1":0'),
)


def stream(gate, path, body):
    """Return the stream's bytes from the gateway, without the parts that vary."""
    answer = gate.client.post(path, json=body, headers={"x-request-id": "the-same"})
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
    raw = answer.content
    for pattern, stand_in in VARYING:
        raw = pattern.sub(stand_in, raw)
    return raw


def body_of(gate, path, **fields):
    prompt = {"messages": TURNS} if "chat" in path else {"prompt": TURNS[0]["content"]}
    return {
        "model": gate.model, **prompt, "stream": True, "max_tokens": 40, "ignore_eos": True, "temperature": 0, **fields
    }  # fmt: skip


@pytest.fixture
def observing(plain, front):
    """A gateway that makes every stream report its usage, and one that makes none."""
    return front(plain, **INJECT), front(plain, **PASSIVE)


def compared(gate):
    (candidate,) = gate.candidates()
    counts = candidate["predicted_cached"]
    return counts["equal"] + counts["over"] + counts["under"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"stream_options": {"include_usage": False}},
        {"stream_options": {}},
        {"n": 2, "temperature": 1},
        {"return_token_ids": True},
        {"stop": ["e"], "min_tokens": 20, "include_stop_str_in_output": True},
        {"stream_options": {"include_usage": True}},
        {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        {"stream_options": {"continuous_usage_stats": True}},
    ],
    ids=lambda fields: "-".join(fields) or "plain",
)
def test_the_client_sees_the_same_frames(observing, path, fields):
    inject, passive = observing
    stream(inject, path, body_of(inject, path))  # the first stream of each path passes unchanged
    asked_for = bool(fields.get("stream_options", {}).get("include_usage"))
    for _ in range(2):
        body = body_of(inject, path, **fields)
        seen, wanted = kinds(stream(inject, path, body)), kinds(stream(passive, path, body))
        assert seen == wanted
        assert (b'"choices":[]' in b"".join(seen)) is asked_for
    assert b"system_fingerprint" in b"".join(wanted), "vLLM 0.33 stamps the last frame"


def kinds(raw):
    """Return distinct frames in order of first occurrence; the number of tokens per choice may vary."""
    return list(dict.fromkeys(raw.split(b"\n\n")))


def test_injected_usage_brings_reports(observing):
    inject, passive = observing
    before = compared(inject), compared(passive)
    for _ in range(4):
        for gate in observing:
            stream(gate, "/v1/chat/completions", body_of(gate, "/v1/chat/completions"))
            gate.settle()
    assert compared(inject) - before[0] == 3, "all but the first"
    assert compared(passive) == before[1]
    for gate in observing:
        (candidate,) = gate.candidates()
        assert candidate["predicted_cached"]["over"] == candidate["predicted_cached"]["under"] == 0
    metrics = inject.admin.get("/metrics").text
    assert re.search(r'warmroute_rewrites_total\{rewrite="observe_usage"\} 3\.0', metrics), metrics


def test_streams_of_a_worker_that_always_reports_stay_unchanged(vllm, front):
    server = vllm("--enable-force-include-usage")
    inject, passive = front(server, **INJECT), front(server, **PASSIVE)
    for _ in range(3):
        body = body_of(inject, "/v1/chat/completions")
        seen, wanted = (kinds(stream(gate, "/v1/chat/completions", body)) for gate in (inject, passive))
        assert seen == wanted and b'"choices":[]' in seen[-2] + seen[-3]
