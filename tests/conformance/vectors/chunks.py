"""Chunked bodies: sizes, extensions, line ends, trailers, and bodies that end too early."""

from tests.conformance.vectors.pieces import (
    LAST,
    POST,
    SMUGGLED,
    SPELT_SPACES,
    TE,
    E,
    H,
    between,
    chunk,
    chunked,
    lengthed,
    unique,
)

HEAD = POST + H + TE + E
CONTENT = b"hello world"
SIZE = b"%x" % len(CONTENT)
WHOLE = chunk(CONTENT) + LAST

SIZES = unique(
    (
        SIZE,
        SIZE.upper(),
        b"0" + SIZE,
        b"0" * 10 + SIZE,
        b"0" * 14 + SIZE,
        b"0" * 15 + SIZE,
        b"0" * 16 + SIZE,
        b"0" * 100 + SIZE,
        b"0x" + SIZE,
        b"0X" + SIZE,
        b"x" + SIZE,
        b"+" + SIZE,
        b"-" + SIZE,
        b"--" + SIZE,
        b"-0",
        b"-1",
        b" " + SIZE,
        b"\t" + SIZE,
        SIZE + b" ",
        SIZE + b"\t",
        SIZE + b"  ",
        SIZE + b" " * 100,
        b"1 1",
        b"1_1",
        b"1,1",
        SIZE + b"," + SIZE,
        SIZE + b"h",
        SIZE + b"H",
        SIZE + b".",
        b'"' + SIZE + b'"',
        b"(" + SIZE + b")",
        b"",
        b" ",
        b"g",
        b"zz",
        b"0xb0x",
        b"\xd9\xa1",
        b"\xef\xbd\x82",
        b"%x" % (2**31),
        b"%x" % (2**32),
        b"%x" % (2**32 + len(CONTENT)),
        b"%x" % (2**60),
        b"%x" % (2**63 - 1),
        b"%x" % (2**63),
        b"%x" % (2**64 - 1),
        b"%x" % (2**64),
        b"%x" % (2**64 + len(CONTENT)),
        b"f" * 15,
        b"f" * 16,
        b"f" * 17,
        b"f" * 100,
        b"\x00" + SIZE,
        SIZE + b"\x00",
        SIZE + b"\r",
        SIZE + b"\n",
        b"\r" + SIZE,
        b"\n" + SIZE,
        b"\r\n" + SIZE,
        SIZE + b"%0d",
        SIZE + b"#x",
        SIZE + b":x",
        SIZE + b"=x",
        SIZE + b"/x",
        b"//" + SIZE,
        b"0" + b"\r\n\r\n" + SIZE,
    )
)
EXTENSIONS = (
    b";a", b";a=b", b";a=b;c=d", b";a;b;c", b' ; a = "b"', b"\t;\ta\t=\tb", b" ;a", b"; a", b";a =b", b";a= b",
    b';a="b c"', b';a="b;c"', b';a="b\\"c"', b';a="b\\\\"', b';a=""', b';a="\xff"', b';a="\t"', b";" + b"a" * 500,
    b";a=" + b"b" * 900, b";a" * 200, b";", b";;", b";a;", b";;a", b"; ", b";=", b";=b", b";a=", b";a=;b", b";a==b",
    b";a=b=c", b";a=b c", b";a b", b';a="b', b';a=b"', b';a="b"c', b';a="b""c"', b';a="b\\', b";a='b'", b';"a"=b',
    b";a\x00", b";a=b\x00", b';a="\x00"', b';a="\x01"', b';a="\x7f"', b";a\r", b";a\n", b';a="\n"', b';a="\r"',
    b';a="\r\n"', b';a="\r\n0\r\n\r\n"', b";\xff", b";a=\xff", b" a", b" a=b", b",a=b", b"a=b", b":a",
    b";a" + b" " * 900, b";a=" + b"b" * 1_100, b";a=" + b"b" * 7_000, b";[a]", b";a,b", b";a{", b";(a)",
)  # fmt: skip
TRAILERS = (
    b"X: y\r\n", b"X: y\r\nX: z\r\n", b"X:\r\n", b"Content-Length: 5\r\n", b"Content-Length: 0\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: identity\r\n", b"Host: evil\r\n",
    b"Host: evil\r\nHost: evil\r\n", b"Authorization: Bearer x\r\n", b"Connection: close\r\n",
    b"Connection: keep-alive, upgrade\r\n", b"Upgrade: websocket\r\n", b"Expect: 100-continue\r\n", b"Trailer: X\r\n",
    b"X-Request-Id: x\r\n", b"X: \xff\r\n", b"X: " + b"y" * 4_000 + b"\r\n", b"X: " + b"y" * 9_000 + b"\r\n",
    b"X: y\r\n" * 1_000, b"X: y\r\n" * 3_000, b"X : y\r\n", b" X: y\r\n", b"X: y\r\n z\r\n", b"X\r\n", b": y\r\n",
    b"X: y\n", b"X: y\r", b"X: y\r\r\n", b"X: \x00\r\n", b"X: \x01\r\n", b"X\x00: y\r\n", b"X\xff: y\r\n",
    b"\x00\r\n", b" \r\n", b"\n", b"\r", b"0\r\n", b"5\r\nhello\r\n", b"GET / HTTP/1.1\r\n",
    b"GET http://x HTTP/1.1\r\n",
)  # fmt: skip
JOINTS = unique(
    (
        b"",
        b"\r\n",
        b"\n",
        b"\r",
        b"\r\r\n",
        b"\n\r\n",
        b"\r\n\r\n",
        b"\n\r",
        b" \r\n",
        b"\r\n ",
        b"x\r\n",
        b"xx\r\n",
        b"xx",
        b"\x00\r\n",
        b"\x0b",
        b"\r\n\x00",
        b"\r\x00\n",
        b"\r\n\r",
        b"0\r\n",
    )
)


