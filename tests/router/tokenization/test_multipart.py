"""The model of a multipart form is found as vLLM's reader finds it, at a bounded cost."""

from __future__ import annotations

import time

import pytest

from router.tokenization.multipart import MAX_MODEL_BYTES, MAX_PARTS, multipart_model

FORM = (
    b'--xyz\r\nContent-Disposition: form-data; name="file"; filename="model"\r\n\r\n\x00\x01--xy\r\n'
    b'--xyz\r\ncontent-disposition: form-data; name="model"\r\n\r\nwhisper\r\n--xyz--\r\n'
)
TYPE = "multipart/form-data; boundary=xyz"


@pytest.mark.parametrize("content_type", [TYPE, TYPE + " ", 'Multipart/Form-Data; charset=utf-8;BOUNDARY = "xyz" ;a=b'])
def test_the_model_behind_a_file_is_found(content_type: str) -> None:
    assert multipart_model(content_type, FORM) == "whisper"


@pytest.mark.parametrize("content_type", ["multipart/form-data", "multipart/form-data; boundary=abc", "; boundary="])
def test_a_wrong_boundary_finds_no_model(content_type: str) -> None:
    assert multipart_model(content_type, FORM) is None


def one_part(head: bytes, value: bytes = b"m") -> bytes:
    return b"--xyz\r\n" + head + b"\r\n\r\n" + value + b"\r\n--xyz--\r\n"


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Disposition: form-data; name=model",
        b"Content-Type: text/plain\r\nCONTENT-DISPOSITION:form-data;NAME=model ;x=y",
        b'content-disposition: form-data; filename="a; name=\\"b"; name="model"',
    ],
)
def test_a_head_that_names_the_model_is_read(head: bytes) -> None:
    assert multipart_model(TYPE, one_part(head)) == "m"


@pytest.mark.parametrize(
    "head",
    [
        b'content-disposition: form-data; name="modelx"',
        b'content-disposition: form-data; filename="a; name=model"',
        b'content-disposition: form-data; xname="model"',
        b'x-content-disposition: form-data; name="model"',
        b'content-disposition: form-data; name="model',
        b"content-type: text/plain",
    ],
)
def test_a_head_without_the_model_is_skipped(head: bytes) -> None:
    assert multipart_model(TYPE, one_part(head)) is None


@pytest.mark.parametrize(
    "body",
    [b"", b"--xyz", b"--xyz\r\nbroken", b"--xyz--\r\n\r\n", FORM.replace(b"--xyz\r\n", b"--xyzw\r\n"), one_part(b"")],
)
def test_a_form_without_a_model_or_cut_short_has_none(body: bytes) -> None:
    assert multipart_model(TYPE, body) is None


def test_a_value_without_an_end_is_read_and_an_empty_one_is_none() -> None:
    head = b"content-disposition: form-data; name=model"
    assert multipart_model(TYPE, b"preamble\r\n--xyz\r\n" + head + b"\r\n\r\nm") == "m"
    assert multipart_model(TYPE, b"--xyz\r\n" + head + b"\r\n\r\n--xyz--") is None


def test_parts_and_values_are_read_up_to_a_bound() -> None:
    head, other = b"content-disposition: form-data; name=model", b"--xyz\r\n\r\nx\r\n"
    assert multipart_model(TYPE, other * (MAX_PARTS - 1) + one_part(head)) == "m"
    assert multipart_model(TYPE, other * MAX_PARTS + one_part(head)) is None
    assert multipart_model(TYPE, one_part(head, b"m" * 1_000_000)) == "m" * MAX_MODEL_BYTES


@pytest.mark.parametrize("attack", ["headers", "parameters", "delimiters", "half delimiters", "quotes"])
def test_a_hostile_form_of_8_mb_costs_milliseconds(attack: str) -> None:
    """With a single expression for the name, a form of 8 MB with repeated header names takes 9 CPU seconds."""
    boundary, part = {
        "headers": (b"B", b"--B\r\n" + (b"content-disposition:" * 400)[:8100] + b"\r\n\r\n\r\n"),
        "parameters": (b"B", b"--B\r\ncontent-disposition:" + b";a=b" * 2000 + b"\r\n\r\n\r\n"),
        "delimiters": (b"B", b"--B\r\n\r\n\r\n"),
        "half delimiters": (b"-" * 70, b"\r\n" + b"-" * 71),
        "quotes": (b"B", b'--B\r\ncontent-disposition: f;name="' + b"\\" * 8000 + b"\r\n\r\n\r\n"),
    }[attack]
    body = part * (8_000_000 // len(part))
    start = time.process_time()
    assert multipart_model(f"multipart/form-data; boundary={boundary.decode()}", body) is None
    assert time.process_time() - start < 0.25
