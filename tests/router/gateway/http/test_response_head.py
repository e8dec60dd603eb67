"""The final head of a response after interim ones."""

import pytest

from router.gateway.http.response_head import final_head

INTERIM = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
FINAL = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


@pytest.mark.parametrize("interim", [0, 1, 3])
def test_the_final_head_is_found_after_interim_ones(interim):
    raw = INTERIM * interim + FINAL + b"ok"
    start, end = final_head(raw, interim + 1)
    assert raw[start:end] == FINAL


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 100 \0ontinue\r\n\r\n", b"HTTP/1.1 103 Early\r\nTransfer-Encoding: gzip\r\n\r\n"]
)
def test_an_interim_head_is_as_strict_as_a_final_one(head):
    with pytest.raises(ValueError, match="malformed interim response"):
        final_head(head + FINAL, 2)


def test_an_interim_head_after_an_empty_line_is_malformed():
    with pytest.raises(ValueError, match="malformed interim response"):
        final_head(b"\r\n" + INTERIM + FINAL, 2)
