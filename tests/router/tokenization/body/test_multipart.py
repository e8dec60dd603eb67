import time

import pytest

from router.errors import ErrorKind, RequestError
from router.tokenization.body.multipart import (
    MAX_ESCAPES,
    MAX_FIELD_BYTES,
    MAX_MODEL_BYTES,
    MAX_PARTS,
    STEP_BYTES,
    form_steps,
    read_form,
)

TYPE = b"multipart/form-data; boundary=xyz"
FILE = b'--xyz\r\nContent-Disposition: form-data; name="file"; filename="model"\r\n\r\n\x00\x01--xy\r\n'
FORM = FILE + b'--xyz\r\ncontent-disposition: form-data; name="model"\r\n\r\nwhisper\r\n--xyz--\r\n'


def model_of(body: bytes, content_type: bytes = TYPE) -> str | None:
    form = read_form(content_type, body)
    return None if form is None else form.model


def refusal(body: bytes, content_type: bytes = TYPE) -> str:
    with pytest.raises(RequestError) as caught:
        read_form(content_type, body)
    assert caught.value.kind is ErrorKind.INVALID_BODY
    return caught.value.message


def one_part(head: bytes, value: bytes = b"m") -> bytes:
    return b"--xyz\r\n" + head + b"\r\n\r\n" + value + b"\r\n--xyz--\r\n"


def named(name: bytes, value: bytes = b"m") -> bytes:
    return b'--xyz\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (name, value)


@pytest.mark.parametrize(
    "content_type", [TYPE, TYPE + b" ", b'Multipart/Form-Data; charset=utf-8;BOUNDARY = "xyz" ;a=b']
)
def test_the_model_behind_a_file_is_found(content_type: bytes) -> None:
    assert model_of(FORM, content_type) == "whisper"


@pytest.mark.parametrize("content_type", [b"", b"text/plain", b"; boundary=xyz", b"multipart/mixed; boundary=xyz"])
def test_another_body_is_no_form(content_type: bytes) -> None:
    assert read_form(content_type, FORM) is None
    assert read_form(TYPE, b"") is None


@pytest.mark.parametrize(
    ("content_type", "why"),
    [
        (b"multipart/form-data", "boundary"),
        (b"multipart/form-data; boundary=", "boundary"),
        (b"multipart/form-data; boundary=abc", "begin"),
        (b"multipart/form-data; boundary=xyz, text/plain", "boundary"),
        (b"multipart/form-data; boundary=abc; boundary=xyz", "Content-Type"),
        (b"multipart/form-data; boundary*=xyz; boundary=xyz", "Content-Type"),
        (b'multipart/form-data; boundary="xyz', "Content-Type"),
        (b'multipart/form-data; boundary="xyz"a', "Content-Type"),
        (TYPE + b"; charset=utf-16", "UTF-8"),
        (b"application/x-www-form-urlencoded", "multipart/form-data"),
    ],
)
def test_a_content_type_in_doubt_is_refused(content_type: bytes, why: str) -> None:
    assert why in refusal(FORM, content_type)


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Disposition: form-data; name=model",
        b"Content-Type: text/plain\r\nCONTENT-DISPOSITION:form-data;NAME=model ;x=y",
        b'content-disposition: form-data; x="a; name=\\"b"; name="model"',
        b'content-disposition: form-data; a=b; c=d;; e="f" ; name="model";',
    ],
)
def test_a_head_that_names_the_model_is_read(head: bytes) -> None:
    assert model_of(one_part(head)) == "m"


@pytest.mark.parametrize(
    "head",
    [
        b'content-disposition: form-data; name="modelx"',
        b'content-disposition: form-data; name="a"; filename="a; name=model"',
        b'content-disposition: form-data; name="a"; xname="model"',
        b'x-content-disposition: form-data; name="model"\r\ncontent-disposition: form-data; name=a',
    ],
)
def test_a_head_of_another_field_is_skipped(head: bytes) -> None:
    assert model_of(one_part(head)) is None


@pytest.mark.parametrize(
    "head",
    [
        b'content-disposition: form-data; name="model', b'content-disposition: form-data; name="a"; name="model"',
        b'content-disposition: form-data; name="model" x', b"content-disposition: form-data; name*=utf-8''model",
        b'content-disposition: form-data; name="model"; filename="m"',
        b"content-disposition: form-data; name=\"model\"; filename*=utf-8''m",
        b'content-disposition: form-data; filename="\\\\"; name="model"',
        b'content-disposition: form-data; name="a"\r\ncontent-disposition: form-data; name="model"',
        b'content-disposition : form-data; name="model"',
        b'content-type: a\r\n content-disposition: form-data; name="model"',
        b'content-type: a\ncontent-disposition: form-data; name="model"', b"content-type: text/plain",
        b'content-disposition: form-data; name="model"' + b"\r\nx: y" * 16, b"x", b"",
    ],
)  # fmt: skip
def test_a_head_in_doubt_is_refused(head: bytes) -> None:
    assert refusal(one_part(head)).startswith("The form has ")


