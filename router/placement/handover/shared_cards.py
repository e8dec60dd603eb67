"""The transfers of this process that are under way, and how they share the network cards of workers.

Transfers share a card equally, in each direction. Nothing shows how far one is, nor what other processes move.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policies.handover_cost import UnderWay, beside_tokens
from router.placement.fleet.endpoints import Candidate
from router.placement.load.running import ReservationStage
from router.placement.tickets import Ticket


class TransferUnderWay:
    """A transfer, and the tokens of others that move over each of its two cards until it ends."""

    __slots__ = ("_received_tokens", "_sent_tokens", "moved_tokens", "sender", "ticket")

    def __init__(self, ticket: Ticket, sender: Candidate) -> None:
        self.ticket = ticket
        self.sender = sender
        self.moved_tokens = ticket.moved_tokens
        self._sent_tokens = 0.0
        self._received_tokens = 0.0

    @property
    def tokens(self) -> float:
        return max(self._sent_tokens, self._received_tokens)

    @property
    def under_way(self) -> bool:
        """Whether the request waits for its first event. Nothing moves from a worker that has left."""
        return self.sender.live and self.ticket.reservation.stage is ReservationStage.PREFILL

    def meets(self, other: TransferUnderWay) -> None:
        tokens = float(beside_tokens(float(self.moved_tokens), float(other.moved_tokens)))
        if self.sender.endpoint is other.sender.endpoint:
            self._sent_tokens += tokens
            other._sent_tokens += tokens
        if self.ticket.candidate.endpoint is other.ticket.candidate.endpoint:
            self._received_tokens += tokens
            other._received_tokens += tokens


class TransfersUnderWay:
    """The transfers from each decision to its first event. An answer in one piece shows none, and is left out."""

    def __init__(self) -> None:
        self._known: dict[int, TransferUnderWay] = {}
        """By the id of the ticket."""

    def begin(self, ticket: Ticket, sender: Candidate) -> None:
        begun = TransferUnderWay(ticket, sender)
        for other in self._now():
            begun.meets(other)
        if begun.under_way:
            self._known[ticket.id] = begun

    def of(self, ticket: Ticket) -> TransferUnderWay | None:
        return self._known.get(ticket.id)

    def seen(self, senders: Sequence[Candidate], receiver: Candidate) -> list[UnderWay]:
        return [
            UnderWay(
                np.array([one.endpoint is other.sender.endpoint for one in senders]),
                receiver.endpoint is other.ticket.candidate.endpoint,
                float(other.moved_tokens),
            )
            for other in self._now()
        ]

    def _now(self) -> list[TransferUnderWay]:
        self._known = {name: one for name, one in self._known.items() if one.under_way}
        return list(self._known.values())
