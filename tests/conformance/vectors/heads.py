"""Request lines, Host, and header fields that control the connection."""

from tests.conformance.vectors.pieces import (
    GET,
    ID,
    POST,
    SMUGGLED,
    SPELT_SPACES,
    TE,
    E,
    H,
    between,
    chunked,
    lengthed,
)

PATH = b"/v/" + ID + b"/a"
METHODS = (
    b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"PATCH", b"OPTIONS", b"TRACE", b"CONNECT", b"PRI", b"PROPFIND",
    b"MKCOL", b"LOCK", b"REPORT", b"SEARCH", b"QUERY", b"M-SEARCH", b"SOURCE", b"PURGE", b"BREW", b"get", b"Post",
    b"GETT", b"GE", b"G" * 300, b"GET,", b"!GET", b"",
)  # fmt: skip
VERSIONS = (
    b"HTTP/1.1", b"HTTP/1.0", b"HTTP/0.9", b"HTTP/1.2", b"HTTP/1.9", b"HTTP/2.0", b"HTTP/2", b"HTTP/3", b"HTTP/1",
    b"HTTP/1.", b"HTTP/.1", b"HTTP/1.10", b"HTTP/1.01", b"HTTP/01.1", b"HTTP/11.1", b"HTTP/1,1", b"HTTP/1.1x",
    b"HTTP/1.1 x", b"HTTP/ 1.1", b"HTTP /1.1", b"HTTP/-1.1", b"HTTP/+1.1", b"HTTP/1.-1", b"HTTP/0x1.1", b"http/1.1",
    b"Http/1.1", b"HTTPS/1.1", b"ICE/1.0", b"RTSP/1.0", b"SIP/2.0", b"HTTP", b"HTP/1.1", b"HHTTP/1.1",
    b"HTTP/1.1\x00", b"HTTP/1.1\t", b"HTTP/1.1\r", b"HTTP/\xef\xbc\x91.1", b"",
)  # fmt: skip
TARGETS = (
    PATH,
    PATH + b"?a=b",
    PATH + b"?",
    PATH + b"?a?b",
    PATH + b"#x",
    PATH + b"?#x",
    PATH + b" x",
    PATH + b"\tx",
    PATH + b"\x00",
    PATH + b"\x0b",
    PATH + b"\x7f",
    PATH + b"\x80",
    PATH + b"\xc3\xa9",
    PATH + b'"<>\\^`{|}',
    PATH + b"%00",
    PATH + b"%0d%0aX: y",
    PATH + b"%0d%0a",
    PATH + b"%",
    PATH + b"%zz",
    PATH + b"%20HTTP/1.1",
    PATH + b";a=b",
    PATH + b":80",
    PATH + b"@",
    PATH + b"/../b",
    PATH + b"/%2e%2e/b",
    PATH + b"//b",
    PATH + b"\\b",
    b"/" + PATH,
    PATH[1:],
    b"." + PATH,
    b"*",
    b"*" + PATH,
    b"",
    b"?",
    b"http://gw" + PATH,
    b"HTTP://gw" + PATH,
    b"https://gw" + PATH,
    b"http://gw:80" + PATH,
    b"http://other" + PATH,
    b"http://other:81" + PATH,
    b"http://[::1]" + PATH,
    b"http://[::1]:80" + PATH,
    b"http://[::1" + PATH,
    b"http://gw:" + PATH,
    b"http://gw:x" + PATH,
    b"http://gw:99999999" + PATH,
    b"http://a@gw" + PATH,
    b"http://a:b@gw" + PATH,
    b"http://" + PATH,
    b"http:///" + PATH,
    b"http:" + PATH,
    b"http:/gw" + PATH,
    b"http//gw" + PATH,
    b"://gw" + PATH,
    b"//gw" + PATH,
    b"ftp://gw" + PATH,
    b"file://" + PATH,
    b"ws://gw" + PATH,
    b"javascript:x",
    b"http://gw?" + PATH,
    b"http://gw" + PATH + b"#x",
    b"http://gw\\" + PATH,
    b"http://gw%2f" + PATH,
    b"http://gw" + PATH + b" HTTP/1.1\r\nX:",
    b"gw:80",
    b"gw",
    b"[::1]:80",
    b"gw:80" + PATH,
    b"gw:",
    b":80",
    PATH + b"x" * 4_000,
    PATH + b"x" * 9_000,
    PATH + b"?" + b"x" * 4_000,
)
HOSTS = (
    b"Host: gw\r\n",
    b"host: gw\r\n",
    b"HOST: gw\r\n",
    b"Host:gw\r\n",
    b"Host:\r\n",
    b"Host: \r\n",
    b"Host: gw:80\r\n",
    b"Host: gw:\r\n",
    b"Host: gw:x\r\n",
    b"Host: gw:-1\r\n",
    b"Host: gw:80:80\r\n",
    b"Host: gw:999999\r\n",
    b"Host: [::1]\r\n",
    b"Host: [::1]:80\r\n",
    b"Host: [::1\r\n",
    b"Host: ::1\r\n",
    b"Host: [x]\r\n",
    b"Host: 127.0.0.1\r\n",
    b"Host: my_gw\r\n",
    b"Host: gw.\r\n",
    b"Host: g%77\r\n",
    b"Host: gw evil\r\n",
    b"Host: gw, evil\r\n",
    b"Host: gw\tevil\r\n",
    b"Host: gw/evil\r\n",
    b"Host: gw?evil\r\n",
    b"Host: gw#evil\r\n",
    b"Host: gw\\evil\r\n",
    b"Host: a@gw\r\n",
    b"Host: http://gw\r\n",
    b"Host: <gw>\r\n",
    b'Host: "gw"\r\n',
    b"Host: gw\x00evil\r\n",
    b"Host: \xc3\xa9\r\n",
    b"Host: gw\r\n evil\r\n",
    b"Host: gw\r\nHost: gw\r\n",
    b"Host: gw\r\nHost: evil\r\n",
    b"Host: evil\r\nX: y\r\nhost: gw\r\n",
    b"Host:\r\nHost: gw\r\n",
    b"Host: gw\r\n Host: evil\r\n",
    b"Host : gw\r\n",
    b" Host: gw\r\n",
    b"X-Host: gw\r\n",
    b"Host: gw\nHost: evil\r\n",
    b"Host: gw\rHost: evil\r\n",
    b"Host: " + b"x" * 300 + b"\r\n",
    b"",
)
FIELDS = (
    b"Connection: close", b"Connection: keep-alive", b"Connection: CLOSE", b"Connection: close, close",
    b"Connection: keep-alive, close", b"Connection: x", b"Connection:", b"Connection: ,", b'Connection: "close"',
    b"Connection: close;x", b"Connection: clos", b"Connection: close\r\nConnection: keep-alive",
    b"Connection: keep-alive\r\nConnection: close", b"Connection: content-length",
    b"Connection: Content-Length, close", b"Connection: transfer-encoding", b"Connection: host",
    b"Connection: host, authorization, cookie\r\nCookie: x\r\nAuthorization: y", b"Connection: x-mine\r\nX-Mine: 1",
    b"Connection: connection", b"Connection: x-forwarded-for\r\nX-Forwarded-For: 1.2.3.4",
    b"Connection: x-request-id\r\nX-Request-Id: a", b"Connection: te\r\nTE: trailers",
    b"Connection: upgrade\r\nUpgrade: h2c",
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk",
    b"Connection: upgrade\r\nUpgrade: websocket", b"Connection: upgrade\r\nUpgrade: TLS/1.0",
    b"Connection: upgrade\r\nUpgrade:", b"Connection: upgrade", b"Upgrade: websocket", b"Upgrade: h2c",
    b"Keep-Alive: timeout=5, max=1", b"Proxy-Connection: close", b"TE: trailers", b"TE: chunked",
    b"TE: gzip, chunked;q=0", b"Trailer: Content-Length", b"Expect: 100-continue", b"Expect: 100-Continue",
    b"Expect: 100-continue, 100-continue", b"Expect: 100-continue\r\nExpect: 100-continue", b"Expect: x 100-continue",
    b"Expect: 100-continue; x", b"Expect: 100", b"Expect: 200-ok", b"Expect: payment", b"Expect:",
    b"Expect : 100-continue", b"Expect: \r\n 100-continue", b"X: a\r\n b", b"X: a\r\n\tb", b"X: a\r\n", b"X:\r\n a",
    b" X: a", b"\tX: a", b"X : a", b"X\t: a", b"X", b"X a", b": a", b"", b" ", b"X: \x00", b"X: \x08", b"X: \x1b[0m",
    b"X: \x7f", b"X: \xff", b"X: \xc3\xa9", b"X\xc3\xa9: a", b"X\x00: a", b"X(y): a", b"X[y]: a", b"X{y}: a",
    b"X@y: a", b"X/y: a", b'X"y": a', b"X,y: a", b"X;y: a", b"X=y: a", b"X\\y: a", b"X: a\nContent-Length: 0",
    b"X: a\rContent-Length: 0", b"X: a\n", b"X: a\r", b"X: " + b"a" * 7_000, b"X: " + b"a" * 9_000,
    b"X" * 7_000 + b": a", b"X: a\r\n" * 900 + b"X: a", b"X: a\r\n" * 1_200 + b"X: a", b"GET / HTTP/1.1",
    b"GET http://x/ HTTP/1.1", b"HTTP/1.1 200 OK", b"X-HTTP-Method-Override: DELETE",
    b"Content-Type: multipart/byteranges; boundary=x", b"Content-Encoding: gzip", b"Range: bytes=0-",
    b"Max-Forwards: 0", b"X-Forwarded-For: a\r\nX-Forwarded-For: b", b"X-Forwarded-Host: a, b", b"Forwarded: for=x",
)  # fmt: skip


