"""Load that other processes have reserved on the same workers, if several gateway processes on one host share a fleet.

Each process publishes its reservations at once, and reads the sum over the other processes. `router.process` supplies
the shared memory between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from router.placement.learning.utilisation import Work


class ReservedLoad(Protocol):
    """Load reserved on a candidate: `router.placement.load.ledger.LoadAccount` of this process, or `LoadTotals`.

    `freed_s` is the time at which a running prefill last ended.
    """

    @property
    def queued_requests(self) -> int: ...
    @property
    def queued_tokens(self) -> int: ...
    @property
    def queued_attention(self) -> float: ...
    @property
    def running_requests(self) -> int: ...
    @property
    def kv_tokens(self) -> int: ...
    @property
    def decode_tokens(self) -> int: ...
    @property
    def head_since_s(self) -> float: ...
    @property
    def freed_s(self) -> float: ...


class LoadTotals(NamedTuple):
    """Load of one process on a candidate, or sums over several. Satisfies `ReservedLoad`.

    Of several processes, `head_since_s` is the earliest value of those with a queue, and `freed_s` the latest value.
    `work` is the prefill work that they have recently dispatched; None if there was none.
    """

    queued_requests: int = 0
    queued_tokens: int = 0
    queued_attention: float = 0.0
    running_requests: int = 0
    kv_tokens: int = 0
    decode_tokens: int = 0
    head_since_s: float = 0.0
    freed_s: float = 0.0
    work: Work | None = None


class SharedAccount(Protocol):
    """One candidate's row in the shared ledger."""

    def publish(self, account: ReservedLoad) -> None: ...

    def worked(self, work: Work) -> None:
        """Publish that this process has dispatched another prefill."""

    def other_processes(self) -> LoadTotals: ...

    def close(self) -> None:
        """Close the row of a candidate that has left. Later updates are ignored."""


class SharedLedger(Protocol):
    def account(self, candidate_id: str) -> SharedAccount | None:
        """Return an empty row of this process for the candidate; None if the ledger is full."""

    def other_processes_of(self, accounts: Sequence[SharedAccount | None]) -> NDArray[np.float64]:
        """Return the rows of the other processes as an array of shape (processes, 12, accounts).

        The twelve fields are those of `LoadTotals` in their order, with the four of `Work` last. All are 0 in a row
        without load, and for an account that is None. Several processes may be summed into one row.
        """


def combined(own: ReservedLoad, others: LoadTotals) -> LoadTotals:
    """Return the load that one account for all processes would hold.

    The worker runs all prefills first come, first served. So the running prefill began when it arrived, or when the
    one before it ended, whichever process had sent that one.
    """
    began_s = others.head_since_s
    if own.queued_requests:
        began_s = min(began_s, own.head_since_s) if others.queued_requests else own.head_since_s
    freed_s = max(own.freed_s, others.freed_s)
    return LoadTotals(
        own.queued_requests + others.queued_requests,
        own.queued_tokens + others.queued_tokens,
        own.queued_attention + others.queued_attention,
        own.running_requests + others.running_requests,
        own.kv_tokens + others.kv_tokens,
        own.decode_tokens + others.decode_tokens,
        max(began_s, freed_s),
        freed_s,
    )
