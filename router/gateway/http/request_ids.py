"""The id of each request: the client's own, or one of ours."""

from __future__ import annotations

import re
import secrets
from itertools import count

from router.gateway.http.request_head import RequestHead

_GIVEN = re.compile(rb"[\x21-\x7e]{1,128}")


class RequestIds:
    """Ids for requests that bring none that can be passed on.

    32 hexadecimal digits: 20 drawn once for this object, then a count. Unique over all processes without a system
    call per request; no secret, so it may be counted.
    """

    __slots__ = ("_next", "_prefix")

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(10).encode("ascii")
        self._next = count().__next__

    def of(self, head: RequestHead | None) -> bytes:
        """The client's id if it can be passed on, else a new one."""
        given = head.fields.get(b"x-request-id") if head is not None else None
        if given is not None and _GIVEN.fullmatch(given):
            return given
        return b"%b%012x" % (self._prefix, self._next())
