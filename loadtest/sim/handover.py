"""Which requests two workers share, and how KV caches move between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from loadtest.sim.network import Network
from loadtest.sim.virtual_time import VirtualTime
from router.config.model import HandoverConfig
from router.placement.handover.planner import PlannedHandover

ABOVE = "above="


@dataclass(frozen=True, slots=True)
class HandoverSetting:
    """Roles of the first workers, and how KV caches move. `rule` is that of `handover_rule`.

    Workers of the role mixed compute prompts for others and receive them. Workers beyond `roles` have no connector.
    `believed_tokens_per_s` is the speed that the gateway expects; None: the true one.
    """

    roles: tuple[str, ...]
    rule: str = "cost"
    tokens_per_s: float = 100_000.0
    latency_s: float = 0.005
    believed_tokens_per_s: float | None = None

    @property
    def connector(self) -> Literal["nixl_pull"]:
        """The workers' KV connector, which decides in what order the steps of a handover come."""
        return "nixl_pull"

    @property
    def config(self) -> HandoverConfig:
        speed = self.believed_tokens_per_s or self.tokens_per_s
        return HandoverConfig(
            connector=self.connector,
            transfer_tokens_per_s=speed,
            latency_s=self.latency_s,
        )

    def network(self, time: VirtualTime) -> Network:
        """Return the network that all workers share."""
        return Network(time, self.tokens_per_s, self.latency_s)


def handover_rule(text: str) -> Callable[[PlannedHandover], bool]:
    """Return the rule that decides whether the cheapest pair is used.

    ``cost`` is the gateway's own. ``always`` uses it, ``never`` does not. ``above=N`` uses it if the decode worker
    lacks more than N tokens of the prompt, as llm-d's threshold does.

    Raises:
        ValueError: there is no such rule.
    """
    threshold = text.removeprefix(ABOVE)
    if threshold != text and threshold.isdecimal():
        tokens = int(threshold)
        return lambda planned: float(planned.decode.fleet.uncached_tokens[planned.cost.decode]) > tokens
    rules: dict[str, Callable[[PlannedHandover], bool]] = {
        "cost": lambda planned: planned.cost.pays,
        "always": lambda planned: True,
        "never": lambda planned: False,
    }
    if text not in rules:
        raise ValueError(f"{text!r} is no handover rule; write {', '.join(rules)} or {ABOVE}N, with N tokens")
    return rules[text]
