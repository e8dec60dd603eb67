"""Requests by shape, with the expected response: one row each, ordered by RFC section.

Rules are sections of RFC 9112 (HTTP/1.1) unless another RFC is named.
"""

import codecs

from tests.conformance.corpus import (
    BODY,
    CHUNKED,
    GET,
    MAX_BODY_BYTES,
    MAX_HEADER_BYTES,
    TE,
    E,
    Forwarded,
    H,
    L,
    P,
    RequestCase,
    local,
    passed,
    refused,
)

C = P + H + TE + E
"""A head with a chunked body."""
LAST = b"0\r\n\r\n"
ONE_CHUNK = b"1b\r\n" + BODY + b"\r\n"
SMUGGLED = b"POST /v1/completions HTTP/1.1\r\nHost: gw\r\nContent-Length: 2\r\n\r\n{}"
WEBSOCKET = b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n"
PLAIN = Forwarded()
UNREAD = b"POST /classify HTTP/1.1\r\n" + H
UNREAD_LINE = b"POST /classify HTTP/1.1"
"""A path whose body only the worker interprets, JSON or not."""


def target(path, method=b"POST", tail=L + E + BODY):
    return method + b" " + path + b" HTTP/1.1\r\n" + H + tail


def lengthed(*lines):
    return P + H + b"".join(b"Content-Length:" + line + b"\r\n" for line in lines) + E + BODY


def coded(*values, body=CHUNKED):
    return P + H + b"".join(b"Transfer-Encoding:" + value + b"\r\n" for value in values) + E + body


def header(line):
    return P + H + line + b"\r\n" + L + E + BODY


LENGTH = (
    passed("a length", P + H + L + E + BODY, "6.3"),
    passed("a length with leading zeros", lengthed(b" 0027"), "9110 8.6", "1*DIGIT, read in base ten by all servers"),
    passed("white space around a length", lengthed(b" \t 27 \t"), "5.1"),
    passed("name in odd case", P + H + b"cONTENT-lENGTH: 27\r\n\r\n" + BODY, "5.1"),
    local("a length of zero", 200, GET + H + b"Content-Length: 0\r\n\r\n", "6.3"),
    local(
        "a body on a GET of a path that the gateway answers", 200, GET + H + b"Content-Length: 5\r\n\r\nGET /", "6.3"
    ),
    local(
        "a chunked body on a GET of a path that the gateway answers",
        200,
        GET + H + TE + E + b"5\r\nGET /\r\n" + LAST,
        "6.3",
    ),
    refused("two lengths", 400, lengthed(b" 27", b" 3"), "6.3"),
    refused("two equal lengths", 400, lengthed(b" 27", b" 27"), "6.3", "a server in front may use another one"),
    refused("a list of equal lengths", 400, lengthed(b" 27, 27"), "6.3"),
    refused("a list of lengths", 400, lengthed(b" 5, 27"), "6.3"),
    refused("an empty length before a length", 400, lengthed(b"", b" 27"), "6.3"),
    refused("an empty length", 400, lengthed(b""), "6.3"),
    refused("a negative length", 400, lengthed(b" -1"), "6.3"),
    refused("a plus sign", 400, lengthed(b" +27"), "6.3"),
    refused("a hexadecimal length", 400, lengthed(b" 0x1b"), "6.3"),
    refused("hexadecimal digits", 400, lengthed(b" 1b"), "6.3"),
    refused("an underscore in a length", 400, lengthed(b" 2_7"), "6.3"),
    refused("a length with a fraction", 400, lengthed(b" 27.0"), "6.3"),
    refused("a space in a length", 400, lengthed(b" 2 7"), "6.3"),
    refused("a quoted length", 400, lengthed(b' "27"'), "6.3"),
    refused("a digit that is not ASCII", 400, lengthed(" ٢٧".encode()), "6.3"),
    refused("a length beyond 64 bits", 400, lengthed(b" 18446744073709551643"), "6.3", "27 if a reader wraps around"),
    refused("a length beyond any integer", 400, lengthed(b" " + b"9" * 400), "6.3"),
    refused("a length beyond the limit", 413, lengthed(b" %d" % (MAX_BODY_BYTES + 1)), "9110 15.5.14"),
    refused("the largest length that is a number", 413, lengthed(b" 999999999999999999"), "9110 15.5.14"),
    refused("a vertical tab before a length", 400, lengthed(b" \x0b27"), "5.5"),
)

