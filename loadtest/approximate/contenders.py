"""The cache views that are compared: the gateway's, and those of other routers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from loadtest.sim.run import MakeResidency
from loadtest.sim.views.blind_lru import LLMD_TOKENS, SGLANG_TOKENS, BlindLru
from loadtest.sim.views.fixed_ttl import DYNAMO_TTL_S, FixedTtl
from loadtest.sim.views.nothing import Nothing
from loadtest.sim.views.routed import RoutedPrefixes
from loadtest.sim.virtual_time import VirtualTime
from router.residency.residency_map import ResidencyMap

TTLS_S = (30.0, 60.0, DYNAMO_TTL_S, 300.0)


class Family(StrEnum):
    """The kind of a view. The best baseline of a kind represents it."""

    EXACT = "exact"
    OURS = "ours"
    FIXED_TTL = "fixed TTL"
    BLIND_LRU = "capacity-blind LRU"
    SIZED_LRU = "LRU of the cache's size"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Contender:
    """A named view. With `policy` None it runs with the policy that all views are compared with."""

    name: str
    family: Family
    make_residency: MakeResidency
    publishes_events: bool = False
    usage_share: float = 1.0
    policy: str | None = None


def contenders(cache_tokens: int) -> list[Contender]:
    """Return all contenders, for workers whose caches hold `cache_tokens`."""
    return [
        Contender("exact, by events", Family.EXACT, _ours, publishes_events=True),
        Contender("approximate", Family.OURS, _ours),
        Contender("approximate, unreported", Family.OURS, _ours, usage_share=0.0),
        *(Contender(f"TTL {ttl_s:.0f} s", Family.FIXED_TTL, partial(_ttl, ttl_s)) for ttl_s in TTLS_S),
        Contender(f"LRU {LLMD_TOKENS / 1e3:.0f} k tokens", Family.BLIND_LRU, partial(_lru, LLMD_TOKENS)),
        Contender(f"LRU {SGLANG_TOKENS / 1e6:.1f} M tokens", Family.BLIND_LRU, partial(_lru, SGLANG_TOKENS)),
        Contender("LRU, cache-sized", Family.SIZED_LRU, partial(_lru, cache_tokens)),
        Contender("none, round robin", Family.NONE, _nothing, policy="round_robin"),
    ]


def _ours(time: VirtualTime) -> ResidencyMap:
    return ResidencyMap()


def _ttl(ttl_s: float, time: VirtualTime) -> RoutedPrefixes:
    return RoutedPrefixes(lambda block_tokens: FixedTtl(time, ttl_s))


def _lru(tokens: int, time: VirtualTime) -> RoutedPrefixes:
    return RoutedPrefixes(lambda block_tokens: BlindLru(tokens // block_tokens))


def _nothing(time: VirtualTime) -> RoutedPrefixes:
    return RoutedPrefixes(lambda block_tokens: Nothing())
