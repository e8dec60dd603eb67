"""Spellings of `Transfer-Encoding: chunked`, with bodies that mean one thing with it and another without."""

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
    unique,
)

NAME, VALUE = b"Transfer-Encoding", b"chunked"
LINE_BREAKS = (b"\r\n", b"\n", b"\r", b"\r\r\n", b"\n\r\n", b"\n\r", b"\r\n\r", b"\r\x00\n")
ENDS = (*LINE_BREAKS, b" \r\n", b"\t\r\n", b"\x00\r\n", b"\x0b\r\n")


def cover(lines):
    """A length that covers everything, and chunks that end before a second request."""
    content = LAST + SMUGGLED
    return POST + H + b"Content-Length: %d\r\n" % len(content) + lines + E + content


def fall_short(lines):
    """A length that covers only the first size line, and chunks that hold a second request."""
    size = b"%x\r\n" % len(SMUGGLED)
    return POST + H + lines + b"Content-Length: %d\r\n" % len(size) + E + size + SMUGGLED + E + LAST


def alone(lines):
    """No length, and chunks that hold a second request."""
    return POST + H + lines + E + chunk(SMUGGLED) + LAST


def absent(lines):
    """No length and no chunks, and a second request after the head."""
    return POST + H + lines + E + SMUGGLED


ARRANGEMENTS = {"CL.TE": cover, "TE.CL": fall_short, "TE": alone, "TE.0": absent}

NAMES = unique(
    (
        b"transfer-encoding",
        b"TRANSFER-ENCODING",
        b"tRANSFER-eNCODING",
        b"Transfer_Encoding",
        b"Transfer Encoding",
        b"TransferEncoding",
        b"Transfer--Encoding",
        b"Transfer-\r\n Encoding",
        b"Transfer-Encodin",
        b"Transfer-Encodings",
        b"X-Transfer-Encoding",
        b"xTransfer-Encoding",
        b"TE",
        b"Content-Encoding",
        b"Content-Transfer-Encoding",
        b"Transfer%2dEncoding",
        b"Transfer\xe2\x80\x90Encoding",
        b"Transfer\xad-Encoding",
        b"Tran\xc5\xbffer-Encoding",
        b'"Transfer-Encoding"',
        b"Transfer-Encoding: x\r\nTransfer-Encoding",
        b"Transfer-Encoding;",
        b"Transfer-Encoding=",
        b"",
    )
)
VALUES = unique(
    (
        b"chunked",
        b"Chunked",
        b"CHUNKED",
        b"cHuNkEd",
        b"CHUN\xe2\x84\xaaED",
        b"chun\xe2\x84\xaaed",
        b"xchunked",
        b"chunkedx",
        b"chunke",
        b"chunked chunked",
        b"chunked, chunked",
        b"chunked,chunked",
        b"chunked,",
        b",chunked",
        b", chunked",
        b",,chunked",
        b"chunked, ,",
        b"identity",
        b"identity, chunked",
        b"chunked, identity",
        b"identity chunked",
        b"chunked identity",
        b"chunked;",
        b"chunked; q=0",
        b"chunked;q=1",
        b"chunked ; a=b",
        b'"chunked"',
        b"'chunked'",
        b"`chunked`",
        b'"chunked',
        b"(chunked)",
        b"chunked (x)",
        b"=chunked",
        b":chunked",
        b": chunked",
        b"chunked:",
        b"gzip, chunked",
        b"chunked, gzip",
        b"deflate",
        b"compress, chunked",
        b"cow",
        b"cow, chunked",
        b"chunked, cow",
        b"trailers",
        b"trailers, chunked",
        b"br;q=1.0, chunked",
        b"x-chunked",
        b"chunked-x",
        b"chun ked",
        b"ch\tunked",
        b"chunked/1.0",
        b"*",
        b"null",
        b"none",
        b"0",
        b"1",
        b"true",
        b"",
        b"%63hunked",
        b"chunked%20",
        b"\\chunked",
        b"c\\hunked",
        b"chunked\\",
        b"ch\x00unked",
        b"ch\x08unked",
        b"\xefchunked",
        b"\xff\xfechunked",
        b"c\x00h\x00u\x00n\x00k\x00e\x00d\x00",
        b"identity\r\n chunked",
        b"\r\n chunked",
        b"\r\n\tchunked",
        b"chunked\r\n ",
        b"chunked\r\n , identity",
        b"x\nTransfer-Encoding: chunked",
        b"x\rTransfer-Encoding: chunked",
        b"chunked\nX: y",
        b"chunked\rX: y",
        b"x" * 400 + b", chunked",
        b"chunked" + b" " * 400,
        b" " * 400 + b"chunked",
    )
)


def spellings():
    """Yield (rule, header lines) of spellings that do not vary single bytes."""
    for name in NAMES:
        yield "name", name + b": " + VALUE + E
    for value in VALUES:
        yield "value", NAME + b": " + value + E
    for space in SPELT_SPACES:
        yield "space", space + NAME + b": " + VALUE + E
        yield "space", NAME + space + b": " + VALUE + E
        yield "space", NAME + b":" + space + VALUE + E
        yield "space", NAME + b": " + VALUE + space + E
        yield "space", NAME[:8] + space + NAME[8:] + b": " + VALUE + E
        yield "space", NAME + b": " + VALUE[:4] + space + VALUE[4:] + E
        yield "space", b"X: y" + space + NAME + b": " + VALUE + E
    for end in ENDS:
        yield "line end", NAME + b": " + VALUE + end
        yield "line end", b"X: y" + end + NAME + b": " + VALUE + E
    yield "no colon", NAME + b" " + VALUE + E
    yield "no colon", NAME + E
    yield "two colons", NAME + b":: " + VALUE + E
    yield "in Connection", TE + b"Connection: transfer-encoding" + E
    yield "in Connection", TE + b"Connection: close, Transfer-Encoding" + E
    yield "in Connection", b"Connection: Content-Length, Transfer-Encoding" + E + TE


DOUBLED = tuple(NAME + b": " + value + E for value in VALUES) + tuple(
    NAME + b":" + space + VALUE + E for space in SPELT_SPACES
)


def positions():
    yield from (("before the name", spelt) for spelt in between(b"", NAME + b": " + VALUE + E))
    yield from (("after the name", spelt) for spelt in between(NAME, b": " + VALUE + E))
    yield from (("before the value", spelt) for spelt in between(NAME + b":", VALUE + E))
    yield from (("after the value", spelt) for spelt in between(NAME + b": " + VALUE, E))


def vectors():
    for arrangement, arrange in ARRANGEMENTS.items():
        for rule, lines in spellings():
            yield f"{arrangement}, coding's {rule}", arrange(lines)
    for arrangement in ("CL.TE", "TE.CL", "TE"):
        for rule, lines in positions():
            yield f"{arrangement}, any byte {rule}", ARRANGEMENTS[arrangement](lines)
    for arrangement in ("CL.TE", "TE.CL", "TE"):
        for lines in DOUBLED:
            yield f"{arrangement}, two codings", ARRANGEMENTS[arrangement](TE + lines)
            yield f"{arrangement}, two codings", ARRANGEMENTS[arrangement](lines + TE)
    for arrangement in ("CL.TE", "TE.CL", "TE"):
        yield f"{arrangement}, HTTP/1.0", ARRANGEMENTS[arrangement](TE).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
        yield (
            f"{arrangement}, HTTP/1.0",
            ARRANGEMENTS[arrangement](b"Connection: keep-alive\r\n" + TE).replace(b"HTTP/1.1", b"HTTP/1.0", 1),
        )