TRANSFER_CODING = (
    passed("chunked", C + CHUNKED, "7.1", has=(b"Content-Length: 27",), lacks=(b"transfer-encoding",)),
    passed("chunked in odd case", coded(b" cHuNkEd"), "7", lacks=(b"transfer-encoding",)),
    passed("white space before chunked", coded(b"\t chunked"), "5.1"),
    passed("a space after chunked", coded(b" chunked "), "5.1"),
    refused(
        "a tab after chunked",
        400,
        coded(b" chunked\t"),
        "5.1",
        "valid, but llhttp reads another coding",
    ),
    passed("no space before chunked", coded(b"chunked"), "5.1"),
    refused("both, length first", 400, P + H + L + TE + E + CHUNKED, "6.1"),
    refused("both, length last", 400, P + H + TE + L + E + CHUNKED, "6.1"),
    refused("both, and the length is zero", 400, P + H + b"Content-Length: 0\r\n" + TE + E + CHUNKED, "6.1"),
    refused("both, the coding not chunked", 400, P + H + L + b"Transfer-Encoding: identity\r\n\r\n" + BODY, "6.1"),
    refused("identity, chunked", 400, coded(b" identity, chunked"), "6.1"),
    refused("chunked, identity", 400, coded(b" chunked, identity"), "6.3"),
    refused("identity", 400, coded(b" identity"), "6.1"),
    refused("chunked twice in a list", 400, coded(b" chunked, chunked"), "6.1"),
    refused("chunked twice in two lines", 400, coded(b" chunked", b" chunked"), "6.1"),
    refused("chunked and identity in two lines", 400, coded(b" chunked", b" identity"), "6.1"),
    refused("chunked not last", 400, coded(b" chunked, gzip"), "6.3"),
    refused("an empty coding", 400, coded(b""), "6.1"),
    refused("an empty coding in a list", 400, coded(b" , chunked"), "6.1"),
    refused("an empty coding at the end of a list", 400, coded(b" chunked,"), "6.1"),
    refused("an empty coding in another line", 400, coded(b"", b" chunked"), "6.1"),
    refused("gzip, chunked", 501, coded(b" gzip, chunked"), "6.1"),
    refused("an unknown coding", 501, coded(b" pigeons"), "6.1"),
    refused("a name that ends in chunked", 501, coded(b" xchunked"), "6.1"),
    refused("a name that begins with chunked", 501, coded(b" chunkedx"), "6.1"),
    refused("chunked in quotes", 501, coded(b' "chunked"'), "6.1"),
    refused("chunked with a parameter", 501, coded(b" chunked;q=1"), "7.1"),
    refused("two codings without a comma", 501, coded(b" chunked identity"), "6.1"),
    refused("a vertical tab before chunked", 400, coded(b" \x0bchunked"), "5.5"),
    refused("a form feed after chunked", 400, coded(b" chunked\x0c"), "5.5"),
    refused("a NUL after chunked", 400, coded(b" chunked\x00"), "5.5"),
    refused("a no-break space before chunked", 501, coded(b"\xa0chunked"), "5.5"),
    refused("chunked on HTTP/1.0", 400, C.replace(b"1.1", b"1.0", 1) + CHUNKED, "6.1"),
    passed("a coding in another header", header(b"X-Transfer-Encoding: chunked"), "6.1"),
    passed(
        "an underscore for the hyphen",
        header(b"Transfer_Encoding: chunked\r\nContent_Length: 3"),
        "5.1",
        "another name: no CGI-like server reads it",
        has=(b"Transfer_Encoding: chunked", b"Content_Length: 3"),
    ),
)

CHUNKS = (
    passed("several chunks", C + b"1\r\n{\r\n1a\r\n" + BODY[1:] + b"\r\n" + LAST, "7.1"),
    passed("upper-case size", C + b"1B\r\n" + BODY + b"\r\n" + LAST, "7.1"),
    passed("leading zeros in a size", C + b"00000000001b\r\n" + BODY + b"\r\n000\r\n\r\n", "7.1"),
    passed("an extension", C + b"1b;a\r\n" + BODY + b"\r\n" + LAST, "7.1.1", "ignored"),
    passed("an extension with a value", C + b"1b;a=b;c=d\r\n" + BODY + b"\r\n0;e=f\r\n\r\n", "7.1.1"),
    passed("white space around an extension", C + b"1b \t; a = b\r\n" + BODY + b"\r\n" + LAST, "7.1.1"),
    passed("a quoted extension", C + b'1b;a="b;\\"c\\\\d=,"\r\n' + BODY + b"\r\n" + LAST, "7.1.1"),
    passed("a long extension", C + b"1b;a=" + b"b" * 1_000 + b"\r\n" + BODY + b"\r\n" + LAST, "7.1.1"),
    passed(
        "content that looks like chunks",
        UNREAD + TE + b"\r\na\r\n\r\n0\r\n\r\n00\r\r\n" + LAST,
        "7.1",
        line=UNREAD_LINE,
        body=b"\r\n0\r\n\r\n00\r",
    ),
    passed(
        "content that looks like a request",
        UNREAD + TE + b"\r\n%x\r\n%s\r\n" % (len(SMUGGLED), SMUGGLED) + LAST,
        "7.1",
        line=UNREAD_LINE,
        body=SMUGGLED,
    ),
    refused("an extension too long", 400, C + b"1b;a=" + b"b" * 5_000 + b"\r\n" + BODY + b"\r\n" + LAST, "7.1.1"),
    refused("an extension without a name", 400, C + b"1b;\r\n" + BODY + b"\r\n" + LAST, "7.1.1"),
    refused("an extension without a value", 400, C + b"1b;a=\r\n" + BODY + b"\r\n" + LAST, "7.1.1"),
    refused("an open quote", 400, C + b'1b;a="b\r\n' + BODY + b"\r\n" + LAST, "7.1.1"),
    refused("a line feed in a quoted extension", 400, C + b'1b;a="\n"\r\n' + BODY + b"\r\n" + LAST, "7.1.1"),
    refused("a line break in a quoted extension", 400, C + b'1b;a="\r\n"\r\n' + BODY + b"\r\n" + LAST, "7.1.1"),
    refused("a line feed in an extension", 400, C + b"1b;a\nb\r\n" + BODY + b"\r\n" + LAST, "2.2"),
    refused("a carriage return in an extension", 400, C + b"1b;a\rb\r\n" + BODY + b"\r\n" + LAST, "2.2"),
    refused("a NUL in an extension", 400, C + b"1b;a\x00\r\n" + BODY + b"\r\n" + LAST, "7.1.1"),
    refused("an extension without its semicolon", 400, C + b"1b a=b\r\n" + BODY + b"\r\n" + LAST, "7.1.1"),
    refused("a space after a size", 400, C + b"1b \r\n" + BODY + b"\r\n" + LAST, "7.1"),
    refused("a space before a size", 400, C + b" 1b\r\n" + BODY + b"\r\n" + LAST, "7.1"),
    refused("a size with 0x", 400, C + b"0x1b\r\n" + BODY + b"\r\n" + LAST, "7.1"),
    refused("a negative size", 400, C + b"-1b\r\n" + BODY + b"\r\n" + LAST, "7.1"),
    refused("a size with a plus sign", 400, C + b"+1b\r\n" + BODY + b"\r\n" + LAST, "7.1"),
    refused("an underscore in a size", 400, C + b"1_b\r\n" + BODY + b"\r\n" + LAST, "7.1"),
    refused("a size that is no number", 400, C + b"zz\r\n" + BODY + b"\r\n" + LAST, "7.1"),
    refused("an empty size", 400, C + b"\r\n" + BODY + b"\r\n" + LAST, "7.1"),
    refused("only an extension", 400, C + b";a=b\r\n" + BODY + b"\r\n" + LAST, "7.1"),
    refused("two sizes", 400, C + b"1b,1b\r\n" + BODY + b"\r\n" + LAST, "7.1"),
    refused("a size beyond 64 bits", 400, C + b"1000000000000001b\r\n" + BODY + b"\r\n" + LAST, "7.1"),
    refused("a size one short of wrapping", 400, C + b"ffffffffffffffff\r\n" + BODY + b"\r\n" + LAST, "7.1"),
    refused("a size line with a bare LF", 400, C + b"1b\n" + BODY + b"\r\n" + LAST, "2.2"),
    refused("a size line with a bare CR", 400, C + b"1b\r" + BODY + b"\r\n" + LAST, "2.2"),
    refused("content longer than its size", 400, C + b"1a\r\n" + BODY + b"\r\n" + LAST, "7.1"),
    refused("no line break after content", 400, C + b"1b\r\n" + BODY + LAST, "7.1"),
    refused("two other bytes after content", 400, C + b"1b\r\n" + BODY + b"XX" + LAST, "7.1"),
    refused("a bare LF after content", 400, C + b"1b\r\n" + BODY + b"\n" + LAST, "2.2"),
    refused("a bare CR after content", 400, C + b"1b\r\n" + BODY + b"\r0\r\n\r\n", "2.2"),
    refused("the last chunk ends with a bare LF", 400, C + ONE_CHUNK + b"0\n\r\n", "2.2"),
    refused("the end is a bare LF", 400, C + ONE_CHUNK + b"0\r\n\n", "2.2"),
    refused(
        "more content than the limit",
        413,
        C + b"%x\r\n" % (MAX_BODY_BYTES + 1) + b"x" * (MAX_BODY_BYTES + 1) + E + LAST,
        "9110 15.5.14",
    ),
)

