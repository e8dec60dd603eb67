"""Learn how fast KV cache moves from one worker to another.

The model: a transfer of n tokens takes b * n + a seconds. It is measured from the receiver's request to its first
event, less what the receiver computes then. Transfers that share a network card are learned as slower links. The
transfer goes on while the receiver's queue does, so a first event that waited for the queue rather than for the
transfer teaches nothing. A transfer of few tokens shows the latency, and says nothing of the bandwidth: few are those
that would move within the latency by the settings. A link that is not known well is close to the fleet's, and the
fleet's close to the setting's. What was learned counts less as time passes: a link that looked slow is used no more, so
nothing else would show that it is fast again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from policies.handover_cost import Matrix
from policies.view import Column
from router.placement.fleet.endpoints import Candidate
from router.placement.learning.forgetting_least_squares import ForgettingLeastSquares

LINKS_KEPT: Final = 4_096
"""Links that are kept, those used last. The others count as unknown."""
FORGETTING: Final = 0.95
"""About the last 20 transfers of a link count."""
RIDGE_OBSERVATIONS: Final = 1.0
PRIOR_OBSERVATIONS: Final = 2.0
"""Transfers after which a link's own fit counts as much as the fleet's."""
LINK_HALF_LIFE_S: Final = 60.0
FLEET_HALF_LIFE_S: Final = 600.0
SHORTEST_S: Final = 1e-4
"""A transfer that seems to take less counts as this long."""
QUEUE_SHARE: Final = 0.5
"""Largest share of the measured time that may be queue wait."""
FASTEST_TOKEN_S: Final = 1e-9
"""Added to the time of each token, which is then above 0."""


LinkKind: TypeAlias = Literal["handover", "pull"]
"""What moves: the KV cache of a whole prompt from GPU to GPU, or a prefix from the sender's host memory."""


class Transfer(NamedTuple):
    """A transfer that has begun: `tokens` move. Then the receiver computes for `own_s`, once `queue_s` are over."""

    kind: LinkKind
    sender: Candidate
    receiver: Candidate
    tokens: int
    own_s: float
    queue_s: float
    began_s: float


class Link(NamedTuple):
    """What is known of a link. `transfers` were observed."""

    kind: LinkKind
    sender: Candidate
    receiver: Candidate
    tokens_per_s: float
    latency_s: float
    transfers: int


class LinkSpeed(NamedTuple):
    """Seconds for each token, and for a transfer of none."""

    token_s: float
    latency_s: float


class _Link:
    __slots__ = ("_timed", "at_s", "ends", "squares")

    def __init__(self, ends: tuple[Candidate, Candidate] | None = None) -> None:
        self.ends = ends
        self.squares = ForgettingLeastSquares(2, forgetting=FORGETTING, ridge=RIDGE_OBSERVATIONS, sweeps=4)
        self._timed = 0.0
        """The number of transfers that count for the seconds per token."""
        self.at_s = 0.0
        """When the last transfer ended."""

    def observe(self, tokens: int, seconds: float, now_s: float, token_s: float, *, few: bool) -> None:
        """Learn from a transfer; `few`: of the latency alone, if each token takes the expected `token_s`."""
        features = (0.0 if few else float(tokens), 1.0)
        latency_s = max(seconds - tokens * token_s, SHORTEST_S)
        self.squares.observe(features, latency_s if few else seconds, self.squares.predict(features))
        self._timed = FORGETTING * self._timed + (not few)
        self.at_s = now_s

    @property
    def facts(self) -> tuple[float, ...]:
        """Seconds per token, latency, the numbers of transfers that count for each, and when the last one ended."""
        return (*self.squares.coefficients, self._timed, self.squares.errors.weight, self.at_s)


