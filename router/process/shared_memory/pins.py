"""The worker of each stored response, known to all processes, because a client's next request may reach any process.

The table has one entry per hash of a response id; on a collision the later response gets the entry. An entry has the
id's hash, and the worker's hash XORed with it. So an entry that is only partly written names no existing worker.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterable

import xxhash

from policies.view import WorkerId

PLACES = 1 << 17
_ENTRY = struct.Struct("@QQ")
PINS_BYTES = PLACES * _ENTRY.size


class ResponsePins:
    """Satisfies `router.requests.pins.SharedPins`: `workers` returns the workers that a response can be on."""

    def __init__(self, memory: mmap.mmap, at: int, workers: Callable[[], Iterable[WorkerId]]) -> None:
        self._memory = memory
        self._at = at
        self._workers = workers

    def learn(self, response_id: str, worker: WorkerId) -> None:
        digest = _digest(response_id)
        _ENTRY.pack_into(self._memory, self._place(digest), digest, digest ^ _digest(worker))

    def worker(self, response_id: str) -> WorkerId | None:
        """Return the worker of `response_id`; None if the response is not known or its worker has left."""
        digest = _digest(response_id)
        found, crossed = _ENTRY.unpack_from(self._memory, self._place(digest))
        if found != digest:
            return None
        return next((worker for worker in self._workers() if _digest(worker) == crossed ^ digest), None)

    def _place(self, digest: int) -> int:
        return self._at + digest % PLACES * _ENTRY.size


def _digest(text: str) -> int:
    return xxhash.xxh3_64_intdigest(text.encode())
