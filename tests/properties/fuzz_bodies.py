"""Any body is read or refused, never a crash, at a cost linear in its size."""

import json
from contextlib import suppress

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.config.model import LimitsConfig
from router.errors import RequestError
from router.gateway.http.client.request_framer import RequestFramer
from router.requests.body_buffer_limit import BodyBufferLimit
from router.requests.identify.reading import read_request
from router.requests.request_head import parse_head
from router.requests.routes import RouteTable
from router.tokenization.body.bounds import decoded_bytes, fits_inline
from router.tokenization.body.decoding import CostlyBody
from router.tokenization.body.fields import BodyFields
from router.tokenization.body.intake import parse
from router.tokenization.body.multipart import read_form
from router.tokenization.body.parsed_body import PROMPT_PATHS
from router.tokenization.preparing import texts_of
from tests.conformance.corpus import MAX_HEADER_BYTES, H, P
from tests.properties.limits import grown, limited, linear_cpu
from tests.properties.mutations import MUTATIONS, PIECES, budget, grown_budget, mutated

pytestmark = [pytest.mark.slow, pytest.mark.timeout(0), pytest.mark.usefixtures("bounded_memory")]

LENIENT_PATH = "/inference/v1/generate"
LENIENT = RouteTable().find(LENIENT_PATH)
HEAD = parse_head(
    b"POST %s HTTP/1.1\r\nHost: gw\r\n\r\n" % LENIENT_PATH.encode(), httptools.HttpRequestParser(object())
)
PATHS = st.sampled_from([*sorted(PROMPT_PATHS), "/v1/embeddings"])
NAMES = [json.dumps(name).encode() for name in (*BodyFields.__struct_fields__, "role", "content", "type", "text")]
SCALARS = [
    b"null", b"true", b"0", b"-1", b"1e400", b"1.5", b"NaN", b"-Infinity", b"9" * 30, b"9" * 5_000, b'""', b'"m"',
    b'"user"', b'"true"', b'"\\ud800"', b'"\\ud83d\\ude00"', b'"\xed\xa0\x80"', b'"\xff"', b'"\x00"', b'"\\u0000"',
    b'"' + b"x" * 300 + b'"',
]  # fmt: skip
MARKS = [b"{", b"}", b"[", b"]", b",", b":", b" ", b"\n", b'"', b"\\", b"//", b"\xef\xbb\xbf", b"\xff\xfe", b"'"]
TOKEN = st.sampled_from([*NAMES, *SCALARS, *MARKS])
VALUE = st.recursive(
    st.sampled_from(SCALARS),
    lambda inner: (
        st.lists(inner, max_size=4).map(lambda items: b"[" + b",".join(items) + b"]")
        | st.lists(st.tuples(st.sampled_from(NAMES), inner), max_size=5).map(
            lambda members: b"{" + b",".join(name + b":" + value for name, value in members) + b"}"
        )
    ),
    max_leaves=12,
)
BODIES = st.lists(st.tuples(st.sampled_from(NAMES), VALUE), max_size=8).map(
    lambda members: b"{" + b",".join(name + b":" + value for name, value in members) + b"}"
)


def read(path, body):
    """Run every step on a body before placement. A refusal is a `RequestError`."""
    try:
        parsed = parse(path, body)
    except RequestError:
        return
    decoded_bytes(parsed)
    fits_inline(parsed)
    assert parsed.model is None or parsed.model.encode() is not None
    try:
        fields = parsed.decoded()
    except (RequestError, CostlyBody):
        return
    if path in PROMPT_PATHS:
        try:
            texts_of(path, fields)
        except (AssertionError, MemoryError):  # raised by the limits themselves
            raise
        except Exception:  # `preparing` catches every error: a body can fail in any way
            pass
    parsed.release()


@budget(5)
@given(PATHS, BODIES, MUTATIONS)
@limited
def test_changed_json_is_read_or_refused(path, body, mutations):
    read(path, mutated(body, mutations))


def is_object(body):
    try:
        return isinstance(json.loads(body), dict)
    except (ValueError, RecursionError):
        return False


@budget(5)
@given(BODIES, MUTATIONS)
@limited
def test_every_object_is_read_or_refused(body, mutations):
    body = mutated(body, mutations)
    try:
        reading = read_request(LENIENT, HEAD, body)
    except RequestError:
        return
    assert reading.is_json or not is_object(body)


