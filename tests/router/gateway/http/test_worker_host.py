import json
from dataclasses import replace

import msgspec
import pytest

from backends.worker import parse_endpoint
from router.config.model import WorkerConfig
from router.control.state.desired_state import endpoint_of
from tests.conformance.conftest import RecordingWorker
from tests.support.raw_client import post
from tests.support.waiting import eventually

CLIENT_HOST = b"gateway.example.com"


def request(*lines, path="/v1/chat/completions"):
    body = b'{"model":"m","messages":[]}'
    method = b"POST" if path.endswith("completions") else b"GET"
    head = [method + b" %s HTTP/1.1" % path.encode(), b"Host: " + CLIENT_HOST, *lines]
    if method == b"GET":
        return b"\r\n".join([*head, b"", b""])
    return b"\r\n".join([*head, b"Content-Length: %d" % len(body), b"", body])


@pytest.mark.parametrize(
    ("host", "sent"), [("worker", None), ("client", CLIENT_HOST), ("svc.example.com:8443", b"svc.example.com:8443")]
)
async def test_a_worker_gets_the_host_that_its_setting_names(rig, host, sent):
    worker = await RecordingWorker().start()
    gate = await rig()
    joined = gate.join(worker)
    joined.endpoint = endpoint_of(WorkerConfig(url=f"http://{worker.id}", host=host))
    for _ in range(2):  # the second head is made from the first
        assert (await gate.ask(request())).status == 200
    for received in worker.received:
        assert received.values(b"host") == [sent or worker.id.encode()]
        assert received.values(b"x-forwarded-host") == [CLIENT_HOST]
    await worker.stop()


def test_a_host_leaves_out_the_port_of_its_scheme():
    assert parse_endpoint("https://w.example.com").sent_host == "w.example.com"
    assert parse_endpoint("http://w.example.com:443").sent_host == "w.example.com:443"
    assert parse_endpoint("http://[::1]:80").sent_host == "[::1]"


def test_a_named_host_is_the_name_in_tls():
    endpoint = parse_endpoint("https://10.0.0.7:8443")
    assert endpoint.tls_name == "10.0.0.7"
    assert replace(endpoint, host_header="svc.example.com:443").tls_name == "svc.example.com"
    assert replace(endpoint, host_header=None).tls_name == "10.0.0.7"


@pytest.mark.parametrize("host", ["", "two words", "a/b", "a\nb", "user@host"])
def test_a_host_that_no_header_can_have_is_refused(host):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"url": "http://w:1", "host": host}, WorkerConfig)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/health", "/v1/models", "/unknown"])
async def test_a_request_that_comes_back_is_refused_at_once(rig, path):
    worker = await RecordingWorker().start()
    gate = await rig()
    gate.join(worker)
    assert (await gate.ask(request())).status == 200
    (via,) = worker.received[0].values(b"via")
    reply = await gate.ask(request(b"Via: 1.1 nginx", b"Via: " + via, path=path))
    assert (reply.status, json.loads(reply.body)["error"]["code"]) == (508, "loop_detected")
    assert (await gate.ask(request(b"Via: 1.1 warmroute-0123456789abcdef"))).status == 200  # another gateway's
    await worker.stop()


async def test_a_circle_of_gateways_ends_at_its_first_gateway(rig):
    one, two = await rig(retries={"max_attempts": 1}), await rig(retries={"max_attempts": 1})
    one.join(f"http://{two.address}")
    two.join(f"http://{one.address}")
    reply = await one.ask(post(body=b'{"model":"m","messages":[]}'))
    assert (reply.status, json.loads(reply.body)["error"]["code"]) == (508, "loop_detected")
    await eventually(lambda: one.idle and two.idle)