@pytest.mark.parametrize(
    "body",
    [
        b"--xyz",
        b"--xyz\r\nbroken",
        FORM.replace(b"--xyz\r\n", b"--xyzw\r\n"),
        b"preamble\r\n" + FORM,
        FORM.removesuffix(b"--xyz--\r\n"),
        FORM.replace(b"whisper", b"whisper\r\n--xyz9"),
        FORM.replace(b"--xyz--", b"--xyz -"),
        named(b"model") + FORM,
        b"x" * 10,
    ],
)
def test_a_form_in_doubt_is_refused(body: bytes) -> None:
    refusal(body)


def test_a_form_without_a_model_and_an_empty_one_have_none() -> None:
    assert model_of(FILE + b"--xyz--") is None
    assert model_of(b"--xyz--\r\n") is None
    assert model_of(named(b"model", b"") + b"--xyz--\r\n") is None
    assert model_of(b"\r\n\r\n" + FORM + b"epilogue --xyz\r\n") == "whisper"


def test_parts_and_values_are_read_up_to_a_bound() -> None:
    assert model_of(named(b"a") * (MAX_PARTS - 1) + named(b"model") + b"--xyz--") == "m"
    assert "parts" in refusal(named(b"a") * MAX_PARTS + named(b"model") + b"--xyz--")
    assert model_of(named(b"model", b"m" * 1_000_000) + b"--xyz--") == "m" * MAX_MODEL_BYTES
    assert "field" in refusal(named(b"a", b"m" * (MAX_FIELD_BYTES + 1)) + b"--xyz--")


@pytest.mark.parametrize("offset", range(-40, 40, 7))
def test_fields_across_the_edges_of_steps_are_found(offset: int) -> None:
    audio = FILE.replace(b"\x00\x01", b"\r\n--xy" * ((2 * STEP_BYTES + offset) // 6) + b"x" * (offset % 6))
    assert model_of(audio + named(b"model", b"whisper") + b"--xyz--") == "whisper"
    for sign in (b'{"kv_transfer_params":1}', b'{"\\u006bv":1}'):
        form = read_form(TYPE, named(b"vllm_xargs", b" " * (STEP_BYTES + offset) + sign) + b"--xyz--")
        assert form is not None and form.transfer in ("kv_transfer_params", "\\u00")


def test_only_fields_are_searched_for_transfer_fields() -> None:
    hidden = b'{"kv_transfer_params":1}'
    form = read_form(TYPE, FILE.replace(b"\x00\x01", hidden) + named(b"a", b"\\u00e9" * MAX_ESCAPES) + b"--xyz--")
    assert form is not None and form.transfer is None
    form = read_form(TYPE, named(b"a", b"\\u00e9" * MAX_ESCAPES) + named(b"b", b"\\u00e9") + b"--xyz--")
    assert form is not None and form.transfer == "\\u00"


def test_a_changed_model_is_read_back() -> None:
    for body in (FORM, FILE + b"--xyz--", b"\r\n" + FILE + b"--xyz--", b"--xyz--"):
        form = read_form(TYPE, body)
        assert form is not None
        changed, known = form.renamed(body, "small")
        assert read_form(TYPE, changed) == known and known.model == "small"
        assert known.renamed(changed, "whisper")[0] == (FORM if body == FORM else changed.replace(b"small", b"whisper"))


HOSTILE = {
    "headers": b"--B\r\n" + (b"content-disposition:" * 400)[:8100] + b"\r\n\r\n\r\n",
    "parameters": b"--B\r\ncontent-disposition:f" + b";a=b" * 2000 + b"\r\n\r\n\r\n",
    "names": b'--B\r\ncontent-disposition:f;name=a;b="' + b"\\x" * 4000 + b'"\r\n\r\n\r\n',
    "parts": b"--B\r\ncontent-disposition:f;name=a\r\n\r\n\r\n",
    "long heads": b"--B\r\ncontent-disposition:f;name=a\r\n" + b"x:%b\r\n" % (b"y" * 500) * 15 + b"\r\n\r\n",
    "half escapes": b"--B\r\ncontent-disposition:f;name=a\r\n\r\n" + b"\\u0" * 340_000 + b"\r\n",
    "escapes": b"--B\r\ncontent-disposition:f;name=a\r\n\r\n" + b"\\u0058" * 170_000 + b"\r\n",
    "half names": b"--B\r\ncontent-disposition:f;name=a\r\n\r\n" + b"kv_transfer_params" * 58_000 + b"\r\n",
    "half boundaries": b"--B\r\ncontent-disposition:f;name=a;filename=b\r\n\r\n" + b"\r\n--" * 2_000_000 + b"\r\n",
    "a file": b"--B\r\ncontent-disposition:f;name=a;filename=b\r\n\r\n" + bytes(8_000_000) + b"\r\n",
}


@pytest.mark.parametrize("attack", HOSTILE)
def test_each_step_of_a_hostile_form_takes_milliseconds(attack: str) -> None:
    part = HOSTILE[attack]
    body = part * max(1, 8_000_000 // len(part)) + b"--B--"
    began_s = time.thread_time()
    worst_s, steps = 0.0, form_steps(b"multipart/form-data; boundary=B", body)
    try:
        while True:
            step_s = time.thread_time()
            next(steps)
            worst_s = max(worst_s, time.thread_time() - step_s)
    except (StopIteration, RequestError):
        pass
    assert worst_s < 0.02
    assert time.thread_time() - began_s < 0.5