@budget(5)
@given(PATHS, st.lists(TOKEN, max_size=40).map(b"".join) | st.binary(max_size=300))
@limited
def test_json_tokens_in_any_order_are_read_or_refused(path, body):
    read(path, body)


OPENINGS = [b"", b"{", b"[", b'{"messages":[', b'{"prompt":[', b'{"prompt":"', b'{"input":[', b'{"model":"', b'{"x":{']
CLOSINGS = [b"", b"}", b"]}", b'"}', b"NaN]}", b'0],"stream":"true"}', b'"]}']


@grown_budget(1)
@given(
    PATHS, st.sampled_from(OPENINGS), st.lists(TOKEN, min_size=1, max_size=6).map(b"".join), st.sampled_from(CLOSINGS)
)
@limited
def test_grown_json_costs_linear_time(path, before, unit, behind):
    body = grown(before, unit, behind)
    with linear_cpu(len(body)):
        read(path, body)


FORM = [
    b"--xyz\r\n", b"\r\n--xyz\r\n", b"\r\n--xyz--\r\n", b"--xyz", b"Content-Disposition: form-data",
    b"content-disposition:", b'; name="model"', b"; name=model", b'; filename="a"', b";", b"=", b'"', b"\\",
    b"\r\n\r\n", b"\r\n", b"whisper", b" ", b"\t", b"\xff", b"a",
]  # fmt: skip
FORM_BYTES = st.lists(st.sampled_from(FORM), max_size=30).map(b"".join)
TYPES = st.sampled_from(["multipart/form-data; boundary=xyz", 'multipart/form-data;boundary="xyz"', "boundary=", "x"])


def form_read(content_type, body):
    with suppress(RequestError):
        read_form(content_type.encode("latin-1", "replace"), body)


@budget(10)
@given(TYPES | st.text(max_size=60), FORM_BYTES, MUTATIONS)
@limited
def test_forms_are_read_or_refused(content_type, body, mutations):
    form_read(content_type, mutated(body, mutations))


@grown_budget(3)
@given(TYPES, FORM_BYTES, st.lists(st.sampled_from(FORM), min_size=1, max_size=5).map(b"".join), FORM_BYTES)
@limited
def test_grown_forms_cost_linear_time(content_type, before, unit, behind):
    body = grown(before, unit, behind)
    with linear_cpu(len(body)):
        form_read(content_type, body)
    heads = b"".join(b"\r\n--xyz\r\n" + (unit * 8_000)[:8_000] + b"\r\n\r\n" for _ in range(50))
    with linear_cpu(len(heads)):
        form_read(content_type, heads)


@grown_budget(1)
@given(st.lists(st.text(max_size=8), min_size=1, max_size=4).map("".join))
@limited
def test_grown_content_types_cost_linear_time(unit):
    content_type = "multipart/form-data" + unit * (MAX_HEADER_BYTES // len(unit) if unit else 0)
    with linear_cpu(len(content_type)):
        form_read(content_type, b"--xyz\r\n")


HEAD_PIECES = [
    *PIECES, b"X: y\r\n", b"X", b": ", b"a", b"GET ", b"/", b"Host", b"%", b"1\r\nx\r\n", b"[", b"0", b";a=b",
]  # fmt: skip
HEADS = st.sampled_from(
    [b"", P, P + H, P + H + b"X:", P + b"Host: ", P + H + b"Connection: ", P + H + b"Transfer-Encoding: "]
)
CHUNKS = P + H + b"Transfer-Encoding: chunked\r\n\r\n"


def frame(pieces):
    limits = LimitsConfig(max_header_bytes=65_536, max_body_bytes=1 << 20)
    framer = RequestFramer(limits, BodyBufferLimit(limits), lambda head: None)
    try:
        for piece in pieces:
            framer.feed(piece)
            while framer.next() is not None or framer.stopped:
                if not framer.stopped:
                    framer.give_back()
    except RequestError:
        pass
    finally:
        framer.close()


@grown_budget(2)
@given(HEADS | st.just(CHUNKS), st.lists(st.sampled_from(HEAD_PIECES), min_size=1, max_size=4).map(b"".join))
@limited
def test_grown_heads_and_chunks_cost_linear_time(before, unit):
    raw = grown(before, unit, b"\r\n\r\n")
    with linear_cpu(len(raw)):
        frame([raw])
    with linear_cpu(len(raw)):
        frame(raw[start : start + 1_460] for start in range(0, len(raw), 1_460))
