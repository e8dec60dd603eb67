"""The trace of one request: what happened when, and the spans of it once it has ended.

Every request is recorded while traces are on, because only its end says whether it was slow or failed. Spans are made
for those that are sent alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from router.config.model import TracingConfig
from router.errors import RequestError
from router.placement.request import Usage
from router.placement.tickets import Held, Queued, Ticket
from router.requests.layer import Feature, Layer, LayeredAttempt, LayeredRequest, RequestEnd
from router.tracing import attributes as names
from router.tracing.context import traced, traceparent
from router.tracing.spans import CLIENT, INTERNAL, SERVER, new_span_id, new_trace_id, span

_DECISION: Final = '"decision"'
_WAIT: Final = '"wait"'
_ATTEMPT: Final = '"attempt"'
_PREFILL: Final = '"prefill"'
_STREAM: Final = '"stream"'
_WRITTEN: Final = 1_024
_KEPT: Final = 16
"""Decisions and waits of one request that its trace has. A request may be offered workers any number of times."""


class TraceSink(Protocol):
    """Takes the spans of ended requests. Must not raise or block."""

    def export(self, spans: bytes) -> None:
        """Send the spans of one request: OTLP's JSON, joined by commas."""


SLOW_S = 10.0
"""Requests that take longer are always traced."""


class Tracer(Feature):
    def __init__(self, wanted: TracingConfig, sink: TraceSink, time_s: Callable[[], float]) -> None:
        self._share = wanted.share
        self.sink = sink
        self.time = time_s
        self.written: dict[tuple[object, ...], str] = {}
        """Attributes that are the same for many requests, as text."""

    def keep(self, key: tuple[object, ...], attributes: Sequence[str]) -> str:
        if len(self.written) >= _WRITTEN:
            self.written.clear()
        text = self.written[key] = ",".join(attributes)
        return text

    def layer(self, request: LayeredRequest) -> RequestTrace:
        """Return the trace of a request: a part of its caller's, if it names one."""
        caller = traced(request.head.fields.get(b"traceparent"))
        if caller is not None:
            return RequestTrace(self, request, caller.trace_id, caller.span_id, caller.sampled)
        trace_id = new_trace_id()
        return RequestTrace(self, request, trace_id, "", int(trace_id[16:], 16) < self._share * 2.0**64)


