"""Load that other processes have reserved on the same workers, if several gateway processes on one host share a fleet.

Each process publishes its reservations at once, and reads the sum over the other processes. `router.process` supplies
the shared memory between them.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from router.placement.prefill_estimate import Work


class ReservedLoad(Protocol):
    """Load reserved on a candidate, by one process or by all. `queue` is truthy while prefills wait or run."""

    @property
    def queue(self) -> object: ...
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


class OthersLoad(NamedTuple):
    """Sums over the other processes.

    `head_since_s` is the earliest value of the processes with a queue, `freed_s` the latest value of all. `work` is
    the prefill work that they have recently dispatched; None if there was none.
    """

    queue: int
    queued_tokens: int
    queued_attention: float
    running_requests: int
    kv_tokens: int
    decode_tokens: int
    head_since_s: float
    freed_s: float
    work: Work | None


class OwnLoad(ReservedLoad, Protocol):
    """Load that this process has reserved (`router.placement.ledger.LoadAccount`). `freed_s` is the time at which a
    running prefill last ended."""

    @property
    def freed_s(self) -> float: ...


class SharedAccount(Protocol):
    """One candidate's row in the shared ledger."""

    def publish(self, account: OwnLoad) -> None:
        """Publish this process's load to the other processes."""

    def worked(self, work: Work) -> None:
        """Publish that this process has dispatched another prefill."""

    def others(self) -> OthersLoad:
        """Return the load that the other processes have reserved now."""

    def close(self) -> None:
        """Close the row of a candidate that has left. Later updates are ignored."""


class SharedLedger(Protocol):
    """The ledger that several processes share."""

    def account(self, candidate_id: str) -> SharedAccount | None:
        """Return an empty row of this process for the candidate; None if the ledger is full."""


class CombinedLoad(NamedTuple):
    """Load that all processes have reserved on one candidate. Satisfies `ReservedLoad`."""

    queue: int
    queued_tokens: int
    queued_attention: float
    running_requests: int
    kv_tokens: int
    decode_tokens: int
    head_since_s: float

    @property
    def queued_requests(self) -> int:
        """Prefills that wait or run."""
        return self.queue


def combined(own: OwnLoad, others: OthersLoad) -> CombinedLoad:
    """Return the load that one account for all processes would hold.

    The worker runs all prefills first come, first served. So the running prefill began when it arrived, or when the
    one before it ended, whichever process had sent that one.
    """
    queue = own.queued_requests
    began_s = others.head_since_s
    if queue:
        began_s = min(began_s, own.head_since_s) if others.queue else own.head_since_s
    return CombinedLoad(
        queue + others.queue,
        own.queued_tokens + others.queued_tokens,
        own.queued_attention + others.queued_attention,
        own.running_requests + others.running_requests,
        own.kv_tokens + others.kv_tokens,
        own.decode_tokens + others.decode_tokens,
        max(began_s, own.freed_s, others.freed_s),
    )
