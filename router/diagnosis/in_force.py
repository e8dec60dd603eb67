"""What is on now, as far as a remedy depends on it: no remedy may name what is in force already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from policies.registry import hold_of, lanes_of
from router.config.model import ClassConfig, Config, PolicyConfig
from router.diagnosis.facts import Facts
from router.diagnosis.split_plan import PoolMember
from router.placement.policies.chosen_policy import spec_of

CACHE_BLIND = frozenset({"round_robin", "random", "least_requests", "power_of_two"})
"""Built-in rules whose choice does not depend on what a worker has cached, nor on the prompt or the session."""


@dataclass(frozen=True, slots=True)
class InForce:
    """The settings in force. `kv_events`: the gateway subscribes to them. `publishing`: every worker publishes them.
    `shared`: the gateways of the fleet share what they know through Redis. `fp8_caches` and `kv_tiers`: every worker
    that says so has its KV cache in fp8, or a KV connector. `pool` and `link`, with a connector, are `Facts`'.
    """

    rule: str = "marginal_cost"
    lanes: bool = True
    hold: bool = True
    kv_events: bool = True
    publishing: bool = True
    connector: bool = False
    max_requests_per_worker: int = 0
    self_test: bool = True
    shared: bool = False
    fp8_caches: bool = False
    kv_tiers: bool = False
    pool: Sequence[PoolMember] = ()
    link: tuple[float, float] | None = None
    classes: Mapping[str, ClassConfig] = field(default_factory=dict)

    @property
    def counts_cached(self) -> bool:
        """Whether the rule's choice depends on the cached part of a prompt."""
        return self.rule not in CACHE_BLIND


def in_force(config: Config, policy: PolicyConfig, facts: Facts) -> InForce:
    """Return what is on by valid settings, of which `policy` is the live part, and by what the workers say."""
    spec, connector = spec_of(policy), config.handover.connector is not None
    return InForce(
        rule=policy.rule,
        lanes=lanes_of(spec) is not None,
        hold=hold_of(spec) is not None,
        kv_events=config.residency.kv_events,
        publishing=facts.publishing,
        connector=connector,
        max_requests_per_worker=config.limits.max_requests_per_worker,
        self_test=config.residency.self_test,
        shared=config.redis.url is not None,
        fp8_caches=bool(facts.workers) and all("fp8" in (one.cache_type or "") for one in facts.workers),
        kv_tiers=bool(facts.workers) and all(one.connector for one in facts.workers),
        pool=facts.pool if connector else (),
        link=facts.link if connector else None,
        classes=config.classes,
    )
