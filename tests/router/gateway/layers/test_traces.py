"""Traces of requests, over sockets: the tree of spans, what is sampled, and W3C context in and out."""

import asyncio

import pytest

from router.gateway.layers.trace import layer as trace_layer
from router.tracing.context import traced
from tests.support import otlp
from tests.support.answers import answer_json, answer_stream, says
from tests.support.otlp import Sink
from tests.support.raw_client import PLAIN, post
from tests.support.waiting import eventually

ENDPOINT = "http://127.0.0.1:9/v1/traces"
CALLER, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
INTERNAL, SERVER, CLIENT = 1, 2, 3


@pytest.fixture
def tracing(rig):
    """Return a function that starts a gateway with a sink for its traces."""

    async def start(*scripts, share=1.0, **settings):
        sink = Sink()
        wanted = {"endpoint": ENDPOINT, "share": share}
        return await rig(*scripts, traces=sink, tracing=wanted, **settings), sink

    return start


async def one(sink):
    await eventually(lambda: len(sink.sent) == 1)
    (spans,) = sink.traces
    return {span.name: span for span in spans}


def traceparent(gate, place=0):
    return traced(gate.workers[place].requests[0].header(b"traceparent"))


refuse = says(b"HTTP/1.1 503 Unavailable\r\ncontent-length: 0\r\n\r\n")
break_off = says(b"HTTP/1.1 500 Oops\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")


async def test_a_stream_has_one_tree_of_spans(tracing):
    gate, sink = await tracing(answer_stream)
    body = b'{"model":"m","messages":[],"stream":true,"max_tokens":7,"session_id":"s1"}'
    assert (await gate.ask(post(body=body))).status == 200
    spans = await one(sink)
    assert spans.keys() == {"chat m", "decision", "attempt", "prefill", "stream"}
    root, attempt = spans["chat m"], spans["attempt"]
    assert root.parent_span_id == b"" and {span.trace_id for span in spans.values()} == {root.trace_id}
    assert spans["decision"].parent_span_id == attempt.parent_span_id == root.span_id
    assert spans["prefill"].parent_span_id == spans["stream"].parent_span_id == attempt.span_id
    assert {name: span.kind for name, span in spans.items()} == {
        "chat m": SERVER, "decision": INTERNAL, "attempt": CLIENT, "prefill": INTERNAL, "stream": INTERNAL
    }  # fmt: skip
    for span in spans.values():
        assert root.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
    assert spans["prefill"].end_time_unix_nano == spans["stream"].start_time_unix_nano
    said = otlp.values(root)
    assert said.pop("warmroute.time_to_first_token") >= 0 and len(said.pop("warmroute.request_id")) == 32
    assert said == {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "vllm", "gen_ai.request.model": "m",
        "gen_ai.request.max_tokens": 7, "gen_ai.conversation.id": "s1", "gen_ai.usage.input_tokens": 40,
        "gen_ai.usage.output_tokens": 3, "gen_ai.usage.cache_read.input_tokens": 32, "warmroute.route": "default",
        "http.request.method": "POST", "http.route": "/v1/chat/completions", "http.response.status_code": 200,
    }  # fmt: skip
    served = otlp.values(attempt)
    assert (served["warmroute.worker"], served["server.address"]) == (gate.workers[0].id, "127.0.0.1")
    assert (served["warmroute.attempt"], served["gen_ai.response.model"]) == (1, "m")
    assert otlp.values(spans["decision"]).keys() == {
        "warmroute.worker", "warmroute.policy", "warmroute.decision.reason", "warmroute.decision.candidates"
    }  # fmt: skip


async def test_the_worker_gets_the_attempts_span_and_the_caller_is_the_parent(tracing):
    gate, sink = await tracing(answer_json)
    line = f"traceparent: 00-{CALLER}-{SPAN}-01\r\ntracestate: a=b\r\n".encode()
    await gate.ask(post(body=PLAIN, extra=line))
    spans = await one(sink)
    given = traceparent(gate)
    assert (given.trace_id, given.sampled) == (CALLER, True)
    assert given.span_id == spans["attempt"].span_id.hex()
    assert spans["chat m"].parent_span_id.hex() == SPAN and spans["chat m"].trace_id.hex() == CALLER
    lines = gate.workers[0].requests[0].lines
    assert sum(line.lower().startswith(b"traceparent:") for line in lines) == 1 and b"tracestate: a=b" in lines


