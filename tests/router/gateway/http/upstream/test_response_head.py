import pytest

from router.gateway.http.upstream.response_head import RepeatedResponse, final_head, parse_response_head

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


@pytest.mark.parametrize(
    ("second", "repeats"),
    [
        (b"server: uvicorn\r\nx: 1\r\n", True),
        (b"x: 1\r\n", False),
        (b"", False),
        (b"server: uvicorn\r\nx: 1\r\ny: 2\r\n", False),
    ],
)
def test_a_head_repeats_the_last_one_only_if_all_but_its_length_is_equal(second, repeats):
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n%s\r\n"
    first = head % (12, b"server: uvicorn\r\nx: 1\r\n")
    known = RepeatedResponse()
    known.keep(first, parse_response_head(first, 200, False))
    whole = known.whole(head % (2, second) + b"{}")
    assert (whole is not None) is repeats
    if whole is not None:
        assert (whole[0].length, whole[1]) == (2, b"{}")