def request_lines():
    for method in METHODS:
        yield "method", method + b" " + PATH + b" HTTP/1.1\r\n" + H + E
        yield "method with a body", lengthed(SMUGGLED, method + b" " + PATH + b" HTTP/1.1\r\n" + H)
    for version in VERSIONS:
        yield "version", b"GET " + PATH + b" " + version + E + H + E
        yield "version with a body", lengthed(SMUGGLED, b"POST " + PATH + b" " + version + E + H)
    for target in TARGETS:
        for method in (b"GET", b"CONNECT", b"OPTIONS"):
            yield "target", method + b" " + target + b" HTTP/1.1\r\n" + H + E
    for space in SPELT_SPACES:
        yield "space in the request line", space + GET + H + E
        yield "space in the request line", b"GET" + space + PATH + b" HTTP/1.1\r\n" + H + E
        yield "space in the request line", b"GET " + PATH + space + b"HTTP/1.1\r\n" + H + E
        yield "space in the request line", b"GET " + space + PATH + b" HTTP/1.1\r\n" + H + E
        yield "space in the request line", b"GET " + PATH + b" HTTP/1.1" + space + E + H + E
        yield "space in the request line", b"G" + space + b"ET " + PATH + b" HTTP/1.1\r\n" + H + E
    for line in between(b"GET " + PATH, b" HTTP/1.1\r\n"):
        yield "any byte in a target", line + H + E
    for end in (b"\n", b"\r", b"\r\r\n", b"\n\r\n", b"\r\n\r\n", b"\r\n \r\n", b""):
        yield "end of the request line", GET[:-2] + end + H + E
        yield "end of the request line", POST[:-2] + end + H + b"Content-Length: 0\r\n\r\n"
    for raw in (
        b"GET " + PATH + E,
        b"GET " + PATH + b"\n",
        b"GET " + PATH + E + E,
        PATH + E + E,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40),
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HELO x\r\n\r\n",
        b"\x00" * 40 + E + E,
        b"{}" + E + E,
    ):
        yield "another protocol", raw
        yield "another protocol", raw + SMUGGLED


