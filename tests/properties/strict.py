"""A second reader of HTTP/1.1, slow and strict, to compare with the gateway's. It shares no code with the gateway.

It reads messages as RFC 9112 and RFC 9110 define them, and refuses any message that two readers could understand
differently. There is no obsolete line folding and no bare carriage return or line feed. There is one length or one
transfer coding, which can only be `chunked`. It is lenient in one place: a request target may have any visible ASCII
character, as every server allows.
"""

import re
from dataclasses import dataclass, replace

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_QUOTED = rb'"(?:[\t !\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\t -~\x80-\xff])*"'
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-9]\d\d) [\t -~\x80-\xff]*")
_REQUEST = re.compile(rb"(" + _TOKEN + rb") ([!-~]+) HTTP/1\.([01])")
_LINE = re.compile(rb"(" + _TOKEN + rb"):[ \t]*(.*?)[ \t]*", re.DOTALL)
_VALUE = re.compile(rb"[\t -~\x80-\xff]*")
_EXTENSION = rb"[ \t]*;[ \t]*" + _TOKEN + rb"(?:[ \t]*=[ \t]*(?:" + _TOKEN + rb"|" + _QUOTED + rb"))?"
_SIZE = re.compile(rb"([0-9A-Fa-f]+)(?:" + _EXTENSION + rb")*")
_AUTHORITY = re.compile(rb"(?:[A-Za-z0-9._~!$&'()*+,;=%\-]*|\[[0-9A-Fa-f:.]+\])(?::\d*)?")
_ABSOLUTE = re.compile(rb"(?i:https?)://([^/?#]+)([/?][^#]*)?")
# Readers of answers take one liberty: without a reason, the space before it may be missing too.
_NO_REASON = re.compile(rb"\A(HTTP/1\.[01] \d{3})\r\n")


@dataclass(frozen=True)
class Message:
    """One message. `start` is the first line, `lines` are the other lines unchanged, and `content` is the body without
    its framing. `end` is the number of bytes read. `whole` is False if the framing announces more bytes than there are.
    """

    start: bytes
    lines: tuple[bytes, ...]
    content: bytes
    end: int
    whole: bool = True
    framing: str = ""

    def values(self, name):
        return [found[2] for line in self.lines if (found := _LINE.fullmatch(line)) and found[1].lower() == name]

    @property
    def status(self):
        return int(self.start.split(b" ")[1])

    @property
    def method(self):
        return self.start.split(b" ")[0]

    @property
    def target(self):
        target = self.start.split(b" ")[1]
        found = _ABSOLUTE.fullmatch(target)
        if found is None:
            return target
        path = found[2] or b"/"
        return path if path.startswith(b"/") else b"/" + path

    @property
    def connection(self):
        return [token.strip(b" \t").lower() for value in self.values(b"connection") for token in value.split(b",")]

    @property
    def last(self):
        options = self.connection
        if self.start.endswith(b"HTTP/1.0"):
            return b"close" in options or b"keep-alive" not in options
        return b"close" in options


def read_lines(head):
    start, *lines = head.split(b"\r\n")
    for line in lines:
        check_line(line)
    return start, tuple(lines)


def check_line(line):
    found = _LINE.fullmatch(line)
    assert found is not None and _VALUE.fullmatch(found[2]) is not None, line


def check_request(message):
    found = _REQUEST.fullmatch(message.start)
    assert found is not None, message.start
    method, target, minor = found.groups()
    check_target(method, target)
    hosts = message.values(b"host")
    assert len(hosts) == 1 or (not hosts and minor == b"0"), hosts
    assert all(_AUTHORITY.fullmatch(host) for host in hosts), hosts
    assert minor == b"1" or not message.values(b"transfer-encoding")


def check_target(method, target):
    """Check the target by RFC 9112 section 3.2: four forms, two of which belong to one method each."""
    assert b"#" not in target, target
    if method == b"CONNECT":
        assert re.fullmatch(rb"([^:/?]+|\[[^/?]+\]):\d+", target) and _AUTHORITY.fullmatch(target), target
    elif target == b"*":
        assert method == b"OPTIONS"
    elif not target.startswith(b"/"):
        found = _ABSOLUTE.fullmatch(target)
        assert found is not None and _AUTHORITY.fullmatch(found[1]), target


