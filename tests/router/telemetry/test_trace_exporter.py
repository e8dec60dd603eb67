import logging

import pytest

from router.config.model import TracingConfig
from router.telemetry import trace_exporter
from router.telemetry.trace_exporter import TraceExporter
from router.tracing.spans import INTERNAL, new_span_id, new_trace_id, span
from tests.support import otlp
from tests.support.waiting import eventually


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(trace_exporter, "EXPORT_S", 0.01)
    monkeypatch.setattr(trace_exporter, "RETRY_S", 0.001)


def one():
    return span(new_trace_id(), new_span_id(), "", '"request"', INTERNAL, 1.0, 2.0, "").encode()


def exporter(url, **settings):
    return TraceExporter(TracingConfig(endpoint=f"{url}/v1/traces", **settings))


async def test_traces_arrive_with_the_settings_headers_and_resource():
    with otlp.Receiver() as receiver:
        traces = exporter(
            receiver.url, headers={"x-key": "secret word"}, resource={"deployment.environment.name": "test"}
        )
        traces.start()
        for _ in range(300):
            traces.export(one())
        await eventually(lambda: traces.counts["sent"] == 300)
        await traces.aclose()
    assert len(receiver.spans) == 300 and len({each.span_id for each in receiver.spans}) == 300
    path, headers, body = receiver.requests[0]
    assert (path, headers["x-key"], headers["content-type"]) == ("/v1/traces", "secret word", "application/json")
    resource = otlp.values(otlp.read(body).resource_spans[0].resource)
    assert (resource["service.name"], resource["deployment.environment.name"]) == ("warmroute", "test")
    assert resource.keys() >= {"service.version", "service.instance.id"}


async def test_a_full_queue_drops_further_traces(monkeypatch):
    monkeypatch.setattr("router.telemetry.trace_exporter.QUEUED_REQUESTS", 5)
    traces = exporter("http://127.0.0.1:9")
    for _ in range(8):
        traces.export(one())
    assert traces.counts == {"sent": 0, "dropped": 3, "failed": 0}


async def test_what_is_queued_is_sent_at_the_end():
    with otlp.Receiver() as receiver:
        traces = exporter(receiver.url)
        traces.start()
        traces.export(one())
        await traces.aclose()
        assert len(receiver.spans) == 1


@pytest.mark.parametrize(("status", "tries"), [(503, 3), (429, 3), (400, 1), (401, 1)])
async def test_a_refusal_is_tried_again_if_it_may_pass(status, tries, caplog):
    with otlp.Receiver(lambda _: (status, b"")) as receiver:
        traces = exporter(receiver.url)
        traces.start()
        with caplog.at_level(logging.WARNING):
            traces.export(one())
            await eventually(lambda: traces.counts["failed"] == 1)
            traces.export(one())
            await eventually(lambda: traces.counts["failed"] == 2)
        await traces.aclose()
    assert len(receiver.requests) == 2 * tries
    assert [record.reason for record in caplog.records] == [f"HTTP {status}"], "said once"


async def test_a_receiver_that_comes_back_gets_the_batch():
    with otlp.Receiver(lambda number: (503 if number < 3 else 200, b"{}")) as receiver:
        traces = exporter(receiver.url)
        traces.start()
        traces.export(one())
        await eventually(lambda: traces.counts["sent"] == 1)
        await traces.aclose()
    assert len(receiver.requests) == 3


async def test_without_a_receiver_traces_are_counted_as_failed():
    with otlp.Receiver() as receiver:
        url = receiver.url
    traces = exporter(url)
    traces.start()
    traces.export(one())
    await eventually(lambda: traces.counts["failed"] == 1)
    await traces.aclose()


@pytest.mark.parametrize("answer", [b'{"partialSuccess":{"rejectedSpans":"2"}}', b"not json", b'{"partialSuccess":{}}'])
async def test_any_answer_of_the_receiver_is_survived(answer, caplog):
    with otlp.Receiver(lambda _: (200, answer)) as receiver:
        traces = exporter(receiver.url)
        traces.start()
        traces.export(one())
        await eventually(lambda: traces.counts["sent"] == 1)
        await traces.aclose()
    assert [record.spans for record in caplog.records] == ([2] if b"2" in answer else [])