class Links:
    """The speed of each link of one kind between two candidates. Memory is bounded by `LINKS_KEPT`."""

    def __init__(self, kind: LinkKind, tokens_per_s: float, latency_s: float) -> None:
        self.kind: Final = kind
        self._prior = LinkSpeed(1.0 / tokens_per_s, latency_s)
        self._few_tokens: Final = latency_s * tokens_per_s
        """A transfer of fewer says nothing of the bandwidth."""
        self._all = _Link()
        self._owners: dict[int, Candidate] = {}
        """The candidate that each slot's links belong to."""
        self._rows: dict[tuple[int, int], int] = {}
        """The row of the link between two slots, in all that follows."""
        self._links: list[_Link] = []
        self._slots = np.zeros((2, 16), np.int64)
        """Slots of sender and receiver."""
        self._facts = np.zeros((5, 16))
        """`_Link.facts`, as columns."""

    def observe(self, transfer: Transfer, now_s: float) -> None:
        sender, receiver, tokens = transfer.sender, transfer.receiver, transfer.tokens
        seconds = max(now_s - transfer.began_s - transfer.own_s, SHORTEST_S)
        if tokens < 1 or transfer.queue_s > QUEUE_SHARE * seconds:
            return
        few = tokens < self._few_tokens
        fleet = self.fleet(now_s)
        self._all.observe(tokens, seconds, now_s, fleet.token_s, few=few)
        if sender.live and receiver.live:
            row = self._row(sender, receiver)
            token_s, _ = self._speeds_of(np.array([row]), fleet, now_s)
            self._links[row].observe(tokens, seconds, now_s, float(token_s[0]), few=few)
            self._facts[:, row] = self._links[row].facts

    def _row(self, sender: Candidate, receiver: Candidate) -> int:
        for candidate in (sender, receiver):
            if self._owners.get(candidate.slot) is not candidate:
                self._drop_all(candidate.slot)
                self._owners[candidate.slot] = candidate
        key = sender.slot, receiver.slot
        row = self._rows.get(key)
        if row is None:
            if len(self._links) >= LINKS_KEPT:
                self._drop(int(self._facts[4, : len(self._links)].argmin()))
            row = self._rows[key] = len(self._links)
            if row == self._facts.shape[1]:
                self._slots = np.concatenate((self._slots, self._slots), axis=1)
                self._facts = np.concatenate((self._facts, self._facts), axis=1)
            self._links.append(_Link((sender, receiver)))
            self._slots[:, row] = key
        return row

    def _drop_all(self, slot: int) -> None:
        rows = np.flatnonzero((self._slots[:, : len(self._links)] == slot).any(axis=0))
        for row in reversed(rows.tolist()):
            self._drop(row)

    def _drop(self, row: int) -> None:
        last = len(self._links) - 1
        del self._rows[int(self._slots[0, row]), int(self._slots[1, row])]
        if row != last:
            self._links[row] = self._links[last]
            self._slots[:, row], self._facts[:, row] = self._slots[:, last], self._facts[:, last]
            self._rows[int(self._slots[0, row]), int(self._slots[1, row])] = row
        del self._links[last]

    def fleet(self, now_s: float) -> LinkSpeed:
        return LinkSpeed(*_blended(self._all.facts, self._prior, now_s, FLEET_HALF_LIFE_S))

    def speeds(
        self, senders: Sequence[Candidate], receivers: Sequence[Candidate], now_s: float
    ) -> tuple[Matrix, Matrix]:
        """Return tokens per second and latency of the links, one row per sender and one column per receiver."""
        fleet, shape, size = self.fleet(now_s), (len(senders), len(receivers)), len(self._links)
        token_s, latency_s = np.full(shape, fleet.token_s), np.full(shape, fleet.latency_s)
        rows = self._places(senders)[self._slots[0, :size]]
        columns = self._places(receivers)[self._slots[1, :size]]
        here = np.flatnonzero((rows >= 0) & (columns >= 0))
        if here.size:
            at = rows[here], columns[here]
            token_s[at], latency_s[at] = self._speeds_of(here, fleet, now_s)
        return 1.0 / token_s, latency_s

    def _places(self, candidates: Sequence[Candidate]) -> NDArray[np.int64]:
        """Return the place among `candidates` by slot; -1 for slots of others."""
        places = np.full(max(self._owners, default=-1) + 1, -1, np.int64)
        for place, candidate in enumerate(candidates):
            if self._owners.get(candidate.slot) is candidate:
                places[candidate.slot] = place
        return places

    def _speeds_of(self, rows: NDArray[np.int64], fleet: LinkSpeed, now_s: float) -> tuple[Column, Column]:
        return _blended(self._facts[:, rows], fleet, now_s, LINK_HALF_LIFE_S)

    def known(self, now_s: float) -> list[Link]:
        """Return the links that were used between candidates that are there, as decisions see them now."""
        rows = np.arange(len(self._links))
        token_s, latency_s = self._speeds_of(rows, self.fleet(now_s), now_s)
        return [
            Link(self.kind, *link.ends, 1.0 / token, latency, link.squares.count)
            for link, token, latency in zip(self._links, token_s.tolist(), latency_s.tolist(), strict=True)
            if link.ends is not None and all(candidate.live for candidate in link.ends)
        ]


def _blended(facts: Any, known: LinkSpeed, now_s: float, half_life_s: float) -> tuple[Any, Any]:
    """Return seconds per token and latency: those of `facts` (`_Link.facts`) as far as they count, else the known."""
    token_s, latency_s, timed, weight, at_s = facts
    kept = 2.0 ** ((at_s - now_s) / half_life_s)
    token_share, share = (number * kept / (number * kept + PRIOR_OBSERVATIONS) for number in (timed, weight))
    return (
        FASTEST_TOKEN_S + token_share * token_s + (1.0 - token_share) * known.token_s,
        share * latency_s + (1.0 - share) * known.latency_s,
    )
