"""The worker of each stored response, known to all processes, because a client's next request may reach any process.

The table has one entry per hash of a response id; on a collision the later response gets the entry. An entry has the
id's hash, and the worker's hash XORed with it. So an entry that is only partly written names no existing worker.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterable

import numpy as np
import xxhash
from numpy.typing import NDArray

from policies.view import WorkerId

PLACES = 1 << 17
_ENTRY = struct.Struct("@QQ")
_USED = struct.Struct("@Q")
PINS_BYTES = _USED.size + PLACES * _ENTRY.size


class ResponsePins:
    """Satisfies `router.gateway.pins.SharedPins`: `workers` returns the workers that a response can be on. Satisfies
    `router.replicas.fleet_pins.HostPins`: pins of other replicas do not count as learned here.
    """

    def __init__(self, memory: mmap.mmap, at: int, workers: Callable[[], Iterable[WorkerId]] = tuple) -> None:
        self._memory = memory
        self._used_at = at
        self._at = at + _USED.size
        self._workers = workers
        self._seen: NDArray[np.uint64] | None = None
        """The table as the replica last read or wrote it."""

    def learn(self, response_id: str, worker: WorkerId) -> None:
        digest = _digest(response_id)
        _USED.pack_into(self._memory, self._used_at, 1)
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

    def fresh(self, most: int) -> bytes:
        if not self._used:
            return b""
        table, seen = self._table(), self._returned()
        places = np.flatnonzero((table != seen).any(axis=1))[:most]
        pins = table[places]
        seen[places] = pins
        return pins.tobytes()

    def part(self, at: int, places: int) -> tuple[bytes, int]:
        if not self._used:
            return b"", 0
        part = self._table()[at : at + places]
        end = at + places
        return part[part[:, 0] != 0].tobytes(), end if end < PLACES else 0

    def write(self, pins: bytes, *, replace: bool) -> None:
        others = np.frombuffer(pins, np.uint64).reshape(-1, 2)
        table, seen = self._table(), self._returned()
        places = others[:, 0] % PLACES
        taken = others[:, 0] != 0
        if not replace:
            taken &= table[places, 0] == 0
        table[places[taken]] = seen[places[taken]] = others[taken]
        _USED.pack_into(self._memory, self._used_at, 1)

    @property
    def _used(self) -> bool:
        return bool(_USED.unpack_from(self._memory, self._used_at)[0])

    def _returned(self) -> NDArray[np.uint64]:
        if self._seen is None:
            self._seen = np.zeros((PLACES, 2), np.uint64)
        return self._seen

    def _table(self) -> NDArray[np.uint64]:
        """Return all entries. An array over the memory prevents its end, so drop it with the call."""
        return np.frombuffer(self._memory, np.uint64, PLACES * 2, self._at).reshape(PLACES, 2)


def _digest(text: str) -> int:
    return xxhash.xxh3_64_intdigest(text.encode())