def sizes():
    for size in SIZES:
        yield "chunk size", size + E + CONTENT + E + LAST
        yield "last chunk's size", chunk(CONTENT) + (size.replace(SIZE, b"0") or b"0") + E + E
        yield "chunk size before another message", size + E + SMUGGLED + E + LAST
    for line in between(SIZE, E + CONTENT + E + LAST):
        yield "any byte after a size", line
    for line in between(b"", SIZE + E + CONTENT + E + LAST):
        yield "any byte before a size", line


def extensions():
    for extension in EXTENSIONS:
        yield "extension", SIZE + extension + E + CONTENT + E + LAST
        yield "last chunk's extension", chunk(CONTENT) + b"0" + extension + E + E
        yield "extension before another message", SIZE + extension + b"\n" + SMUGGLED + E + LAST
    for space in SPELT_SPACES:
        yield "space in an extension", SIZE + space + b";a=b" + E + CONTENT + E + LAST
        yield "space in an extension", SIZE + b";a=" + space + b"b" + E + CONTENT + E + LAST


def joints():
    for joint in JOINTS:
        yield "end of a size line", SIZE + joint + CONTENT + E + LAST
        yield "end of a chunk", SIZE + E + CONTENT + joint + LAST
        yield "end of the last size line", chunk(CONTENT) + b"0" + joint + E
        yield "end of the body", chunk(CONTENT) + b"0" + E + joint
        yield "end of the body before another message", chunk(CONTENT) + b"0" + E + joint + SMUGGLED
    for two in (b"%c%c" % (first, second) for first in b"\r\n x" for second in b"\r\n x0"):
        yield "two bytes after a chunk", SIZE + E + CONTENT + two + LAST


def trailers():
    for lines in TRAILERS:
        yield "trailers", chunk(CONTENT) + b"0" + E + lines + E
        yield "trailers before another message", chunk(CONTENT) + b"0" + E + lines + E + SMUGGLED
        yield "trailers that end with the stream", chunk(CONTENT) + b"0" + E + lines


LOOKALIKES = (LAST, E, E + LAST, SMUGGLED, WHOLE, b"0", b"\r", b"\n", b"\x00" * 64, HEAD + WHOLE, b"\xff" * 300)
"""Content that looks like framing."""


def contents():
    for content in LOOKALIKES:
        yield "content like framing", chunk(content) + LAST
        yield "content like framing", chunk(content) * 2 + LAST
        yield "content like framing", b"".join(chunk(content[at : at + 1]) for at in range(len(content))) + LAST


def bodies():
    """Yield (rule, bytes) of chunked bodies, most of them broken."""
    for rules in (sizes, extensions, joints, trailers, contents):
        yield from rules()


def vectors():
    for rule, body in bodies():
        yield rule, HEAD + body
    for content in LOOKALIKES:
        yield "content like framing", lengthed(content)


CUT = "cut short"
CUT_SHORT = (
    HEAD + chunk(b"ab") + b"0;a=b\r\nX: y\r\n\r\n",
    lengthed(b"hello"),
    lengthed(b"hello") + chunked(b"ab"),
)


def cuts():
    """Yield (rule, bytes) of requests that end too early."""
    for raw in CUT_SHORT:
        for end in range(1, len(raw)):
            yield CUT, raw[:end]
