"""The request half of one stream, without input or output: which messages come, and what is due after each.

How a gateway sends the body decides when the pick is due and where it is answered (deploy notes of Envoy's ext_proc):

| body mode | pick is due | and is the answer to |
|---|---|---|
| NONE, STREAMED, or no body | at the headers | the headers |
| BUFFERED, BUFFERED_PARTIAL | at the body; the headers are passed at once | the body |
| FULL_DUPLEX_STREAMED | at the end of the body, before which nothing may be sent | the headers, then the body |

Gateways before Envoy 1.33 do not say the mode. Their headers wait for `UNSAID_S`: a body that comes within that time is
treated as full duplex. Otherwise the pick goes by the headers, and once more if a body follows.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from router.picker.protocol.ext_proc_pb2 import HttpBody, ProcessingMode, ProcessingRequest
from router.picker.request_headers import Subset, head_of, subset_of
from router.requests.request_head import RequestHead

UNSAID_S: Final = 0.05
"""A gateway that waits for the answer to its headers sends no body, and one that does not wait sends it at once."""


class Need(Enum):
    """What is due after a message."""

    MORE = "more"
    """Another message."""
    MORE_OR_PICK = "more_or_pick"
    """Another message, or a pick by the headers after `UNSAID_S`."""
    PASS = "pass"
    """An empty answer to the headers, then another message."""
    PICK = "pick"


class PickAt(Enum):
    """The message to which the pick is the answer."""

    HEADERS = "headers"
    BODY = "body"
    DUPLEX = "duplex"


_WITHOUT: Final = (ProcessingMode.NONE, ProcessingMode.STREAMED, ProcessingMode.GRPC)
_BUFFERED: Final = (ProcessingMode.BUFFERED, ProcessingMode.BUFFERED_PARTIAL)


class CollectedRequest:
    """Collects one request. `answered_at` says to which message the pick is the answer, once one is due."""

    __slots__ = (
        "_body", "_said", "answered_at", "body_mode", "by_headers", "head", "over", "response_mode",
        "subset", "trailers",
    )  # fmt: skip

    def __init__(self, first: ProcessingRequest) -> None:
        """`first` is the message with the request's headers."""
        config = first.protocol_config
        self._said = first.HasField("protocol_config")
        self.body_mode = config.request_body_mode
        self.response_mode = config.response_body_mode
        self.head: RequestHead = head_of(first.request_headers.headers)
        self.subset: Subset | None = subset_of(first)
        self._body: bytes | bytearray = b""
        self.answered_at = PickAt.HEADERS
        self.by_headers = False
        """The request has a body that the picker does not see."""
        self.trailers = False
        """Trailers ended the body, and are answered, too."""
        self.over = first.request_headers.end_of_stream
        """Whether the whole request is here. What comes after that is ignored."""

    @property
    def body(self) -> bytes:
        """What has come of the body."""
        if isinstance(self._body, bytearray):
            self._body = bytes(self._body)
        return self._body

    @property
    def body_bytes(self) -> int:
        return len(self._body)

    def first_need(self) -> Need:
        if self.over:
            return Need.PICK
        if not self._said:
            return Need.MORE_OR_PICK
        if self.body_mode in _WITHOUT:
            self.by_headers = True
            return Need.PICK
        if self.body_mode in _BUFFERED:
            self.answered_at = PickAt.BODY
            return Need.PASS
        self.answered_at = PickAt.DUPLEX
        return Need.MORE

    def pick_by_headers(self) -> None:
        """Note that the mode is not said and no body came in time. One that follows is answered as a buffered one."""
        self.by_headers = True
        self.body_mode = ProcessingMode.BUFFERED

    def take(self, message: ProcessingRequest) -> Need:
        """Take a message of the request after its headers."""
        if not self._said and not self.by_headers:
            self._said, self.body_mode, self.answered_at = True, ProcessingMode.FULL_DUPLEX_STREAMED, PickAt.DUPLEX
        if message.HasField("request_body"):
            return self._take_body(message.request_body)
        if message.HasField("request_trailers"):
            self.over = self.trailers = True
            return Need.PICK
        return Need.MORE

    def _take_body(self, part: HttpBody) -> Need:
        self.by_headers = False
        if self.body_mode in _BUFFERED:
            self.answered_at = PickAt.BODY
        if part.body:
            self._append(part.body)
        # a buffered body is whole in one message, also if trailers follow
        self.over = part.end_of_stream or (self._said and self.body_mode in _BUFFERED)
        return Need.PICK if self.over else Need.MORE

    def _append(self, piece: bytes) -> None:
        """Append to the body. A list of pieces of one byte each would be many times as large as the body."""
        if not self._body:
            self._body = piece
            return
        if isinstance(self._body, bytes):
            self._body = bytearray(self._body)
        self._body += piece

    def release_body(self) -> None:
        self._body = b""
