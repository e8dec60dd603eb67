import json

import pytest

from loadtest.soak.attack import shapes
from loadtest.soak.attack.clients import request

PATHS = (shapes.CHAT, shapes.COMPLETIONS, shapes.MESSAGES, shapes.RESPONSES, shapes.EMBEDDINGS, shapes.TOKENIZE, "/x")


@pytest.mark.parametrize("shape", shapes.JSON_SHAPES)
@pytest.mark.parametrize("path", PATHS)
def test_a_json_body_has_about_the_size_asked_for_and_names_its_model(path, shape):
    size = 400_000 if shape == "deep" else 50_000
    body = shapes.build(path, shape, size, "m", "word")
    assert 0.5 * size < len(body.data) < 1.2 * size + 200
    if shape not in ("not_json", "deep", "huge_number"):
        assert json.loads(body.data)["model"] in ("m", "m" * size)
    if shape not in ("huge_number",):
        assert b"word" in body.data.replace(b"\0", b"")


@pytest.mark.parametrize("shape", shapes.MULTIPART_SHAPES)
def test_a_form_names_its_model_last(shape):
    body = shapes.build(shapes.TRANSCRIPTIONS, shape, 50_000, "m", "word")
    assert 40_000 < len(body.data) < 60_000
    assert body.data.endswith(b'name="model"\r\n\r\nm\r\n--frontier--\r\n')


def test_an_unknown_shape_is_refused():
    with pytest.raises(KeyError):
        shapes.build(shapes.CHAT, "round", 100, "m", "word")


def test_a_chunked_request_has_a_chunk_for_each_byte():
    sent = request(shapes.Body("/x", b"ab"), "key", chunked=True)
    assert b"Authorization: Bearer key\r\n" in sent
    assert sent.endswith(b"\r\n\r\n1\r\na\r\n1\r\nb\r\n0\r\n\r\n")
