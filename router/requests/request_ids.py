"""Request ids: the client's own, or a generated one."""

from __future__ import annotations

import re
import secrets
from itertools import count

from router.requests.request_head import RequestHead

_GIVEN = re.compile(rb"[\x21-\x7e]{1,128}")


class RequestIds:
    """Generates ids of 32 hexadecimal digits: 20 random digits per process, then a counter.

    Ids are unique over all processes without a system call per request. A counter suffices, because they are no secret.
    """

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(10).encode("ascii")
        self._next = count().__next__

    def of(self, head: RequestHead | None) -> bytes:
        """Return the client's X-Request-Id if it is valid, else a new id."""
        given = head.fields.get(b"x-request-id") if head is not None else None
        if given is not None and _GIVEN.fullmatch(given):
            return given
        return self._prefix + self._next().to_bytes(6).hex().encode("ascii")