async def test_each_request_of_a_connection_has_its_own_traceparent(tracing):
    gate, sink = await tracing(answer_json)
    client = await gate.connect()
    for _ in range(4):
        assert (await client.ask(post(body=PLAIN))).status == 200
    ids = [traced(seen.header(b"traceparent")) for seen in gate.workers[0].requests]
    assert len({each.trace_id for each in ids}) == len({each.span_id for each in ids}) == 4
    await eventually(lambda: len(sink.sent) == 4)


async def test_a_request_that_is_tried_again_has_two_attempts(tracing):
    gate, sink = await tracing(refuse, answer_json)
    assert (await gate.ask(post(body=PLAIN))).status == 200
    await eventually(lambda: len(sink.sent) == 1)
    (spans,) = sink.traces
    attempts = [span for span in spans if span.name == "attempt"]
    assert [otlp.values(span)["warmroute.attempt"] for span in attempts] == [1, 2]
    assert [span.status.code for span in attempts] == [2, 0]
    assert otlp.values(attempts[0])["error.type"] == "refused"
    assert attempts[0].end_time_unix_nano <= attempts[1].start_time_unix_nano + 1_000_000
    assert [span.name for span in spans].count("decision") == 2
    sent = {traceparent(gate, place).span_id for place in (0, 1)}
    assert sent == {span.span_id.hex() for span in attempts}


async def test_a_wait_for_a_worker_has_a_span(tracing):
    gate, sink = await tracing(answer_json)
    gate.fleet.drain(gate.workers[0].id)
    client = await gate.send(post(body=PLAIN))
    await eventually(lambda: gate.gateway.statistics()["queued"] == 1)
    gate.fleet.undrain(gate.workers[0].id)
    assert (await client.read()).status == 200
    spans = await one(sink)
    assert otlp.values(spans["wait"]) == {"warmroute.wait.reason": "queued"}
    assert spans["wait"].end_time_unix_nano <= spans["attempt"].end_time_unix_nano


async def test_a_server_error_is_sent_whatever_the_share(tracing):
    gate, sink = await tracing(break_off, share=0.0)
    reply = await gate.ask(post(body=PLAIN))
    assert reply.status >= 500
    spans = await one(sink)
    assert (spans["chat m"].status.code, spans["attempt"].status.code) == (2, 2)
    assert otlp.values(spans["chat m"])["error.type"]
    assert not traceparent(gate).sampled


async def test_a_slow_request_is_sent_whatever_the_share(tracing, monkeypatch):
    async def late(script):
        await asyncio.sleep(0.02)
        await answer_json(script)

    monkeypatch.setattr(trace_layer, "SLOW_S", 0.01)
    gate, sink = await tracing(late, share=0.0)
    await gate.ask(post(body=PLAIN))
    assert (await one(sink))["chat m"].status.code == 0


@pytest.mark.parametrize(("share", "flags", "sent"), [(0.0, None, 0), (1.0, b"00", 0), (0.0, b"01", 1), (1.0, None, 1)])
async def test_a_caller_decides_and_else_the_share(tracing, share, flags, sent):
    gate, sink = await tracing(answer_json, share=share)
    line = b"" if flags is None else b"traceparent: 00-%s-%s-%s\r\n" % (CALLER.encode(), SPAN.encode(), flags)
    assert (await gate.ask(post(body=PLAIN, extra=line))).status == 200
    await eventually(lambda: gate.counted("requests"))
    assert len(sink.sent) == sent
    (durations,) = gate.registry.histogram("request_duration_seconds").values.values()
    assert len(durations.exemplars) == sent, "exemplars name traces that were sent"


async def test_a_client_error_is_no_failure(tracing):
    gate, sink = await tracing(answer_json, share=0.0)
    assert (await gate.ask(post(body=b'{"model":"other","messages":[]}'))).status == 404
    await eventually(lambda: gate.counted("requests"))
    assert sink.sent == []


async def test_without_traces_nothing_is_sent_to_workers(rig):
    gate = await rig(answer_json)
    await gate.ask(post(body=PLAIN))
    assert gate.workers[0].requests[0].header(b"traceparent") is None
