"""What other processes have booked on the same workers, where several on one host share a fleet.

Each process writes what it has booked, at once, and reads the sum of what the others have. How it gets from one to the
other is not the core's business: see `router.process.shared_memory.ledger`.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from router.placement.prefill_estimate import Work


class ReservedLoad(Protocol):
    """What is booked on a candidate, by one process or by all; `queue` is true while prefills wait or run."""

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
    """Sums over the other processes. `head_since_s` is the least of those that queue, `freed_s` the latest of all.

    `work` are the prefills they have dispatched lately, None where there were none.
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
    """What this process has booked: `router.placement.ledger.Account`. `freed_s` is when a running prefill last
    ended."""

    @property
    def freed_s(self) -> float: ...


class SharedAccount(Protocol):
    """One candidate's row in the ledger that several processes share."""

    def publish(self, account: OwnLoad) -> None:
        """What this process has booked has changed; the others see it from now on."""

    def worked(self, work: Work) -> None:
        """This process has dispatched another prefill."""

    def others(self) -> OthersLoad:
        """What the others have booked now."""

    def close(self) -> None:
        """The candidate has left; what is published later goes nowhere."""


class SharedLedger(Protocol):
    """The ledger that several processes share."""

    def account(self, candidate_id: str) -> SharedAccount | None:
        """The candidate's row, with nothing of ours in it; None: there is no room left."""


class CombinedLoad(NamedTuple):
    """What all processes have booked on one candidate. Satisfies `Booked`."""

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
    """The sum, as one account of all would have it.

    The worker takes all prefills first come, first served. So the running one began when the first of them came, or
    when the one before it ended, whoever had sent that.
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
