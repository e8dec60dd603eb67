"""Remember which worker made a stored response (the Responses API), because later requests about it must go there."""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Protocol

from policies.view import WorkerId

PINS = 100_000
# Enough for the first fields of a response, which begin with its id.
ID_WITHIN_BYTES = 4_096
_STORED_ID = re.compile(rb'"id"\s*:\s*"(resp_[^"\\]{1,256})"')


def stored_response_id(pieces: list[bytes]) -> str | None:
    """Return the id of a stored response from its first body bytes; None if they contain none."""
    found = _STORED_ID.search(b"".join(pieces)[:ID_WITHIN_BYTES])
    return found[1].decode("utf-8", "replace") if found else None


class SharedPins(Protocol):
    def learn(self, response_id: str, worker: WorkerId) -> None: ...

    def worker(self, response_id: str) -> WorkerId | None:
        """Return the worker that made `response_id`; None if it is not known."""


class Pins:
    """The workers of the last `limit` stored responses."""

    def __init__(self, limit: int = PINS) -> None:
        self.shared: SharedPins | None = None
        self._limit = limit
        self._workers: OrderedDict[str, WorkerId] = OrderedDict()

    def learn(self, response_id: str, worker: WorkerId) -> None:
        self._workers[response_id] = worker
        self._workers.move_to_end(response_id)
        if len(self._workers) > self._limit:
            self._workers.popitem(last=False)
        if self.shared is not None:
            self.shared.learn(response_id, worker)

    def worker(self, response_id: str) -> WorkerId | None:
        worker = self._workers.get(response_id)
        if worker is None and self.shared is not None:
            return self.shared.worker(response_id)
        return worker
