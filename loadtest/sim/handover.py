"""Which requests two workers share, and the network over which their KV caches move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final

from loadtest.sim.virtual_time import VirtualTime
from router.config.model import HandoverConfig

CONNECTOR_NAME: Final = "nixl_pull"
"""The workers' KV connector, which decides in what order the steps of a handover come."""
_DONE_TOKENS = 1e-3
"""A rest that is only a rounding error."""


@dataclass(frozen=True, slots=True)
class HandoverSetting:
    """Roles of the first workers, and how KV caches move. `even_if_dearer`: two workers share every request that they
    can.

    Workers of the role mixed compute prompts for others and receive them. Workers beyond `roles` have no connector.
    """

    roles: tuple[str, ...]
    tokens_per_s: float = 100_000.0
    latency_s: float = 0.005
    even_if_dearer: bool = False

    @property
    def config(self) -> HandoverConfig:
        return HandoverConfig(
            connector=CONNECTOR_NAME, transfer_tokens_per_s=self.tokens_per_s, latency_s=self.latency_s
        )

    def network(self, time: VirtualTime) -> Network:
        """Return the network that all workers share."""
        return Network(time, self.tokens_per_s, self.latency_s)


class Transfer:
    """A KV cache on its way from one worker to another."""

    __slots__ = ("done", "left_tokens", "source", "target", "tokens_per_s")

    def __init__(self, source: str, target: str, tokens: float, done: Callable[[], None]) -> None:
        self.source = source
        self.target = target
        self.left_tokens = tokens
        self.tokens_per_s = 0.0
        self.done = done


class Network:
    """One network card per worker, which sends and receives `tokens_per_s` of KV cache each, at the same time.

    Transfers share a card equally, and the card with the smaller share sets the speed of a transfer. A transfer begins
    `latency_s` after its start.
    """

    def __init__(self, time: VirtualTime, tokens_per_s: float, latency_s: float) -> None:
        self._time = time
        self._tokens_per_s = tokens_per_s
        self._latency_s = latency_s
        self._under_way: dict[Transfer, None] = {}
        self._cancelled: set[Transfer] = set()
        self._at_s = 0.0
        """When `left_tokens` were last brought up to date."""
        self._plan = 0
        """Version of the speeds. An end that was scheduled under an older version does nothing."""

    def start(self, source: str, target: str, tokens: int, done: Callable[[], None]) -> Transfer:
        """Send `tokens` from one worker to another, and call `done` when they have arrived."""
        transfer = Transfer(source, target, float(tokens), done)
        self._time.after(self._latency_s, self._begin, transfer)
        return transfer

    def cancel(self, transfer: Transfer) -> None:
        """Stop a transfer that has not arrived; `done` is not called."""
        if transfer in self._under_way:
            self._advance()
            del self._under_way[transfer]
            self._share()
        else:
            self._cancelled.add(transfer)

    def _begin(self, transfer: Transfer) -> None:
        if transfer in self._cancelled:
            self._cancelled.discard(transfer)
            return
        self._advance()
        self._under_way[transfer] = None
        self._share()

    def _advance(self) -> None:
        passed_s, self._at_s = self._time.now_s - self._at_s, self._time.now_s
        for transfer in self._under_way:
            transfer.left_tokens -= transfer.tokens_per_s * passed_s

    def _share(self) -> None:
        """Set the speeds, and schedule the next arrival."""
        self._plan += 1
        sending = Counter(transfer.source for transfer in self._under_way)
        receiving = Counter(transfer.target for transfer in self._under_way)
        next_s = inf
        for transfer in self._under_way:
            sharing = max(sending[transfer.source], receiving[transfer.target])
            transfer.tokens_per_s = self._tokens_per_s / sharing
            next_s = min(next_s, max(0.0, transfer.left_tokens) / transfer.tokens_per_s)
        if next_s < inf:
            self._time.after(next_s, self._arrived, self._plan)

    def _arrived(self, plan: int) -> None:
        if plan != self._plan:
            return
        self._advance()
        arrived = [one for one in self._under_way if one.left_tokens <= _DONE_TOKENS]
        for transfer in arrived:
            del self._under_way[transfer]
        self._share()
        for transfer in arrived:
            transfer.done()