TRAILERS = (
    passed(
        "a trailer",
        C + ONE_CHUNK + b"0\r\nX-Sum: 1\r\n\r\n",
        "7.1.2",
        "dropped, with its Trailer header",
        lacks=(b"x-sum",),
    ),
    passed(
        "an announced trailer",
        P + H + TE + b"Trailer: X-Sum\r\nTE: trailers\r\n\r\n" + ONE_CHUNK + b"0\r\nX-Sum: 1\r\n\r\n",
        "7.1.2",
        lacks=(b"x-sum", b"trailer", b"te"),
    ),
    passed(
        "a length in the trailers",
        C + ONE_CHUNK + b"0\r\nContent-Length: 99\r\n\r\n",
        "9110 6.5.1",
        "no trailer is forwarded, so none has an effect",
        has=(b"Content-Length: 27",),
    ),
    passed(
        "a coding in the trailers",
        C + ONE_CHUNK + b"0\r\nTransfer-Encoding: chunked\r\n\r\n",
        "9110 6.5.1",
        lacks=(b"transfer-encoding",),
    ),
    passed(
        "a host in the trailers",
        C + ONE_CHUNK + b"0\r\nHost: evil\r\nAuthorization: x\r\n\r\n",
        "9110 6.5.1",
        has=(b"X-Forwarded-Host: gw",),
        lacks=(b"authorization",),
    ),
    refused("a trailer without a colon", 400, C + ONE_CHUNK + b"0\r\nnonsense\r\n\r\n", "7.1.2"),
    refused("a request in place of the end", 400, C + ONE_CHUNK + b"0\r\n" + SMUGGLED, "7.1"),
    refused("a trailer with a space before the colon", 400, C + ONE_CHUNK + b"0\r\nX : 1\r\n\r\n", "5.1"),
    refused("a folded trailer", 400, C + ONE_CHUNK + b"0\r\nX: 1\r\n 2\r\n\r\n", "5.2"),
    refused("a bare LF after a trailer", 400, C + ONE_CHUNK + b"0\r\nX: 1\n\r\n", "2.2"),
    refused("a NUL in a trailer", 400, C + ONE_CHUNK + b"0\r\nX: \x00\r\n\r\n", "5.5"),
    refused(
        "one trailer too large", 431, C + ONE_CHUNK + b"0\r\nX: " + b"x" * MAX_HEADER_BYTES + b"\r\n\r\n", "6585 5"
    ),
    refused(
        "trailers too large together",
        431,
        C + ONE_CHUNK + b"0\r\n" + b"X: 1\r\n" * (MAX_HEADER_BYTES // 5) + E,
        "6585 5",
    ),
)

HOST = (
    passed("an IPv6 host", P + b"Host: [::1]:80\r\n" + L + E + BODY, "9110 7.2", has=(b"X-Forwarded-Host: [::1]:80",)),
    passed("an empty host", P + b"Host:\r\n" + L + E + BODY, "3.2", lacks=(b"x-forwarded-host:",)),
    passed("an underscore in a host", P + b"Host: my_gw\r\n" + L + E + BODY, "9110 7.2"),
    refused("no host", 400, P + L + E + BODY, "3.2"),
    refused("two hosts", 400, P + H + b"Host: evil\r\n" + L + E + BODY, "3.2"),
    refused("two equal hosts", 400, P + H + H + L + E + BODY, "3.2"),
    refused("two empty hosts", 400, P + b"Host:\r\nHost:\r\n" + L + E + BODY, "3.2"),
    refused("a list of hosts", 400, P + b"Host: gw, evil\r\n" + L + E + BODY, "3.2"),
    refused("a host with a path", 400, P + b"Host: gw/evil\r\n" + L + E + BODY, "3.2"),
    refused("a host with user information", 400, P + b"Host: a@b\r\n" + L + E + BODY, "3.2"),
    refused("a host with a space", 400, P + b"Host: gw evil\r\n" + L + E + BODY, "3.2"),
    refused("a port that is no number", 400, P + b"Host: gw:x\r\n" + L + E + BODY, "3.2"),
    refused("two ports", 400, P + b"Host: gw:1:2\r\n" + L + E + BODY, "3.2"),
    refused("an open bracket", 400, P + b"Host: [::1\r\n" + L + E + BODY, "3.2"),
    passed(
        "no host in HTTP/1.0",
        P.replace(b"1.1", b"1.0") + L + E + BODY,
        "3.2",
        "HTTP/1.0 does not require Host",
        kept=False,
    ),
)

FIELDS = (
    passed("obs-text in a value", header(b"X: \xe9\xff"), "9110 5.5", has=(b"X: \xe9\xff",)),
    passed("an empty value", header(b"X:"), "9110 5.5", has=(b"X:",)),
    passed("tabs around a value", header(b"X:\t \ta\tb \t"), "5.1", has=(b"X:\t \ta\tb \t",)),
    passed(
        "every token character in a name",
        header(b"a!#$%&'*+-.^_`|~Z9: 1"),
        "9110 5.6.2",
        has=(b"a!#$%&'*+-.^_`|~Z9: 1",),
    ),
    passed("a colon in a value", header(b"X: a: b"), "5", has=(b"X: a: b",)),
    passed("repeated lines", header(b"X: 1\r\nY: 2\r\nx: 3"), "9110 5.3", has=(b"X: 1", b"Y: 2", b"x: 3")),
    refused("obs-fold", 400, header(b"X: 1\r\n 2"), "5.2"),
    refused("obs-fold with a tab", 400, header(b"X: 1\r\n\t2"), "5.2"),
    refused("obs-fold of a coding", 400, coded(b"\r\n chunked"), "5.2"),
    refused("an empty fold", 400, header(b"X: 1\r\n "), "5.2"),
    refused("white space before the first header", 400, P + b" X: 1\r\n" + H + L + E + BODY, "2.2"),
    refused("only white space in a line", 400, header(b" "), "2.2"),
    refused("a bare LF after a header", 400, P + b"Host: gw\nX: y\r\n" + L + E + BODY, "2.2"),
    refused(
        "bare LF everywhere",
        400,
        b"GET /livez HTTP/1.1\nHost: gw\n\n",
        "2.2",
        "servers may accept it, and do so in different ways",
    ),
    refused("a bare LF at the end of the head", 400, P + H + L + b"\n" + BODY, "2.2"),
    refused("a bare CR in a value", 400, header(b"X: a\rb"), "2.2"),
    refused("a bare CR hides a header", 400, header(b"X: a\rTransfer-Encoding: chunked"), "2.2"),
    refused("a bare CR at the end of a value", 400, header(b"X: a\r"), "2.2"),
    refused("a NUL in a value", 400, header(b"X: a\x00b"), "9110 5.5"),
    refused("a control character in a value", 400, header(b"X: a\x07b"), "9110 5.5"),
    refused("a vertical tab in a value", 400, header(b"X: a\x0bb"), "9110 5.5"),
    refused("DEL in a value", 400, header(b"X: a\x7fb"), "9110 5.5"),
    refused("a NUL in a name", 400, header(b"X\x00: a"), "9110 5.1"),
    refused("a control character in a name", 400, header(b"X\x01: a"), "9110 5.1"),
    refused("a name that is not ASCII", 400, header(b"X\xe9: a"), "9110 5.1"),
    refused("a bracket in a name", 400, header(b"X[1]: a"), "9110 5.1"),
    refused("a space in a name", 400, header(b"X Y: a"), "5.1"),
    refused("a space before a colon", 400, header(b"X : a"), "5.1"),
    refused("a space before a length's colon", 400, P + H + b"Content-Length : 27\r\n\r\n" + BODY, "5.1"),
    refused("a tab before a coding's colon", 400, P + H + b"Transfer-Encoding\t: chunked\r\n\r\n" + CHUNKED, "5.1"),
    refused("a space before a coding's colon", 400, P + H + b"Transfer-Encoding : chunked\r\n\r\n" + CHUNKED, "5.1"),
    refused("no colon", 400, header(b"nonsense"), "5"),
    refused("an empty name", 400, header(b": a"), "5"),
    refused("a head too large", 431, header(b"X: " + b"x" * MAX_HEADER_BYTES), "6585 5"),
    refused("too many headers", 431, header(b"X:\r\n" * 1_100 + b"X:"), "6585 5", "more than 1,000 lines"),
    passed("many headers", header(b"X:\r\n" * 900 + b"X:"), "6585 5"),
)

CONNECTION = (
    passed("close", header(b"Connection: close"), "9.6", kept=False, lacks=(b"connection",)),
    passed("close in odd case, in a list", header(b"Connection: foo, CLOSE"), "9.6", kept=False),
    passed("close and keep-alive", header(b"Connection: keep-alive\r\nConnection: close"), "9.3", kept=False),
    passed(
        "keep-alive",
        header(b"Connection: keep-alive\r\nKeep-Alive: timeout=5"),
        "9.3",
        lacks=(b"connection", b"keep-alive"),
    ),
    passed(
        "a header named in Connection is dropped",
        header(b"Connection: X-Mine\r\nX-Mine: 1\r\nX-Other: 2"),
        "9110 7.6.1",
        has=(b"X-Other: 2",),
        lacks=(b"x-mine", b"connection"),
    ),
    passed(
        "the length named in Connection",
        header(b"Connection: content-length"),
        "9110 7.6.1",
        "a client cannot drop framing headers",
        has=(b"Content-Length: 27",),
    ),
    passed(
        "the host named in Connection",
        header(b"Connection: close, host"),
        "9110 7.6.1",
        has=(b"X-Forwarded-Host: gw",),
        kept=False,
    ),
    passed(
        "the key named in Connection",
        header(b"Connection: Authorization\r\nAuthorization: Bearer x"),
        "9110 7.6.1",
        has=(b"Authorization: Bearer x",),
    ),
    passed(
        "the type named in Connection",
        header(b"Connection: content-type, content-encoding\r\nContent-Type: a/b\r\nContent-Encoding: identity"),
        "9110 7.6.1",
        has=(b"Content-Type: a/b", b"Content-Encoding: identity"),
    ),
    passed(
        "a coding named in Connection",
        P + H + TE + b"Connection: transfer-encoding\r\n\r\n" + CHUNKED,
        "9110 7.6.1",
        lacks=(b"transfer-encoding",),
    ),
    refused("a compressed body", 415, header(b"Content-Encoding: gzip"), "9110 15.5.16"),
    passed(
        "Proxy-Connection",
        header(b"Proxy-Connection: close"),
        "9110 7.6.1",
        "not a standard header; dropped",
        lacks=(b"proxy-connection",),
    ),
    passed("TE: trailers", header(b"TE: trailers\r\nConnection: TE"), "9110 10.1.4", lacks=(b"te", b"connection")),
    passed("TE: gzip", header(b"TE: gzip, trailers;q=0.5"), "9110 10.1.4", lacks=(b"te",)),
)

VERSION = (
    passed("HTTP/1.0 without keep-alive", P.replace(b"1.1", b"1.0") + H + L + E + BODY, "9.3", kept=False),
    passed(
        "HTTP/1.0 with keep-alive", P.replace(b"1.1", b"1.0") + H + L + b"Connection: keep-alive\r\n\r\n" + BODY, "9.3"
    ),
    passed(
        "HTTP/1.0 with keep-alive and close",
        P.replace(b"1.1", b"1.0") + H + L + b"Connection: keep-alive, close\r\n\r\n" + BODY,
        "9.3",
        kept=False,
    ),
    refused("HTTP/0.9", 400, b"GET /livez\r\n\r\n", "9112 3"),
    refused("HTTP/0.9 with a version", 505, b"GET /livez HTTP/0.9\r\n\r\n", "9110 15.6.6"),
    refused("HTTP/1.2", 505, b"GET /livez HTTP/1.2\r\n" + H + E, "9110 15.6.6"),
    refused("HTTP/5.6", 505, b"GET /livez HTTP/5.6\r\n" + H + E, "9110 15.6.6"),
    refused("HTTP/2.0", 505, b"GET /livez HTTP/2.0\r\n" + H + E, "9110 15.6.6"),
    refused("the HTTP/2 preface", 505, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "9113 3.4"),
    refused("HTTP/1.10", 505, b"GET /livez HTTP/1.10\r\n" + H + E, "2.3"),
    refused("HTTP/01.1", 505, b"GET /livez HTTP/01.1\r\n" + H + E, "2.3"),
    refused("HTTP/1", 505, b"GET /livez HTTP/1\r\n" + H + E, "2.3"),
    refused("HTTP/1.", 400, b"GET /livez HTTP/1.\r\n" + H + E, "2.3"),
    refused("a lower-case version", 400, b"GET /livez http/1.1\r\n" + H + E, "2.3"),
    refused("another protocol", 400, b"GET /livez RTSP/1.0\r\n" + H + E, "2.3"),
    refused("a TLS hello", 400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", "3"),
)

REQUEST_LINE = (
    passed("empty lines first", E * 2 + P + H + L + E + BODY, "2.2"),
    passed("many empty lines first", E * 20_000 + P + H + L + E + BODY, "2.2"),
    refused("bare line feeds first", 400, b"\n\n" + P + H + L + E + BODY, "2.2"),
    refused("a carriage return first", 400, b"\r" + P + H + L + E + BODY, "2.2"),
    refused("a space first", 400, b" " + P + H + L + E + BODY, "3"),
    refused("two spaces", 400, b"GET  /livez HTTP/1.1\r\n" + H + E, "3"),
    refused("a tab for the space", 400, b"GET\t/livez HTTP/1.1\r\n" + H + E, "3"),
    refused("a space after the version", 400, b"GET /livez HTTP/1.1 \r\n" + H + E, "3"),
    refused("a space in the target", 400, b"GET /livez x HTTP/1.1\r\n" + H + E, "3.2"),
    refused("no target", 400, b"GET HTTP/1.1\r\n" + H + E, "3"),
    refused("only a word", 400, b"hello\r\n\r\n", "3"),
    refused("a lower-case method", 501, b"get /livez HTTP/1.1\r\n" + H + E, "9110 9.1"),
    refused("an unknown method", 501, b"BREW /livez HTTP/1.1\r\n" + H + E, "9110 9.1"),
    refused("a method that begins like a known one", 501, b"GETX /livez HTTP/1.1\r\n" + H + E, "9110 9.1"),
    refused("a control character in the method", 400, b"G\x01T /livez HTTP/1.1\r\n" + H + E, "9110 9.1"),
    refused("a known method that is not allowed", 405, b"DELETE /livez HTTP/1.1\r\n" + H + E, "9110 15.5.6", kept=True),
    refused("M-SEARCH", 405, b"M-SEARCH /livez HTTP/1.1\r\n" + H + E, "9110 15.5.6", kept=True),
    refused("TRACE", 405, b"TRACE /v1/chat/completions HTTP/1.1\r\n" + H + E, "9110 9.3.8", kept=True),
    refused("PUT with a body", 405, target(b"/v1/chat/completions", b"PUT"), "9110 15.5.6", "refused unread"),
    refused("GET of a path to post to", 405, target(b"/v1/chat/completions", b"GET", E), "9110 15.5.6", kept=True),
    local("HEAD of a path answered here", 200, b"HEAD /livez HTTP/1.1\r\n" + H + E, "9110 9.3.2", bodiless=True),
    passed(
        "HEAD of a forwarded path",
        target(b"/v1/decisions", b"HEAD", E),
        "9110 9.3.2",
        body=b"",
        line=b"HEAD /v1/decisions HTTP/1.1",
        bodiless=True,
    ),
    refused(
        "HEAD of an unknown path", 404, b"HEAD /nowhere HTTP/1.1\r\n" + H + E, "9110 9.3.2", kept=True, bodiless=True
    ),
    local("OPTIONS *", 204, b"OPTIONS * HTTP/1.1\r\n" + H + E, "3.2.4"),
    local("OPTIONS of a forwarded path", 204, target(b"/v1/chat/completions", b"OPTIONS", E), "9110 9.3.7"),
)

TARGET = (
    passed(
        "a query",
        target(b"/v1/chat/completions?a=/../sleep&b=%2e?"),
        "3.2.1",
        line=b"POST /v1/chat/completions?a=/../sleep&b=%2e? HTTP/1.1",
    ),
    passed("absolute form", target(b"http://gw/v1/chat/completions"), "3.2.2", has=(b"X-Forwarded-Host: gw",)),
    passed(
        "absolute form for another host",
        target(b"http://other:81/v1/chat/completions?x"),
        "3.2.2",
        "the host of the target is used",
        line=b"POST /v1/chat/completions?x HTTP/1.1",
        has=(b"X-Forwarded-Host: other:81",),
    ),
    passed(
        "absolute form with https",
        target(b"HTTPS://gw:1/v1/chat/completions"),
        "3.2.2",
        "the scheme is left to the front end",
        has=(b"X-Forwarded-Host: gw:1",),
    ),
    local("absolute form in HTTP/1.0", 200, b"GET http://gw/livez HTTP/1.0\r\n\r\n", "3.2.2", kept=False),
    refused("absolute form with two hosts", 400, b"GET http://gw/livez HTTP/1.1\r\n" + H + H + E, "3.2"),
    refused("absolute form without a Host line", 400, b"GET http://gw/livez HTTP/1.1\r\n\r\n", "3.2"),
    refused("absolute form without a path", 404, b"GET http://gw HTTP/1.1\r\n" + H + E, "3.2.2", kept=True),
    refused(
        "absolute form, query without a path", 404, b"GET http://gw?/livez HTTP/1.1\r\n" + H + E, "3.2.2", kept=True
    ),
    refused("absolute form with user information", 400, b"GET http://a:b@gw/livez HTTP/1.1\r\n" + H + E, "9110 4.2.4"),
    refused("absolute form without a host", 400, b"GET http:///livez HTTP/1.1\r\n" + H + E, "9110 4.2.1"),
    refused("absolute form of another scheme", 400, b"GET ftp://gw/livez HTTP/1.1\r\n" + H + E, "3.2.2"),
    refused("absolute form with one slash", 400, b"GET http:/livez HTTP/1.1\r\n" + H + E, "3.2.2"),
    refused("absolute form with a fragment", 400, b"GET http://gw/livez#x HTTP/1.1\r\n" + H + E, "3.2.2"),
    refused("CONNECT", 501, b"CONNECT gw:80 HTTP/1.1\r\n" + H + E, "9110 9.3.6", "no tunnel is opened"),
    refused("CONNECT with bytes after it", 501, b"CONNECT gw:80 HTTP/1.1\r\n" + H + E + SMUGGLED, "9110 9.3.6"),
    refused("CONNECT of a path", 501, target(b"/v1/chat/completions", b"CONNECT", E), "9110 9.3.6"),
    refused("authority form with GET", 400, b"GET gw:80 HTTP/1.1\r\n" + H + E, "3.2.3"),
    refused("asterisk form with GET", 400, b"GET * HTTP/1.1\r\n" + H + E, "3.2.4"),
    refused("a relative path", 400, b"GET livez HTTP/1.1\r\n" + H + E, "3.2"),
    refused("a fragment", 400, b"GET /livez#x HTTP/1.1\r\n" + H + E, "3.2"),
    refused("a target that is not ASCII", 400, b"GET /livez\xff HTTP/1.1\r\n" + H + E, "3.2"),
    refused("a control character in the target", 400, b"GET /li\x01vez HTTP/1.1\r\n" + H + E, "3.2"),
    refused("a NUL in the target", 400, b"GET /livez\x00 HTTP/1.1\r\n" + H + E, "3.2"),
    refused(
        "a very long target",
        431,
        b"GET /" + b"x" * MAX_HEADER_BYTES + b" HTTP/1.1\r\n" + H + E,
        "3",
        "414 would be valid too; one limit covers the whole head",
    ),
    refused("a long unknown path", 404, b"GET /" + b"x" * 4_000 + b" HTTP/1.1\r\n" + H + E, "3", kept=True),
)

PATHS = tuple(
    refused(
        f"path {path.decode()}",
        404,
        target(path, tail=E),
        "9110 4.2.3",
        kept=True,
        why="compared as sent, never decoded",
    )
    for path in (
        b"/sleep",
        b"/v1/../sleep",
        b"/v1/%2e%2e/sleep",
        b"/v1/chat/completions/../../../sleep",
        b"/v1/chat/completions%2f..",
        b"/v1/chat/completions/..%2f..%2f..%2fsleep",
        b"/v1/chat/completions/",
        b"/v1/chat/completions;x=1",
        b"/v1/chat/completions%00",
        b"/v1/chat/completions%3fx",
        b"/v1/./chat/completions",
        b"//v1/chat/completions",
        b"/v1//chat/completions",
        b"/%761/chat/completions",
        b"/V1/chat/completions",
        b"/v1\\chat\\completions",
        b"/v1/responses/../sleep",
        b"/v1/responses/%2e%2e/cancel",
        b"/v1/responses/..%2f..%2fsleep/cancel",
        b"/v1/responses/x%2fy/cancel",
        b"/v1/responses/x\\y/cancel",
        b"/v1/responses//cancel",
        b"/v1/load_lora_adapter",
        b"/metrics",
    )
)

EXPECT = (
    RequestCase(
        "100-continue",
        P + H + L + b"Expect: 100-continue\r\n\r\n" + BODY,
        (200,),
        "9110 10.1.1",
        True,
        (Forwarded(lacks=(b"expect",)),),
        continues=1,
        why="answered by the gateway, unless the body has started to arrive",
    ),
    RequestCase(
        "100-continue in odd case, chunked",
        P + H + TE + b"Expect: 100-Continue\r\n\r\n" + CHUNKED,
        (200,),
        "9110 10.1.1",
        True,
        (PLAIN,),
        continues=1,
    ),
    local(
        "100-continue without a body",
        200,
        GET + H + b"Expect: 100-continue\r\n\r\n",
        "9110 10.1.1",
        "there is nothing to wait for",
    ),
    passed(
        "100-continue on HTTP/1.0",
        P.replace(b"1.1", b"1.0") + H + L + b"Expect: 100-continue\r\n\r\n" + BODY,
        "9110 10.1.1",
        "ignored, as the RFC requires",
        kept=False,
    ),
    refused(
        "100-continue for an unknown path",
        404,
        target(b"/nowhere", tail=L + b"Expect: 100-continue\r\n\r\n" + BODY),
        "9110 10.1.1",
    ),
    refused(
        "100-continue for the wrong method",
        405,
        target(b"/v1/chat/completions", b"PUT", L + b"Expect: 100-continue\r\n\r\n" + BODY),
        "9110 10.1.1",
    ),
    refused(
        "100-continue for too much",
        413,
        P + H + b"Content-Length: 99999999\r\nExpect: 100-continue\r\n\r\n",
        "9110 10.1.1",
    ),
    refused("another expectation", 417, P + H + L + b"Expect: magic\r\n\r\n" + BODY, "9110 10.1.1"),
    refused("100-continue and another", 417, P + H + L + b"Expect: 100-continue, magic\r\n\r\n" + BODY, "9110 10.1.1"),
    refused("an empty expectation", 417, P + H + L + b"Expect:\r\n\r\n" + BODY, "9110 10.1.1"),
)

UPGRADE = (
    passed(
        "h2c",
        header(b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\nConnection: Upgrade, HTTP2-Settings"),
        "9110 7.8",
        "ignored",
        lacks=(b"upgrade", b"connection", b"http2-settings"),
    ),
    passed(
        "h2c with a chunked body",
        P + H + TE + b"Upgrade: h2c\r\nConnection: Upgrade\r\n\r\n" + CHUNKED,
        "9110 7.8",
        lacks=(b"upgrade",),
    ),
    passed("WebSocket to a path without one", header(WEBSOCKET[:-2]), "9110 7.8", lacks=(b"upgrade", b"connection")),
    passed(
        "WebSocket by GET to a path without one",
        target(b"/v1/decisions", b"GET", WEBSOCKET + E),
        "9110 7.8",
        body=b"",
        line=b"GET /v1/decisions HTTP/1.1",
        lacks=(b"upgrade",),
    ),
    passed(
        "WebSocket with a body",
        target(b"/v1/realtime?model=m", b"GET", WEBSOCKET + b"Content-Length: 2\r\n\r\nhi"),
        "9110 7.8",
        "not upgraded, because the body could be read as the new protocol",
        body=b"hi",
        line=b"GET /v1/realtime?model=m HTTP/1.1",
        lacks=(b"upgrade",),
    ),
    passed(
        "WebSocket with a chunked body",
        target(b"/v1/realtime?model=m", b"GET", WEBSOCKET + TE + b"\r\n2\r\nhi\r\n0\r\n\r\n"),
        "9110 7.8",
        body=b"hi",
        line=b"GET /v1/realtime?model=m HTTP/1.1",
        lacks=(b"upgrade",),
    ),
    passed(
        "WebSocket on HTTP/1.0",
        target(b"/v1/realtime?model=m", b"GET", WEBSOCKET + E).replace(b"HTTP/1.1", b"HTTP/1.0"),
        "9110 7.8",
        body=b"",
        line=b"GET /v1/realtime?model=m HTTP/1.1",
        lacks=(b"upgrade",),
        kept=False,
    ),
    passed(
        "Upgrade that Connection does not name",
        target(b"/v1/realtime?model=m", b"GET", b"Upgrade: websocket\r\n\r\n"),
        "9110 7.8",
        body=b"",
        line=b"GET /v1/realtime?model=m HTTP/1.1",
        lacks=(b"upgrade",),
    ),
    passed(
        "WebSocket that the worker declines",
        target(b"/v1/realtime?model=m", b"GET", WEBSOCKET + E),
        "9110 7.8",
        body=b"",
        line=b"GET /v1/realtime?model=m HTTP/1.1",
        has=(b"Upgrade: websocket", b"Connection: Upgrade"),
    ),
    RequestCase(
        "the same head as a declined WebSocket's, with a body",
        target(b"/v1/realtime?model=m", b"GET", WEBSOCKET + b"Content-Length: 0\r\n\r\n")
        + target(b"/v1/realtime?model=m", b"GET", WEBSOCKET + b"Content-Length: 2\r\n\r\nhi"),
        (200, 200),
        "9110 7.8",
        True,
        (
            Forwarded(b"", b"GET /v1/realtime?model=m HTTP/1.1", has=(b"Upgrade: websocket",)),
            Forwarded(b"hi", b"GET /v1/realtime?model=m HTTP/1.1", lacks=(b"upgrade",)),
        ),
    ),
    refused("WebSocket by POST", 405, target(b"/v1/realtime", b"POST", WEBSOCKET + E), "9110 7.8", kept=True),
)

PIPELINE = (
    RequestCase("two requests", (P + H + L + E + BODY) * 2, (200, 200), "9.3.2", True, (PLAIN,) * 2),
    RequestCase("twenty requests", (P + H + L + E + BODY) * 20, (200,) * 20, "9.3.2", True, (PLAIN,) * 20),
    RequestCase(
        "answered here and forwarded in turn",
        (GET + H + E + P + H + L + E + BODY) * 3,
        (200, 200) * 3,
        "9.3.2",
        True,
        (PLAIN,) * 3,
    ),
    RequestCase(
        "after a chunked one", (C + CHUNKED) * 3 + P + H + L + E + BODY, (200,) * 4, "9.3.2", True, (PLAIN,) * 4
    ),
    RequestCase(
        "after a chunked one with trailers",
        (C + ONE_CHUNK + b"0;a=b\r\nX: y\r\n\r\n") * 2,
        (200,) * 2,
        "9.3.2",
        True,
        (PLAIN,) * 2,
    ),
    RequestCase(
        "empty lines between requests", (E + P + H + L + E + BODY + E) * 2, (200,) * 2, "2.2", True, (PLAIN,) * 2
    ),
    RequestCase(
        "after one to an unknown path",
        target(b"/nowhere", b"GET", E) + P + H + L + E + BODY,
        (404, 200),
        "9.3.2",
        True,
        (PLAIN,),
    ),
    RequestCase(
        "an error in the middle of a pipeline",
        P + H + L + E + BODY + P + L + E + BODY + P + H + L + E + BODY,
        (200, 400),
        "9.3.2",
        False,
        (PLAIN,),
        why="nothing after a malformed request is read",
    ),
    RequestCase(
        "close in the middle",
        P + H + L + E + BODY + header(b"Connection: close") + P + H + L + E + BODY,
        (200, 200),
        "9.6",
        False,
        (PLAIN,) * 2,
    ),
    RequestCase(
        "a broken chunk in the middle",
        P + H + L + E + BODY + C + b"zz\r\n" + P + H + L + E + BODY,
        (200, 400),
        "9.3.2",
        False,
        (PLAIN,),
    ),
    RequestCase(
        "a length that covers the next request",
        UNREAD + b"Content-Length: %d\r\n\r\n" % len(SMUGGLED) + SMUGGLED,
        (200,),
        "6.3",
        True,
        (Forwarded(SMUGGLED, UNREAD_LINE),),
    ),
    RequestCase(
        "a body refused unread",
        target(b"/nowhere", tail=b"Content-Length: %d\r\n\r\n" % len(SMUGGLED) + SMUGGLED),
        (404,),
        "9.3",
        False,
        code="path_not_found",
        why="the body is not read, so nothing after it can be",
    ),
)

NESTED = b'{"messages":[],"a":' + b"[" * 3_000 + b"]" * 3_000 + b"}"


def sized(body: bytes) -> bytes:
    return b"Content-Length: %d\r\n\r\n" % len(body) + body


CONTENT = (
    refused(
        "a body that is no JSON", 400, P + H + b"Content-Length: 3\r\n\r\n{x}", "8259 2", kept=True, code="invalid_json"
    ),
    refused("no body", 400, P + H + E, "8259 2", kept=True, code="invalid_json"),
    refused(
        "JSON that is no object", 400, P + H + b"Content-Length: 2\r\n\r\n[]", "8259 4", kept=True, code="invalid_body"
    ),
    passed(
        "a body that the gateway does not read",
        UNREAD + b"Content-Length: 3\r\n\r\n{x}",
        "9110 8.6",
        line=UNREAD_LINE,
        body=b"{x}",
    ),
    passed(
        "JSON nested deep",
        P + H + sized(NESTED),
        "8259 9",
        "a worker with a newer Python can parse it",
        body=NESTED,
    ),
    passed(
        "JSON nested deep, on any path",
        UNREAD + sized(NESTED),
        "8259 9",
        "a worker with a newer Python can parse it",
        line=UNREAD_LINE,
        body=NESTED,
    ),
    passed(
        "a byte order mark before the JSON",
        P + H + sized(codecs.BOM_UTF8 + BODY),
        "8259 8.1",
        "vLLM's parser ignores it",
        body=codecs.BOM_UTF8 + BODY,
    ),
    passed(
        "JSON in UTF-16",
        P + H + sized(BODY.decode().encode("utf-16")),
        "8259 8.1",
        "vLLM's parser reads it; it goes on in UTF-8",
    ),
    passed(
        "numbers that JSON does not have",
        P + H + sized(b'{"messages":[],"a":[NaN,-Infinity]}'),
        "8259 6",
        "vLLM's parser reads them",
        body=b'{"messages":[],"a":[NaN,-Infinity]}',
    ),
    passed(
        "a lone surrogate",
        P + H + sized(b'{"messages":[],"a":"\\ud800"}'),
        "8259 8.2",
        "vLLM's parser reads it",
        body=b'{"messages":[],"a":"\\ud800"}',
    ),
)

SECTIONS: dict[str, tuple[RequestCase, ...]] = {
    "Content-Length": LENGTH,
    "Transfer-Encoding": TRANSFER_CODING,
    "Chunks": CHUNKS,
    "Trailers": TRAILERS,
    "Host": HOST,
    "Header fields": FIELDS,
    "Connection and hop-by-hop headers": CONNECTION,
    "Versions": VERSION,
    "Request line and methods": REQUEST_LINE,
    "Request target": TARGET,
    "Paths": PATHS,
    "Expect": EXPECT,
    "Upgrade": UPGRADE,
    "Pipelining": PIPELINE,
    "Bodies": CONTENT,
}
REQUEST_CASES = {case.name: case for section in SECTIONS.values() for case in section}
assert len(REQUEST_CASES) == sum(map(len, SECTIONS.values())), "two rows have one name"