def hosts():
    for lines in HOSTS:
        yield "Host", GET + lines + E
        yield "Host in HTTP/1.0", GET.replace(b"HTTP/1.1", b"HTTP/1.0") + lines + E
        yield "Host beside an absolute target", GET.replace(b"/v/", b"http://other/v/") + lines + E


def fields():
    for field in FIELDS:
        yield "field", GET + H + field + E + E + SMUGGLED
        yield "field before a length", lengthed(SMUGGLED, POST + H + field + E)
        yield "field before chunks", chunked(SMUGGLED, head=POST + H + field + E)
        yield "field in HTTP/1.0", lengthed(SMUGGLED, POST.replace(b"HTTP/1.1", b"HTTP/1.0") + H + field + E)
    for line in between(b"X", b": y\r\n"):
        yield "any byte in a name", GET + H + line + E
    for line in between(b"X: ", b"y\r\n"):
        yield "any byte in a value", GET + H + line + E
    for end in (b"\n\n", b"\n\r\n", b"\r\n\n", b"\r\r", b"\r\n\r", b"\n\r\n\r", b"\r\n \r\n", b"\r\n\x00\r\n"):
        yield "end of the head", GET + H[:-2] + end
        yield "end of the head", GET + H[:-2] + end + SMUGGLED
        yield "end of the head", POST + H + TE[:-2] + end + chunked(b"x", head=b"").partition(E + E)[2]


def vectors():
    for rules in (request_lines, hosts, fields):
        yield from rules()
