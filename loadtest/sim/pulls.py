"""Which requests pull the start of their prompt from another worker's host memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from loadtest.sim.network import Network
from loadtest.sim.virtual_time import VirtualTime
from router.config.model import HandoverConfig
from router.placement.pulls import PlannedPull

COST, NEVER, ABOVE = "cost", "never", "above="


@dataclass(frozen=True, slots=True)
class PullSetting:
    """Host memory of `host_blocks` per worker, and how KV cache moves between workers. `rule`: see `pull_rule`."""

    host_blocks: int
    rule: str = COST
    tokens_per_s: float = 100_000.0
    latency_s: float = 0.005

    @property
    def config(self) -> HandoverConfig:
        return HandoverConfig(
            pulls="offloading_peer", transfer_tokens_per_s=self.tokens_per_s, latency_s=self.latency_s
        )

    def network(self, time: VirtualTime) -> Network:
        return Network(time, self.tokens_per_s, self.latency_s)


def pull_rule(text: str) -> Callable[[PlannedPull], bool]:
    """Return the rule that decides whether the cheapest pull is made.

    ``cost`` is the gateway's own, ``never`` makes none. ``above=N`` makes it if more than N tokens would move.

    Raises:
        ValueError: there is no such rule.
    """
    threshold = text.removeprefix(ABOVE)
    if threshold != text and threshold.isdecimal():
        tokens = int(threshold)
        return lambda planned: planned.cost.tokens > tokens
    rules: dict[str, Callable[[PlannedPull], bool]] = {
        COST: lambda planned: planned.cost.pays,
        NEVER: lambda planned: False,
    }
    if text not in rules:
        raise ValueError(f"{text!r} is no pull rule; write {', '.join(rules)} or {ABOVE}N, with N tokens")
    return rules[text]
