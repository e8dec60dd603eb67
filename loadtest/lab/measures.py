"""The measures of a run, for all its calls and for each kind of call."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


class Figures(msgspec.Struct, frozen=True):
    """Measures of some calls of one run. Times are in milliseconds and cover complete answers.

    TTFT also covers calls whose client left; without a token it counts the time that the client waited. Rejected calls,
    and calls whose client left, do not meet the SLO. `goodput_share` is the share of all calls that met the SLO,
    `goodput_per_s` their number per second of arrivals. `itl_p99_ms` covers all gaps between two tokens of one answer.
    `hit_share` is cached tokens over prompt tokens. `reuse_share` is cached tokens over the tokens that an endless
    cache would hold. `handed_over_share` is the share of calls that two workers shared. A call that misses the SLO is
    in one of the last three: its first token came late or never, else its tokens came too slowly, else its end.
    """

    calls: int
    answered: int
    rejected: int
    timed_out: int
    ttft_mean_ms: float
    ttft_p50_ms: float
    ttft_p90_ms: float
    ttft_p99_ms: float
    tpot_mean_ms: float
    itl_p99_ms: float
    e2e_mean_ms: float
    goodput_share: float
    goodput_per_s: float
    prompt_tokens: int
    hit_share: float
    reuse_share: float
    handed_over_share: float = 0.0
    late_first_tokens: int = 0
    slow_answers: int = 0
    late_ends: int = 0


class Pressure(msgspec.Struct, frozen=True):
    """The workers' gauges, read each second from the end of the warm-up: mean shares of KV cache and batch in use.

    `waiting` counts the readings at which requests waited in a worker: for a place in the batch (all of them taken),
    for KV space (the next request does not fit), or else for prefills.
    """

    kv_share: float = 0.0
    batch_share: float = 0.0
    waiting: dict[str, int] = {}


class Measures(msgspec.Struct, frozen=True):
    """The measures of one run: all measured calls, each kind of call, and the fleet. Equal cells give equal values.

    `amplification` is prefill tokens executed over those that an endless cache would leave to execute. `imbalance` is
    the busiest worker's executed tokens over the mean. Both, and `preemptions`, count from the end of the warm-up.
    `arrivals_per_s` is the rate of measured calls.
    """

    all: Figures
    kinds: dict[str, Figures]
    amplification: float
    imbalance: float
    preemptions: int
    arrivals_per_s: float
    virtual_s: float
    pressure: Pressure = msgspec.field(default_factory=Pressure)


@dataclass(frozen=True, slots=True)
class Measure:
    """One number by which rules are compared, its format, and whether higher is better."""

    name: str
    title: str
    form: str
    higher_is_better: bool = False

    def of(self, measures: Measures) -> float:
        return float(getattr(measures if self.name in ("amplification", "imbalance") else measures.all, self.name))


MEASURES = (
    Measure("ttft_mean_ms", "TTFT mean, ms", ",.0f"),
    Measure("ttft_p99_ms", "TTFT p99, ms", ",.0f"),
    Measure("goodput_share", "goodput, share of calls", ".3f", True),
    Measure("goodput_per_s", "goodput, calls/s", ",.3f", True),
    Measure("tpot_mean_ms", "TPOT mean, ms", ",.1f"),
    Measure("itl_p99_ms", "inter-token gap p99, ms", ",.1f"),
    Measure("e2e_mean_ms", "E2E mean, ms", ",.0f"),
    Measure("hit_share", "hit / prompt tokens", ".3f", True),
    Measure("reuse_share", "hit / reusable tokens", ".3f", True),
    Measure("amplification", "prefill amplification", ".2f"),
    Measure("imbalance", "imbalance", ".2f"),
)
