"""A form that the gateway reads is read by Starlette's parser, as vLLM does, with the same model, or refused by it."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers
from starlette.formparsers import MultiPartException, MultiPartParser

from router.errors import RequestError
from router.tokenization.body.multipart import read_form

pytest.importorskip("python_multipart", reason="python-multipart is not installed")

REFUSED = object()
TYPES = st.sampled_from(
    [
        b"multipart/form-data; boundary=B",
        b'Multipart/Form-Data ; charset=utf-8; boundary="B"',
        b'multipart/form-data;BOUNDARY = B ;a="b;c"',
        b"multipart/form-data; boundary=B; boundary=C",
        b"multipart/form-data; boundary*=B; boundary=C",
        b"multipart/form-data; boundary=B, multipart/form-data; boundary=C",
        b"multipart/form-data; charset=latin-1; boundary=B",
        b'multipart/form-data; x="\\"; boundary=C; y="; boundary=B',
    ]
)
NAMES = st.sampled_from(
    [
        b'name="model"',
        b"name=model",
        b"NAME = model ",
        b'name="mod\\el"',
        b"name*=utf-8''model",
        b'name="a"; name="model"',
        b'name="model"; name="a"',
        b'name="file"; filename="a; name=\\"model"',
        b'filename="\\\\"; name="model"',
        b'filename="a;b;c"; name="model"',
        b'filename="a\\";b"; name="model"',
        b'filename="a\\\\\\";b;"; name="model"',
        b"name=\"model\"; filename*=utf-8''a",
        b"name=a" + b";b=c" * 20 + b";name=model",
        b"x; name=model",
        b'"x; name=a"; name=model',
        b'name="model" x',
        b'name="model"x; name=a',
        b"; ; name=model;",
        b"name",
        b"",
    ]
)
LINES = st.sampled_from(
    [
        b"Content-Disposition: form-data; %b",
        b"content-disposition:form-data;%b",
        b"Content-Disposition:\tform-data ;%b",
        b"Content-Disposition : form-data; %b",
        b" Content-Disposition: form-data; %b",
        b"Content-Disposition: %b",
        b"Content-Disposition: form-data; %b\r\nContent-Type: text/plain",
        b"Content-Type: text/plain\nContent-Disposition: form-data; %b",
        b"Content-Type: text/plain\r\n Content-Disposition: form-data; %b",
        b'Content-Disposition: form-data; name="a"\r\nContent-Disposition: form-data; %b',
        b'Content-Disposition: form-data; %b\r\nContent-Disposition: form-data; name="a"',
        b"X-Content-Disposition: form-data; %b",
    ]
)
VALUES = st.sampled_from(
    [b"m", b"other", b"", b" m ", b"--B", b"\r\n--B", b"\r\n--Bx", b"\r\n-", b"\xff", b"\r\n--B--"]
)
OPENINGS = st.sampled_from([b"--B\r\n"] * 12 + [b"--B \r\n", b"--B\n", b"--Bx\r\n", b"\r\n--B\r\n", b"--b\r\n"])
PART = st.builds(
    lambda opening, line, name, value: opening + line.replace(b"%b", name) + b"\r\n\r\n" + value + b"\r\n",
    OPENINGS,
    LINES,
    NAMES,
    VALUES,
)
PLAIN = st.builds(
    lambda name, value: b'--B\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (name, value),
    st.sampled_from([b"model", b"a", b'file"; filename="x.wav']),
    VALUES,
)
STARTS = st.sampled_from([b""] * 8 + [b"\r\n", b"\r\n\r\n", b"\n", b"preamble\r\n", b"\r\nx", b"-"])
ENDS = st.sampled_from([b"--B--\r\n"] * 6 + [b"--B--", b"--B--x", b"--B-", b"", b"--B \r\n", b"--B\r\n\r\n\r\n--B--"])
BODIES = st.builds(
    lambda start, parts, end: start + b"".join(parts) + end, STARTS, st.lists(PART | PLAIN, max_size=4), ENDS
)


def starlettes(content_type: bytes, body: bytes, cut: int) -> object:
    """Return the model as Starlette reads it from a body in two chunks; None for none, or an empty one."""

    async def chunks() -> AsyncGenerator[bytes]:
        yield body[:cut]
        yield body[cut:]

    first = content_type.split(b", multipart/")[0]  # Starlette reads the first of several headers
    parser = MultiPartParser(Headers(raw=[(b"content-type", first)]), chunks())
    try:
        return asyncio.run(parser.parse()).get("model") or None
    except MultiPartException:
        return REFUSED


def gateways(content_type: bytes, body: bytes) -> object:
    try:
        form = read_form(content_type, body)
    except RequestError:
        return REFUSED
    return form and form.model


@given(TYPES, BODIES, st.integers(0, 200))
def test_the_same_model_is_read_or_the_form_is_refused(content_type, body, cut):
    ours = gateways(content_type, body)
    if ours is not REFUSED and b"\xff" not in body:
        assert starlettes(content_type, body, cut) in (ours, REFUSED)


@given(BODIES, st.integers(0, 200))
def test_a_changed_model_is_the_one_that_is_read(body, cut):
    content_type = b"multipart/form-data; boundary=B"
    try:
        form = read_form(content_type, body)
    except RequestError:
        return
    if form is not None:
        changed, known = form.renamed(body, "another")
        again = read_form(content_type, changed)
        assert again == known
        assert starlettes(content_type, changed, cut) in ("another", REFUSED)
        assert form.renamed(changed, "x")[0] != changed


@pytest.mark.parametrize("library", ["curl", "httpx", "browser", "aiohttp"])
def test_forms_of_common_clients_are_read(library):
    content_type, body = CLIENTS[library]
    form = read_form(content_type, body)
    assert form is not None and form.model == "whisper"
    assert starlettes(content_type, body, 50) == "whisper"


AUDIO = b"RIFF\x00\x01\r\n--\r\n"
CLIENTS = {
    "curl": (
        b"multipart/form-data; boundary=------------d744",
        b'--------------d744\r\nContent-Disposition: form-data; name="file"; filename="a \\"b\\".wav"\r\n'
        b"Content-Type: audio/wav\r\n\r\n" + AUDIO + b"\r\n--------------d744\r\n"
        b'Content-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n--------------d744--\r\n',
    ),
    "httpx": (
        b"multipart/form-data; boundary=0f1e2d3c4b5a69788796a5b4c3d2e1f0",
        b'--0f1e2d3c4b5a69788796a5b4c3d2e1f0\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n'
        b'--0f1e2d3c4b5a69788796a5b4c3d2e1f0\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n'
        b"Content-Type: audio/wav\r\n\r\n" + AUDIO + b"\r\n--0f1e2d3c4b5a69788796a5b4c3d2e1f0--\r\n",
    ),
    "browser": (
        b"multipart/form-data; boundary=----WebKitFormBoundary7MA4YWxkTrZu0gW",
        b'------WebKitFormBoundary7MA4YWxkTrZu0gW\r\nContent-Disposition: form-data; name="file"; '
        b'filename="\xc3\xa4 %22.wav"\r\nContent-Type: audio/wav\r\n\r\n' + AUDIO + b"\r\n"
        b'------WebKitFormBoundary7MA4YWxkTrZu0gW\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n'
        b"------WebKitFormBoundary7MA4YWxkTrZu0gW--\r\n",
    ),
    "aiohttp": (
        b"multipart/form-data; boundary=5a1c",
        b"--5a1c\r\nContent-Type: text/plain; charset=utf-8\r\n"
        b'Content-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n--5a1c\r\nContent-Type: audio/wav\r\n'
        b"Content-Disposition: form-data; name=\"file\"; filename=\"a.wav\"; filename*=utf-8''%C3%A4.wav\r\n\r\n"
        + AUDIO + b"\r\n--5a1c--\r\n\r\n",
    ),
}  # fmt: skip
