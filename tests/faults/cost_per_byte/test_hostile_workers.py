import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.measures]
MB = 1_000_000
GAUGE = b'vllm:num_requests_running{engine="%d"} 1\n'
ANSWERS = {
    "samples, 8 MB": {"/metrics": b"".join(GAUGE % (n % 4_096) for n in range(180_000))},
    "samples, 1 MB": {"/metrics": b"".join(GAUGE % (n % 500) for n in range(22_000))},
    "labels, 1 MB": {"/metrics": b"vllm:num_requests_running{" + b'a="b",' * 170_000 + b"} 1\n"},
    "short lines, 1 MB": {"/metrics": b"v\n" * 520_000 + GAUGE % 0},
    "models, 1 MB": {"/v1/models": b'{"data":[' + b'{"id":"a"},' * 94_000 + b'{"id":"a"}]}'},
    "event sources": {"/kv_event_sources": b"{" + b",".join(b'"%d":{}' % n for n in range(20_000)) + b"}"},
}
"""What one worker answers to some control calls; to the others it answers as vLLM does."""
ORDINARY = {
    "/health": b"",
    "/version": b'{"version":"0.33.0"}',
    "/v1/models": b'{"data":[{"id":"m","max_model_len":1000}]}',
    "/metrics": GAUGE % 0,
}


@contextmanager
def answering(pages):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_GET(self):
            body = pages.get(self.path)
            self.send_response(404 if body is None else 200)
            self.send_header("content-length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


@pytest.mark.parametrize("name", ANSWERS)
def test_control_answers_that_are_costly_to_read_stall_nobody(own_ground, bars, name):
    bench = own_ground.bench([own_ground.worker()])
    with answering(ORDINARY | ANSWERS[name]) as url:

        def join():
            httpx.post(bench.admin_url + "/admin/v1/workers", json={"url": url}, timeout=20).raise_for_status()
            time.sleep(4.0)
            worker_id = url.removeprefix("http://")
            httpx.delete(f"{bench.admin_url}/admin/v1/workers/{worker_id}", timeout=20).raise_for_status()

        bench.row(name, join, 0, bars(spare_bytes=64 * MB))
