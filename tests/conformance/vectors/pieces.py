"""The pieces that vectors are made from."""

from dataclasses import dataclass

ID = b"@@@@@"
"""Placeholder for the vector's number in a target, with as many digits."""

H = b"Host: gw\r\n"
E = b"\r\n"
LAST = b"0\r\n\r\n"
TE = b"Transfer-Encoding: chunked\r\n"
PROBE = b"GET /livez HTTP/1.1\r\nHost: gw\r\nConnection: close\r\n\r\n"
"""The last request on a connection, sent after the vector and answered by the gateway itself."""

SPACES = (b" ", b"\t", b"\x0b", b"\x0c", b"\x00", b"\r", b"\n", b"\x1f", b"\x7f", b"\x85", b"\xa0", b"\xff")
"""Bytes that some readers treat as white space, or skip."""
UNICODE_SPACES = (b"\xc2\xa0", b"\xe2\x80\x8b", b"\xef\xbb\xbf", b"\xe3\x80\x80")
SPELT_SPACES = (*SPACES, b"  ", b" \t", b"\r\n ", b"\r\n\t", *UNICODE_SPACES)
BYTES = tuple(bytes([value]) for value in range(256))


@dataclass(frozen=True)
class Vector:
    """The bytes of one connection, and the rule that made them. `cut`: nothing is sent after them."""

    number: int
    rule: str
    raw: bytes
    cut: bool = False

    @property
    def sent(self):
        return self.raw if self.cut else self.raw + PROBE


def line(method, letter, version=b"HTTP/1.1"):
    return method + b" /v/" + ID + b"/" + letter + b" " + version + b"\r\n"


POST = line(b"POST", b"a")
GET = line(b"GET", b"a")
SMUGGLED = line(b"GET", b"smuggled") + H + E
"""The request that a reader sees if it ends the one before too early."""


def lengthed(body, head=POST + H):
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def chunk(content):
    return b"%x\r\n%s\r\n" % (len(content), content)


def chunked(*contents, head=POST + H):
    return head + TE + E + b"".join(map(chunk, contents)) + LAST


def between(before, after, bytes_=BYTES):
    return [before + byte + after for byte in bytes_]


def unique(pieces):
    return tuple(dict.fromkeys(pieces))
