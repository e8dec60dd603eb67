"""OTLP's JSON, read by OpenTelemetry's own definition of it, and a receiver."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from router.tracing.spans import envelope

_IDS = ("traceId", "spanId", "parentSpanId")


def read(body: bytes) -> Any:
    """Return an ExportTraceServiceRequest. A field or a type that OTLP does not have raises ParseError."""
    return json_format.ParseDict(_with_ids(json.loads(body)), ExportTraceServiceRequest())


def _with_ids(node: Any) -> Any:
    """Write ids as protocol buffers have bytes: OTLP writes them in hexadecimal."""
    if isinstance(node, list):
        return [_with_ids(each) for each in node]
    if not isinstance(node, dict):
        return node
    return {
        key: base64.b64encode(bytes.fromhex(value)).decode() if key in _IDS else _with_ids(value)
        for key, value in node.items()
    }


def spans(body: bytes) -> list[Any]:
    return [each for one in read(body).resource_spans for scope in one.scope_spans for each in scope.spans]


def values(span: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


class Sink:
    """Keeps what a gateway exports. Satisfies `TraceSink`."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def export(self, spans: bytes) -> None:
        self.sent.append(spans)

    @property
    def traces(self) -> list[list[Any]]:
        before, after = envelope({}, "")
        return [spans(before + each + after) for each in self.sent]


class Receiver:
    """An OTLP receiver on a free loopback port. `answer` gives the status and the body for each request's number."""

    def __init__(self, answer: Callable[[int], tuple[int, bytes]] = lambda _: (200, b"{}")) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.requests.append((self.path, headers, body))
                status, said = answer(len(receiver.requests))
                self.send_response(status)
                self.send_header("content-length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = Thread(target=self._server.serve_forever, args=(0.01,))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @property
    def spans(self) -> list[Any]:
        return [each for _, _, body in self.requests for each in spans(body)]

    def __enter__(self) -> Receiver:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
