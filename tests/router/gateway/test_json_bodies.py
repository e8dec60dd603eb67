"""Every JSON object is read, even on paths whose bodies only the worker interprets."""

import json

import httptools
import pytest

from router.errors import ErrorKind, RequestError
from router.gateway.flow.identify import read_request
from router.gateway.http.request_head import parse_head
from router.gateway.http.routes import RouteTable

PATH = "/inference/v1/generate"
FIELDS = b'"kv_transfer_params":{"do_remote_prefill":true}}'


def read(body):
    head = parse_head(b"POST %s HTTP/1.1\r\nHost: gw\r\n\r\n" % PATH.encode(), httptools.HttpRequestParser(object()))
    return read_request(RouteTable().find(PATH), head, body).fields


@pytest.mark.parametrize(
    "body",
    [
        b'{"n":1e400,' + FIELDS,
        b'{"n":NaN,' + FIELDS,
        b'{"model":"\xed\xa0\x80",' + FIELDS,
        b'{"model":"\\ud800",' + FIELDS,
        b'{"stream_options":{"a":-Infinity},' + FIELDS,
        b"\xef\xbb\xbf{" + FIELDS,
        ('{"n":1e400,' + FIELDS.decode()).encode("utf-16"),
    ],
)
def test_json_that_only_python_accepts_is_read(body):
    assert json.loads(body)["kv_transfer_params"]
    assert read(body) is not None


@pytest.mark.parametrize(
    "value",
    [b"[" * 5_000 + b"]" * 5_000, b"[NaN" + b",0" * 20_000 + b"]"],
    ids=["nested deeper than this Python reads", "more elements than are read by Python's parser"],
)
def test_json_that_only_a_worker_may_accept_is_refused(value):
    with pytest.raises(RequestError) as caught:
        read(b'{"a":' + value + b"," + FIELDS)
    assert caught.value.kind is ErrorKind.INVALID_JSON


@pytest.mark.parametrize("body", [b"", b"{", b"\x00", b'{"a":1}x', b'{"n":' + b"9" * 5_000 + b"}"])
def test_a_body_that_is_no_json_object_is_left_to_the_worker(body):
    fields = read(body)
    assert fields is None or not body
