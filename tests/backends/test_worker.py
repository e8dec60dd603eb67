import pytest

from backends.worker import Endpoint, parse_endpoint


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("gpu1:8000", Endpoint("http", "gpu1", 8000)),
        ("http://gpu1", Endpoint("http", "gpu1", 80)),
        (" http://gpu1:8000/ ", Endpoint("http", "gpu1", 8000)),
        ("http://[fd00::1]:8000", Endpoint("http", "fd00::1", 8000)),
        ("http://proxy:80/team-a/", Endpoint("http", "proxy", 80, "/team-a")),
        ("http://proxy:80/v1beta", Endpoint("http", "proxy", 80, "/v1beta")),
        ("https://a:8443/x/", Endpoint("https", "a", 8443, "/x")),
        ("https://a", Endpoint("https", "a", 443)),
    ],
)
def test_what_is_a_worker(text, endpoint):
    assert parse_endpoint(text) == endpoint


@pytest.mark.parametrize(
    ("text", "problem", "fix"),
    [
        ("ftp://a:1", "has scheme 'ftp'", "write http://HOST:PORT or https://HOST:PORT"),
        ("http://", "names no host", "write http://HOST:PORT or https://HOST:PORT"),
        ("http://a\n:1", "names no host", "write http://HOST:PORT or https://HOST:PORT"),
        ("http://a:99999", "is not a URL", "write http://HOST:PORT or https://HOST:PORT"),
        ("http://a:1?x=1", "carries more than host, port and path", "write http://HOST:PORT or https://HOST:PORT"),
        ("http://a:1/ü", "has characters that no URL has", "write http://HOST:PORT or https://HOST:PORT"),
        ("http://a:1/v1", "'http://a:1/v1' is the address of the API", "drop /v1"),
        ("a:1/v1/", "is the address of the API", "drop /v1"),
        ("http://a:1/v10/v1/chat/completions", "is the address of the API", "drop /v1/chat/completions"),
    ],
)
def test_what_is_not(text, problem, fix):
    with pytest.raises(ValueError, match="; ") as raised:
        parse_endpoint(text)
    said, _, advised = str(raised.value).partition("; ")
    assert problem in said
    assert advised == fix


@pytest.mark.parametrize("text", ["http://user:secret@a:1", "http://user:secret/x@a:1", "user:secret@a"])
def test_a_password_is_not_repeated(text):
    with pytest.raises(ValueError, match="carries a user or a password") as raised:
        parse_endpoint(text)
    assert "secret" not in str(raised.value)
