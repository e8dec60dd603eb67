"""A second reader of HTTP, slow and strict, to compare with. It shares nothing with the gateway."""

import re
from dataclasses import dataclass

_STATUS = re.compile(rb"HTTP/1\.[01] ([1-9]\d\d) [\t -~\x80-\xff]*")
_LINE = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*(.*?)[ \t]*", re.DOTALL)
_VALUE = re.compile(rb"[\t -~\x80-\xff]*")
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})([\t ]*;[\t -~\x80-\xff]*)?")


@dataclass(frozen=True)
class Message:
    """`start` is the first line, `lines` the others as they came, `content` the body without its framing, `end` how
    many bytes it took; `whole` is False where its framing announces more than there is."""

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


def read_lines(head):
    start, *lines = head.split(b"\r\n")
    for line in lines:
        found = _LINE.fullmatch(line)
        assert found is not None and _VALUE.fullmatch(found[2]) is not None, line
    return start, tuple(lines)


def read_chunks(raw):
    """Content, bytes taken, and whether the end has come."""
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
        assert _LINE.fullmatch(raw[at:end]) is not None
        at = end + 2


def read_message(raw, *, answer, closed=False, bodiless=False):
    """The first message of `raw`; None where not even its head is whole.

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
    codings, lengths = message.values(b"transfer-encoding"), message.values(b"content-length")
    if bodiless:
        return message
    assert len(codings) + len(lengths) <= 1, lines
    if codings:
        assert codings[0].lower() == b"chunked"
        content, taken, whole = read_chunks(rest)
        return Message(start, lines, content, message.end + taken, whole, "chunked")
    if lengths:
        assert lengths[0].isdigit()
        length = int(lengths[0])
        return Message(start, lines, rest[:length], message.end + min(length, len(rest)), len(rest) >= length, "length")
    return Message(start, lines, rest, len(raw), closed, "close") if answer else message


def read_all(raw, **options):
    """All messages of `raw`, and what is left."""
    messages = []
    while raw and (message := read_message(raw, **options)) is not None:
        messages.append(message)
        raw = raw[message.end :]
        if not message.whole:
            break
    return messages, raw
