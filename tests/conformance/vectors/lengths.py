"""Spellings of Content-Length: alone, repeated, and before a second request that it covers or does not cover."""

from tests.conformance.vectors.pieces import POST, SMUGGLED, SPELT_SPACES, TE, E, H, between, chunked, unique

NAME = b"Content-Length"
SIZE = len(SMUGGLED)
DIGITS = b"%d" % SIZE

VALUES = unique(
    (
        DIGITS,
        b"0",
        b"00",
        b"1",
        b"0" + DIGITS,
        b"0" * 40 + DIGITS,
        b"+" + DIGITS,
        b"-" + DIGITS,
        b"-0",
        b"-1",
        b"+0",
        b"--1",
        b"0x%x" % SIZE,
        b"0X%X" % SIZE,
        b"%x" % SIZE,
        b"0o%o" % SIZE,
        b"0b1",
        DIGITS + b".0",
        b"0." + DIGITS,
        b"." + DIGITS,
        DIGITS + b"e0",
        b"1e2",
        DIGITS[:1] + b"_" + DIGITS[1:],
        DIGITS[:1] + b" " + DIGITS[1:],
        DIGITS[:1] + b"," + DIGITS[1:],
        b"'" + DIGITS + b"'",
        b'"' + DIGITS + b'"',
        DIGITS + b", " + DIGITS,
        DIGITS + b"," + DIGITS,
        DIGITS + b", 0",
        b"0, " + DIGITS,
        DIGITS + b",",
        b"," + DIGITS,
        DIGITS + b", ",
        DIGITS + b";",
        DIGITS + b"; a=b",
        DIGITS + b" x",
        b"x " + DIGITS,
        DIGITS + b"x",
        b"x",
        b"",
        b"null",
        b"NaN",
        b"Infinity",
        b"chunked",
        DIGITS + b"b",
        DIGITS + b"L",
        DIGITS + b"/1",
        b"%%3%d" % (SIZE % 10),
        b"\xd9\xa1\xd9\xa2",
        b"\xef\xbc\x91",
        b"\xc2\xb2",
        b"\x00" + DIGITS,
        DIGITS + b"\x00",
        b"\r\n " + DIGITS,
        DIGITS + b"\r\n ",
        DIGITS[:1] + b"\r\n " + DIGITS[1:],
        DIGITS + b"\r\n , 0",
        DIGITS + b"\nX: y",
        DIGITS + b"\rX: y",
        b"4294967296",
        b"%d" % (2**32 + SIZE),
        b"%d" % (2**31),
        b"%d" % (2**63 - 1),
        b"%d" % (2**63),
        b"%d" % (2**64 - 1),
        b"%d" % (2**64),
        b"%d" % (2**64 + SIZE),
        b"9" * 18,
        b"9" * 19,
        b"9" * 400,
        b" " * 300 + DIGITS,
    )
)
NAMES = (
    b"content-length", b"CONTENT-LENGTH", b"cOnTeNt-LeNgTh", b"Content_Length", b"Content Length", b"ContentLength",
    b"Content-Length\r\n ", b"Content-Lengt", b"Content-Lengths", b"X-Content-Length", b"xContent-Length",
    b'"Content-Length"', b"Content\xe2\x80\x90Length", b"Content-Length;", b"Content%2dLength",
)  # fmt: skip
PAIRED = (
    DIGITS, b"0", b"1", b"0" + DIGITS, b"+" + DIGITS, b"", b"x", DIGITS + b",", DIGITS + b"\x00", b"-1",
    b"\x0b" + DIGITS, b"%d" % (2**64),
)  # fmt: skip


def with_lines(lines):
    """Put a second request in the place of the body."""
    return POST + H + lines + E + SMUGGLED


def vectors():
    for value in VALUES:
        spelt = NAME + b": " + value + E
        yield "CL, value", with_lines(spelt)
        yield "CL, value before a coding", POST + H + spelt + TE + E + chunked(SMUGGLED, head=b"").partition(E * 2)[2]
        yield "CL, value on a GET", with_lines(spelt).replace(b"POST", b"GET", 1)
    for name in NAMES:
        yield "CL, name", with_lines(name + b": " + DIGITS + E)
    for space in SPELT_SPACES:
        yield "CL, space", with_lines(NAME + space + b": " + DIGITS + E)
        yield "CL, space", with_lines(space + NAME + b": " + DIGITS + E)
    for spelt in between(NAME + b":", DIGITS + E):
        yield "CL, any byte before the value", with_lines(spelt)
    for spelt in between(NAME + b": " + DIGITS, E):
        yield "CL, any byte after the value", with_lines(spelt)
    for first in PAIRED:
        for second in PAIRED:
            yield "CL.CL", with_lines(NAME + b": " + first + E + NAME.lower() + b": " + second + E)
