import httptools
import pytest

from router.requests.identify.reading import read_request
from router.requests.request_head import parse_head
from router.requests.routes import RouteTable
from router.tokenization.body.intake import UnreadBody, parse

PATH = "/inference/v1/generate"
FIELDS = b'"kv_transfer_params":{"do_remote_prefill":true}}'


def read(body):
    head = parse_head(b"POST %s HTTP/1.1\r\nHost: gw\r\n\r\n" % PATH.encode(), httptools.HttpRequestParser(object()))
    return read_request(RouteTable().find(PATH), head, body)


@pytest.mark.parametrize(
    "value",
    [b"[" * 5_000 + b"]" * 5_000, b"[1.5" + b",1.5" * 10_000 + b',"\\ud800"]'],
    ids=["nested deeper than this Python reads", "more floats than are decoded at once"],
)
def test_json_beyond_the_bounds_of_python_is_read_in_steps(value):
    assert read(b'{"a":' + value + b"," + FIELDS).transfer_field == "kv_transfer_params"


def test_large_json_that_only_python_accepts_is_not_read_at_once():
    body = b'{"a":[NaN' + b",0" * 40_000 + b"]," + FIELDS
    with pytest.raises(UnreadBody):
        read(body)
    assert parse(PATH, body).transfer_field == "kv_transfer_params"


@pytest.mark.parametrize("body", [b"", b"{", b"\x00", b'{"a":1}x', b'{"n":' + b"9" * 5_000 + b"}"])
def test_a_body_that_is_no_json_object_is_left_to_the_worker(body):
    assert read(body).is_json == (not body)
