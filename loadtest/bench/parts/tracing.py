"""Measure what a traced request costs: ``python -m loadtest.bench.parts.tracing``.

The figures are CPU time in microseconds of the calls that the gateway makes for one streamed request: its trace begins,
one decision and one attempt are recorded, the attempt's traceparent is written, and the spans are made and queued. The
queue's batches are made, too; sending them is not measured. The round with the least time counts: other programs on the
machine only add to it.
"""

from __future__ import annotations

import argparse
import json
import time
from types import SimpleNamespace
from typing import Any, cast

from policies.view import Decision, FleetView, RequestView, Residency, WorkerId, WorkerView
from router.config.model import TracingConfig
from router.gateway.flow.request_trace import RequestTrace, TracedAttempt, TracedRequest, Tracer
from router.placement.lifecycle_events import Request, Usage
from router.telemetry.trace_exporter import BATCH, TraceExporter

BAR_US = 15.0
"""Bar of a traced request, on one core of the machine of docs/benchmarks.md."""
USAGE = Usage(1_000, 200, 768)


def _attempt() -> Any:
    worker = WorkerId("10.0.0.5:8000")
    views = tuple(
        WorkerView(WorkerId(f"10.0.0.{n}:8000"), Residency.EXACT, 0, 1, 0, 0, 0, 0, 0.0, 0.0, 0.0) for n in range(5, 9)
    )
    record = SimpleNamespace(
        worker=worker,
        policy="default",
        decision=Decision((worker,), "least added delay"),
        fleet=FleetView(0.0, views),
        request=RequestView("r", "m", 1_000, 16, ()),
    )
    endpoint = SimpleNamespace(endpoint=SimpleNamespace(host="10.0.0.5"))
    ticket = SimpleNamespace(
        record=record,
        candidate=SimpleNamespace(id=worker, endpoint=endpoint),
        attempt=1,
        residency=Residency.EXACT,
        predicted_cached_tokens=768,
        request=SimpleNamespace(model="Qwen/Qwen3-8B", stream=True),
    )
    return SimpleNamespace(ticket=ticket, failure=None, sent=True, since_s=10.01)


def _request() -> Any:
    request = Request("r", "/v1/chat/completions", "Qwen/Qwen3-8B", None, 1_000, 10.0, max_tokens=512)
    return SimpleNamespace(
        head=SimpleNamespace(method="POST", fields={}),
        route=SimpleNamespace(pattern="/v1/chat/completions"),
        id=b"0123456789abcdef0123456789abcdef",
        named="Qwen/Qwen3-8B",
        request=request,
        arrived_s=10.0,
    )


def measured(requests: int, share: float) -> float:
    """Return the microseconds of CPU time for each of `requests` requests, of which `share` are traced."""
    wanted = TracingConfig(endpoint="http://127.0.0.1:9/v1/traces", share=share, slow_s=None, queue=requests)
    exporter = TraceExporter(wanted)
    tracer = Tracer(wanted, exporter, time.monotonic)
    attempt, outbound = cast(TracedAttempt, _attempt()), cast(TracedRequest, _request())
    head = outbound.head
    began_s = time.process_time()
    for number in range(requests):
        trace: RequestTrace = tracer.begin(head)
        trace.decided(attempt.ticket, 10.001, 0.0002)
        trace.attempted(attempt, 10.002)
        trace.line(attempt)
        trace.ended(outbound, 200, 2.0, 0.3, USAGE, None)
        if number % BATCH == BATCH - 1:
            exporter.batch(BATCH)
    exporter.batch(BATCH)
    return (time.process_time() - began_s) / requests * 1e6


def main() -> int:
    """Print the figures as JSON; return 1 if the traced request is above its bar and `--check` is given."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.parts.tracing", description=__doc__)
    parser.add_argument("--requests", type=int, default=512, help="requests of one round (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=60, help="rounds (default %(default)s)")
    parser.add_argument("--check", action="store_true", help="exit with 1 above the bar")
    args = parser.parse_args()
    figures = {
        name: round(min(measured(args.requests, share) for _ in range(args.rounds)), 2)
        for name, share in (("traced_us", 1.0), ("recorded_only_us", 0.0))
    }
    print(json.dumps({**figures, "bar_us": BAR_US}))
    return int(args.check and figures["traced_us"] > BAR_US)


if __name__ == "__main__":
    raise SystemExit(main())