class RequestTrace(Layer):
    """Decisions, waits and attempts of one request, by the event loop's clock."""

    __slots__ = (
        "_attempts", "_decisions", "_parent_id", "_request", "_sampled", "_span_id", "_trace_id", "_tracer", "_waiting",
        "_waits",
    )  # fmt: skip

    def __init__(self, tracer: Tracer, request: LayeredRequest, trace_id: str, parent_id: str, sampled: bool) -> None:
        self._tracer = tracer
        self._request = request
        self._trace_id = trace_id
        self._sampled = sampled
        """Whether it is sent however the request ends."""
        request.exemplar = trace_id if sampled else None
        self._parent_id = parent_id
        self._span_id = new_span_id()
        self._decisions: list[tuple[float, float, Ticket | None]] = []
        self._waits: list[tuple[str, float, float]] = []
        self._waiting: tuple[str, float] | None = None
        self._attempts: list[tuple[LayeredAttempt, str, float, str]] = []

    def decided(self, placed: Ticket | Queued | Held | RequestError, now_s: float, took_s: float) -> None:
        """Record the answer to a call for a worker. Calls that only lengthen a wait are left out."""
        at_s = now_s
        reason = "queued" if isinstance(placed, Queued) else "held" if isinstance(placed, Held) else ""
        waiting = self._waiting
        if waiting is not None and waiting[0] == reason:
            return
        self._end_wait(at_s)
        if reason:
            self._waiting = (reason, at_s)
        if len(self._decisions) < _KEPT:
            self._decisions.append((at_s, took_s, placed if isinstance(placed, Ticket) else None))

    def _end_wait(self, at_s: float) -> None:
        if self._waiting is not None and len(self._waits) < _KEPT:
            reason, since_s = self._waiting
            self._waits.append((reason, since_s, at_s))
        self._waiting = None

    def attempted(self, attempt: LayeredAttempt, now_s: float, leg: str) -> None:
        self._attempts.append((attempt, new_span_id(), now_s, leg))

    def worker_lines(self, attempt: LayeredAttempt) -> bytes:
        for other, span_id, _, _ in reversed(self._attempts):
            if other is attempt:
                return traceparent(self._trace_id, span_id, self._sampled)
        return b""

    def ended(self, end: RequestEnd) -> None:
        """Send the trace of the ended request if it is sampled, slow or failed."""
        failed = end.status >= 500 or (end.error is not None and end.status < 400)
        tracer, request = self._tracer, self._request
        sent = self._sampled or failed or end.duration_s >= SLOW_S
        request.exemplar = self._trace_id if sent else None
        if sent:
            end_s = request.arrived_s + end.duration_s
            self._end_wait(end_s)
            first_s = None if end.ttft_s is None else request.arrived_s + end.ttft_s
            to_unix_s = time.time() - tracer.time()
            code = end.error or str(end.status) if failed else None
            spans = [self._root(request, end.status, end_s, end.ttft_s, end.usage, code, to_unix_s)]
            self._add_parts(spans, first_s, end_s, to_unix_s)
            tracer.sink.export(",".join(spans).encode())
        self._attempts.clear()  # an attempt holds its outbound request, and so this object

    # spans

    def _root(
        self,
        outbound: LayeredRequest,
        status: int,
        end_s: float,
        ttft_s: float | None,
        usage: Usage,
        failure: str | None,
        to_unix_s: float,
    ) -> str:
        request = outbound.request
        route, model = ("", None) if request is None else (request.route, outbound.named or request.model)
        key = (outbound.head.method, outbound.route.pattern, route, model)
        said = self._tracer.written.get(key) or self._tracer.keep(key, _common(*key))
        said += f",{names.STATUS.whole(status)},{names.REQUEST_ID.text(outbound.id.decode('latin-1'))}"
        if request is not None and request.max_tokens is not None:
            said += "," + names.MAX_TOKENS.whole(request.max_tokens)
        if request is not None and request.session_id is not None:
            said += "," + names.CONVERSATION.text(request.session_id)
        if ttft_s is not None:
            said += "," + names.FIRST_TOKEN_S.real(round(ttft_s, 6))
        if usage.prompt_tokens is not None:
            said += "," + names.INPUT_TOKENS.whole(usage.prompt_tokens)
        if usage.completion_tokens is not None:
            said += "," + names.OUTPUT_TOKENS.whole(usage.completion_tokens)
        if usage.cached_tokens is not None:
            said += "," + names.CACHED_TOKENS.whole(usage.cached_tokens)
        if failure is not None:
            said += "," + names.ERROR.text(failure)
        start_s, ends_s, failed = outbound.arrived_s + to_unix_s, end_s + to_unix_s, failure is not None
        title = self._tracer.written.get(key[:2] + key[3:]) or self._tracer.keep(key[:2] + key[3:], (_title(*key),))
        return span(self._trace_id, self._span_id, self._parent_id, title, SERVER, start_s, ends_s, said, failed)

    def _add_parts(self, spans: list[str], first_s: float | None, end_s: float, to_unix_s: float) -> None:
        trace_id, root_id = self._trace_id, self._span_id
        for at_s, took_s, ticket in self._decisions:
            said, start_s = "" if ticket is None else self._decision(ticket), at_s + to_unix_s
            spans.append(span(trace_id, new_span_id(), root_id, _DECISION, INTERNAL, start_s, start_s + took_s, said))
        for reason, since_s, until_s in self._waits:
            said, start_s, ends_s = names.WAITS_FOR.text(reason), since_s + to_unix_s, until_s + to_unix_s
            spans.append(span(trace_id, new_span_id(), root_id, _WAIT, INTERNAL, start_s, ends_s, said))
        last = len(self._attempts) - 1
        for place, (attempt, span_id, at_s, leg) in enumerate(self._attempts):
            until_s = end_s if place == last else self._attempts[place + 1][2]
            begun_s = first_s if place == last else None
            self._add_attempt(spans, attempt, span_id, leg, at_s, until_s, begun_s, to_unix_s)

    def _decision(self, ticket: Ticket) -> str:
        record = ticket.record
        key = (record.worker, record.policy, record.decision.reason, len(record.fleet))
        return self._tracer.written.get(key) or self._tracer.keep(
            key,
            (
                names.WORKER.text(record.worker),
                names.POLICY.text(record.policy),
                names.REASON.text(record.decision.reason),
                names.CANDIDATES.whole(len(record.fleet)),
            ),
        )

    def _add_attempt(
        self,
        spans: list[str],
        attempt: LayeredAttempt,
        span_id: str,
        leg: str,
        at_s: float,
        until_s: float,
        first_s: float | None,
        to_unix_s: float,
    ) -> None:
        """Add an attempt and, if the request was sent and is a stream, the worker's prefill and stream."""
        ticket, failure, trace_id = attempt.ticket, attempt.failure, self._trace_id
        key = (ticket.candidate.id, ticket.candidate.endpoint.endpoint.host, ticket.residency, ticket.request.model)
        said = self._tracer.written.get(key) or self._tracer.keep(key, _served(*key))
        said += "," + names.ATTEMPT.whole(ticket.attempt)
        if leg:
            said += "," + names.LEG.text(leg)
        if ticket.predicted_cached_tokens is not None:
            said += "," + names.PREDICTED.whole(ticket.predicted_cached_tokens)
        if failure is not None:
            said += "," + names.ERROR.text(failure.point.value)
        failed, ends_s = failure is not None, until_s + to_unix_s
        spans.append(span(trace_id, span_id, self._span_id, _ATTEMPT, CLIENT, at_s + to_unix_s, ends_s, said, failed))
        if not attempt.sent or not ticket.request.stream:
            return
        sent_s = attempt.since_s + to_unix_s
        if first_s is None:
            spans.append(span(trace_id, new_span_id(), span_id, _PREFILL, INTERNAL, sent_s, ends_s, "", failed))
            return
        seen_s = first_s + to_unix_s
        spans.append(span(trace_id, new_span_id(), span_id, _PREFILL, INTERNAL, sent_s, seen_s, ""))
        spans.append(span(trace_id, new_span_id(), span_id, _STREAM, INTERNAL, seen_s, ends_s, "", failed))


def _title(method: str, path: str, _: str, model: str | None) -> str:
    """Return the name of the whole request's span: GenAI's if there is one."""
    operation = names.OPERATIONS.get(path) if model is not None else None
    return names.quoted(f"{method} {path}" if operation is None else f"{operation} {model}")


def _common(method: str, path: str, route: str, model: str | None) -> list[str]:
    said = [names.METHOD.text(method), names.HTTP_ROUTE.text(path)]
    if route:
        said.append(names.ROUTE.text(route))
    operation = names.OPERATIONS.get(path)
    if operation is not None and model is not None:
        said += [names.OPERATION.text(operation), names.PROVIDER.text("vllm"), names.REQUEST_MODEL.text(model)]
    return said


def _served(worker: str, host: str, residency: str, model: str | None) -> list[str]:
    said = [names.WORKER.text(worker), names.SERVER.text(host), names.RESIDENCY.text(residency)]
    return said if model is None else [*said, names.RESPONSE_MODEL.text(model)]
