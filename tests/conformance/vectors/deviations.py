"""The differences between the gateway and the strict reader by name, with the number of vectors of each.

The counts are asserted, so that no difference grows unnoticed. After an intended change, correct the count here.
"""

import json
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Deviation:
    """`vectors`: the number of vectors with this difference. `why`: the reason."""

    vectors: int
    why: str


REQUESTS = {
    "400 Content-Length must be one decimal number": Deviation(2, "at most 18 digits, leading zeros included"),
    "400 Expected HTTP/2 Connection Preface": Deviation(2, "the method PRI belongs to HTTP/2"),
    "400 Host header invalid or repeated": Deviation(3, "a port has at most five digits"),
    "400 Request has invalid `Transfer-Encoding`": Deviation(2, "a tab after `chunked`: llhttp reads another coding"),
    "400 chunk size line too long": Deviation(4, "a limit"),
    "400 malformed chunk size line": Deviation(6, "at most 15 digits, leading zeros included"),
    "400 the request target names no valid host": Deviation(2, "a port has at most five digits"),
    "404 no such path": Deviation(15, "paths that two servers resolve differently are never forwarded"),
    "415 the gateway decodes no Content-Encoding; send the body without one": Deviation(8, "no coding is supported"),
    "417 the only supported expectation is 100-continue": Deviation(24, "the only one that is supported"),
    "431 more than 1000 header lines": Deviation(4, "a limit"),
    "431 request head too large": Deviation(6, "a limit"),
    "431 trailers too large": Deviation(4, "a limit"),
    "501 CONNECT is not supported": Deviation(2, "no tunnel is opened"),
    "501 unknown request method": Deviation(73, "llhttp knows the registered methods"),
}

ANSWERS = {
    "an unsolicited 101": Deviation(22, "neither side can continue"),
    "a head beyond the limit": Deviation(4, "64 KiB"),
    "a tab after chunked": Deviation(3, "llhttp reads another coding"),
    "bytes after the end": Deviation(344, "bytes in one read with a response count as its bytes"),
    "white space in an extension": Deviation(30, "llhttp accepts none"),
    "Content-Length as a trailer": Deviation(4, "llhttp reads trailers as fields"),
    "an interim response that ends the connection": Deviation(15, "llhttp expects nothing after it"),
    "a stream without a whole event": Deviation(10, "another worker may answer: the client has no bytes yet"),
}

LOOSER = {
    "an extension without name or value": Deviation(19, "llhttp accepts it; it is relayed, and clients ignore it"),
}


def of_request(verdict):
    message = json.loads(verdict.answer.content)["error"]["message"]
    return f"{verdict.answer.status} {message.partition(':')[0]}"


_TABBED = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked[ \t]*\t", re.IGNORECASE)
_SPACED_EXTENSION = re.compile(rb"\r\n[0-9A-Fa-f]+(?:[ \t]+;|;[^\r\n\"]*[ \t])")
_EMPTY_EXTENSION = re.compile(rb"\r\n[0-9A-Fa-f]+(?:;[^\r\n]*)?(?:;[;=\r]|=[;\r])")
_LAST_INTERIM = re.compile(rb"HTTP/1\.1 100 Continue\r\nConnection: close\r\n|HTTP/1\.0 100 ")


def of_answer(answer, meant):
    """Return the key in `ANSWERS` for a response that the gateway refuses and a strict reader reads as `meant`."""
    raw = answer.raw
    head, _, body = raw.partition(b"\r\n\r\n")
    reasons = {
        "an unsolicited 101": meant.status == 101,
        "a head beyond the limit": len(head) > 65_536,
        "a tab after chunked": _TABBED.search(head),
        "an interim response that ends the connection": _LAST_INTERIM.match(raw),
        "bytes after the end": meant.end < len(raw),
        "white space in an extension": _SPACED_EXTENSION.search(raw),
        "Content-Length as a trailer": b"\r\nContent-Length:" in body,
        "a stream without a whole event": b"event-stream" in head and b"\n\n" not in body,
    }
    return next((name for name, holds in reasons.items() if holds), None)


def of_loose(answer):
    """Return the key in `LOOSER` for a response that the gateway relays and a strict reader rejects."""
    return "an extension without name or value" if _EMPTY_EXTENSION.search(answer.raw) else None