def read_chunks(raw):
    content, at = b"", 0
    while True:
        end = raw.find(b"\r\n", at)
        if end < 0:
            return content, at, False
        found = _SIZE.fullmatch(raw[at:end])
        assert found is not None, raw[at:end]
        size, at = int(found[1], 16), end + 2
        if not size:
            break
        content += raw[at : at + size]
        if len(raw) < at + size + 2:
            return content, at, False
        assert raw[at + size : at + size + 2] == b"\r\n"
        at += size + 2
    while True:
        end = raw.find(b"\r\n", at)
        if end < 0:
            return content, at, False
        if end == at:
            return content, at + 2, True
        check_line(raw[at:end])
        at = end + 2


def read_message(raw, *, answer, closed=False, bodiless=False):
    """Return the first message of `raw`; None if its head is incomplete.

    Raises:
        AssertionError: `raw` is not HTTP, or could be read in two ways.
    """
    head, separator, rest = raw.partition(b"\r\n\r\n")
    if not separator:
        return None
    start, lines = read_lines(head)
    message = Message(start, lines, b"", len(head) + 4)
    if answer:
        assert _STATUS.fullmatch(start) is not None, start
        bodiless = bodiless or message.status < 200 or message.status in (204, 304)
    else:
        check_request(message)
    codings, lengths = message.values(b"transfer-encoding"), message.values(b"content-length")
    assert len(codings) + len(lengths) <= 1, lines
    assert all(coding.lower() == b"chunked" for coding in codings) and not (codings and b"HTTP/1.0" in start), lines
    assert all(re.fullmatch(rb"\d+", length) for length in lengths), lines
    if bodiless:
        return message
    if codings:
        content, taken, whole = read_chunks(rest)
        return Message(start, lines, content, message.end + taken, whole, "chunked")
    if lengths:
        length = int(lengths[0])
        return Message(start, lines, rest[:length], message.end + min(length, len(rest)), len(rest) >= length, "length")
    return Message(start, lines, rest, len(raw), closed, "close") if answer else message


def read_all(raw, **options):
    messages = []
    while raw and (message := read_message(raw, **options)) is not None:
        messages.append(message)
        raw = raw[message.end :]
        if not message.whole:
            break
    return messages, raw


@dataclass(frozen=True)
class Reading:
    """The content of one connection's bytes: whole requests, and why the reader stopped.

    `end` is "whole" if everything was read, "closed" if the last request is the last one of its connection, and "short"
    if the last request is incomplete. It is "invalid" if the rest is no request, or could be read in two ways.
    """

    requests: tuple[Message, ...]
    end: str


def read_requests(raw):
    """Return the requests that a strict server reads from the bytes of one connection."""
    requests = []
    while True:
        while raw.startswith(b"\r\n"):  # RFC 9112 section 2.2: empty lines before a request are ignored
            raw = raw[2:]
        if not raw:
            return Reading(tuple(requests), "whole")
        try:
            message = read_message(raw, answer=False)
        except AssertionError:
            return Reading(tuple(requests), "invalid")
        if message is None or not message.whole:
            return Reading(tuple(requests), "short")
        requests.append(message)
        raw = raw[message.end :]
        if message.last:
            return Reading(tuple(requests), "closed")


def read_final(raw, *, bodiless=False, closed=True):
    """Return the first answer in `raw` that is not an interim one; None if a strict reader finds none. `end` counts
    from the start of `raw`.
    """
    spelt_out = _NO_REASON.sub(rb"\1 \r\n", raw)
    rest = spelt_out
    try:
        while (message := read_message(rest, answer=True, closed=closed, bodiless=bodiless)) is not None:
            rest = rest[message.end :]
            if message.status >= 200 or message.status == 101:
                return replace(message, end=len(raw) - len(rest))
    except AssertionError:
        pass
    return None
